"""Strips that tests keep in a folder, and what they find there."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch

from engine.weights.strip_cache import StripCache
from engine.weights.strip_file import StripKey
from engine.weights.strips import Strip

LIMIT = 10**9
NAMES = ("layers.0.qkv", "norm")


def key_of(model: str = "model", **others: Any) -> StripKey:
    return StripKey(**{"model": model, "bits": 8, "group": 32, "quantiser_version": 1, **others})


def strip_of(value: int, rows: int = 4) -> Strip:
    return Strip(8, 32, torch.full((rows, 32), value, dtype=torch.int8), torch.full((rows, 1), float(value)))


def keep(cache: StripCache, key: StripKey, value: int = 1, *, rows: int = 4) -> bool:
    """Stores a strip and a tensor of this value, as a load does."""
    with cache.writer(key, NAMES) as writer:
        writer.add_strip("layers.0.qkv", strip_of(value, rows))
        writer.add_tensor("norm", torch.full((3,), float(value)))
        kept = writer.commit()
    assert kept == (writer.notices == ())
    return kept


def value_in(cache: StripCache, key: StripKey) -> int | None:
    """The value that `keep` stored, everything read and compared; None where nothing usable is kept."""
    lookup = cache.open(key)
    if lookup.file is None:
        return None
    value = int(lookup.file.read_tensor("norm")[0])
    strip = lookup.file.read_strip("layers.0.qkv")
    lookup.file.close()
    assert (strip.codes == value).all()
    assert (strip.scales == value).all()
    return value


def files_in(root: Path) -> list[str]:
    return sorted(os.listdir(root)) if root.exists() else []
