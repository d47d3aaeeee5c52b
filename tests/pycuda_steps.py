"""The driver for a card, opened on the stand-in for PyCUDA."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import ModuleType

import numpy as np
import pytest
from fake_pycuda import TOTAL_BYTES, FakeCard

from engine.cuda.driver import CardInfo
from engine.cuda.pycuda_driver import PyCudaDriver

INFO = CardInfo("Card", (9, 0), TOTAL_BYTES, 132, "580.95")


def card_for_pycuda(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeCard]:
    """For a fixture. Nobody may have complained by the end."""
    fake = FakeCard()
    package = ModuleType("pycuda")
    package.driver = fake.cuda  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "pycuda", package)
    monkeypatch.setitem(sys.modules, "pycuda.driver", fake.cuda)
    yield fake
    assert fake.complaints == []
    assert not any(fake.stacks.values()), "PyCUDA would end the process"


def opened(card: FakeCard) -> PyCudaDriver:
    return PyCudaDriver(INFO, card.library)


def random_bytes(count: int) -> np.ndarray:
    return np.random.default_rng(count).integers(0, 256, count, dtype=np.uint8)
