"""Pinned memory that is used round and round: nothing is overwritten before it has been read."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from engine.cuda.staging import StagingRing


class SlowReader:
    """Reads a piece only when somebody waits for it, and all pieces before it first."""

    def __init__(self) -> None:
        self.pieces: list[np.ndarray] = []
        self.read: list[bytes] = []

    def send(self, piece: np.ndarray) -> Callable[[], None]:
        self.pieces.append(piece)
        count = len(self.pieces)
        return lambda: self.read_until(count)

    def read_until(self, count: int) -> None:
        for piece in self.pieces[len(self.read) : count]:
            self.read.append(piece.tobytes())


@given(st.lists(st.integers(1, 250), max_size=90), st.sampled_from([1000, 1001, 1024, 1500]))
def test_each_piece_is_read_as_it_was_sent(sizes: list[int], ring_bytes: int) -> None:
    ring, reader = StagingRing(np.zeros(ring_bytes, np.uint8)), SlowReader()
    sent = []
    for index, size in enumerate(sizes):
        source = np.full(size, index, np.uint8)
        ring.send(source, reader.send)
        sent.append(source.tobytes())
        source[:] = 255
    reader.read_until(len(sizes))
    assert reader.read == sent


def test_pieces_are_waited_for_only_where_there_is_no_room() -> None:
    ring, reader = StagingRing(np.zeros(1024, np.uint8)), SlowReader()
    for _ in range(4):
        ring.send(np.zeros(256, np.uint8), reader.send)
    assert len(reader.read) == 0
    ring.send(np.zeros(256, np.uint8), reader.send)
    assert len(reader.read) == 1


def test_pieces_of_some_bytes_are_not_remembered_for_ever() -> None:
    """What each of them costs would grow, and so would the number of events that the card's driver keeps."""
    ring, reader = StagingRing(np.zeros(2**20, np.uint8)), SlowReader()
    for index in range(2000):
        ring.send(np.full(40, index % 256, np.uint8), reader.send)
    assert len(ring._pieces) <= 256
    assert len(reader.read) >= 2000 - 256
    assert reader.read == [bytes([index % 256]) * 40 for index in range(len(reader.read))]


def test_a_piece_is_a_quarter_at_most() -> None:
    assert StagingRing(np.zeros(1024, np.uint8)).most_bytes == 256
