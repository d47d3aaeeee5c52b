"""A shelf lets go of what it read ahead when nobody wants it any more."""

from __future__ import annotations

import gc
import threading
from pathlib import Path

import pytest
import torch

from engine.weights.mapped_files import mapped_bytes
from engine.weights.part_file import remove_unused
from engine.weights.strip_cache import StripCache
from engine.weights.strip_file import StripKey
from engine.weights.strip_shelf import StripShelf
from engine.weights.strips import Strip
from engine.weights.weight_file import WeightFile

KEY = StripKey(model="model", bits=8, group=32, quantiser_version=1)
SECONDS = 20  # in which a thread gets anywhere


def test_reading_that_is_given_up_lets_go_of_the_file_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = StripCache(tmp_path, 10**9)
    with cache.writer(KEY, ["s"]) as writer:
        writer.add_strip("s", Strip(8, 32, torch.ones(64, 256, dtype=torch.int8), torch.ones(64, 8)))
        assert writer.commit()
    begun, going_on = threading.Event(), threading.Event()
    read_into = WeightFile.read_into

    def wait_inside(file: WeightFile, buffer: memoryview, offset: int) -> None:
        if threading.current_thread().name.startswith("strip-reader"):
            begun.set()
            assert going_on.wait(SECONDS)
        read_into(file, buffer, offset)

    monkeypatch.setattr(WeightFile, "read_into", wait_inside)
    before = mapped_bytes()
    gc.disable()
    try:
        shelf = StripShelf(cache, KEY, lambda: "model")
        shelf.begin(lambda: None)
        assert begun.wait(SECONDS)
        assert shelf._kept is not None
        given_up = shelf._kept._given_up
        closing = threading.Thread(target=shelf.close)
        closing.start()
        assert given_up.wait(SECONDS)
        going_on.set()
        closing.join(SECONDS)
        assert mapped_bytes() == before
        assert remove_unused(cache.path(KEY))
    finally:
        gc.enable()
