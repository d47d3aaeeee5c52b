"""What products are told of the rows that they take, of the experts, and of where outputs go."""

from __future__ import annotations

from dataclasses import dataclass

from engine.cuda.driver import NOWHERE, Address
from engine.cuda.matrices import DeviceLinear


@dataclass(frozen=True)
class Normed:
    """Rows of numbers (T, K) that a product takes behind RMSNorm. weight: (K,). behind: the product of the
    same form before it, if there is one in front of each. is_near: it is a short one, and this one asks
    for weights while it runs.
    """

    values: Address
    weight: Address
    behind: DeviceLinear | None = None
    is_near: bool = False


@dataclass(frozen=True)
class Plain:
    """Rows of numbers (T, K) that a product takes as they are."""

    values: Address


@dataclass(frozen=True)
class Experts:
    """chosen: (rows of y,) which matrix each takes. rows_each: rows of y that share one of x. tile_rows: of
    one expert that are multiplied together, where rows were grouped for that; else 0. count: of all.
    logits: (count,) of a single token's router, where products choose from these, see `choosing`; else
    nowhere.
    """

    chosen: Address
    rows_each: int = 1
    tile_rows: int = 0
    count: int = 0
    logits: Address = NOWHERE


@dataclass(frozen=True)
class Target:
    """Where a part's outputs go: y (rows, stride), set or added to, behind its bias."""

    y: Address
    stride: int
    bias: Address
    adds: bool


NO_TARGET = Target(NOWHERE, 0, NOWHERE, False)
