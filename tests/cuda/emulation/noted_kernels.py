"""Kernels of a large card that are only noted: for what is decided before anything is launched."""

from __future__ import annotations

from typing import Any, cast

from engine.cuda.arguments import ProductFew
from engine.cuda.driver import NOWHERE, Address, CardInfo
from engine.cuda.matrices import DeviceLinear, DeviceMatrix
from engine.cuda.products import ProductRunner
from engine.cuda.tile_layout import most_chains


def large_card(capability: tuple[int, int] = (9, 0)) -> CardInfo:
    return CardInfo("a card", capability, 2**36, 132, "driver 1")


class NotedKernels:
    """Launches nothing."""

    def __init__(self) -> None:
        self.card = large_card()
        self.shared_bytes: list[int] = []
        self.products: list[ProductFew] = []

    def launch(self, name: str, arguments: object, *, shared_bytes: int = 0, **_: Any) -> None:
        self.shared_bytes.append(shared_bytes)
        if isinstance(arguments, ProductFew):
            self.products.append(arguments)

    def runner(self) -> ProductRunner:
        return ProductRunner(cast("Any", self), cast("Any", None), activations="int8x2", norm_eps=1e-6)


def linear(rows: int, columns: int, *, kind: str = "codes4") -> DeviceLinear:
    """As a dense model's, somewhere."""
    place = Address(2**20)
    chains = most_chains(rows, 1)
    part = DeviceMatrix(kind, rows, columns, place, place, narrow_scales=True, most_chains=chains)
    return DeviceLinear((part,), NOWHERE)
