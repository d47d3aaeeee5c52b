"""How much of the card cosines and sines take, by arithmetic alone: see `rope_tables.py`. No torch."""

from __future__ import annotations

from collections.abc import Iterable

from engine.cuda.memory import taken_bytes
from engine.models.spec import RopeSpec

FIRST_POSITIONS = 4096  # that there are rows for at load
_FLOAT_BYTES = 4


def table_bytes(rope: RopeSpec, positions: int) -> int:
    """Of the cosines of so many positions, and of the sines."""
    return _FLOAT_BYTES * positions * (rope.dim // 2)


def bytes_to_come(ropes: Iterable[RopeSpec], positions: int, context: int) -> int:
    """What tables of so many positions may take of the card beside what they have: while they grow the last
    time, both are there, the smaller ones with rows for up to half of the context.
    """
    if positions == context:
        return 0
    before = max(positions, context // 2)

    def taken(count: int) -> int:
        return sum(2 * taken_bytes(table_bytes(rope, count)) for rope in ropes)

    ropes = tuple(ropes)
    return taken(context) + taken(before) - taken(positions)
