"""What tests of the states of conversations do with a store, over the fakes of `state_fakes`."""

from __future__ import annotations

import random
import threading
from array import array
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from state_fakes import GEOMETRY, cold_logits, new_home

from engine.backend import Sequence as PageTable
from engine.kv_geometry import PAGE
from engine.states.kv_file import KvKey, write_kv_file
from engine.states.lease import Lease
from engine.states.store import StateStore

KEY = KvKey("model", "native", GEOMETRY)
CONTEXT = 8 * PAGE
RAM = 10**6
TEXT = random.Random(3).choices(range(1000), k=CONTEXT)
OTHER = TEXT[:100] + random.Random(4).choices(range(1000), k=CONTEXT - 100)

Make = Callable[..., StateStore]


def read(store: StateStore, conversation: str, ids: Sequence[int]) -> Lease:
    """The prompt, with a cold run's logits; the lease is still open."""
    lease = store.take(conversation, ids)
    assert lease.reused == lease.length < max(1, len(ids))
    assert torch.equal(lease.prefill(ids[lease.length :]), cold_logits(ids))
    return lease


def answer(store: StateStore, conversation: str, ids: Sequence[int]) -> Lease:
    lease = read(store, conversation, ids)
    store.give_back(lease)
    return lease


def places(store: StateStore) -> dict[str, str]:
    return {row.conversation: row.place for row in store.table()}


def codes(store: StateStore, lease: Lease) -> list[str]:
    return [notice.code for notice in (*lease.take_notices(), *store.take_notices())]


def write_state(conversation: str, ids: Sequence[int], path: Path) -> None:
    """As another window does it: a whole file, put in the place of the one that is there."""
    home = new_home(CONTEXT // PAGE)
    sequence = PageTable()
    assert home.ledger.make_writable(sequence, len(ids))
    home.backend.prefill(ids, sequence, home.ledger.pool)
    pages = home.ledger.read(sequence)
    stop = threading.Event()
    write_kv_file(path, KEY, conversation=conversation, ids=array("I", ids), pages=pages, stop=stop).finish()
