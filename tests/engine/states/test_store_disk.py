"""States in files: written behind the answers, and what is said where the disk fails."""

from __future__ import annotations

import errno
import gc
import os
import threading
from array import array
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from state_steps import CONTEXT, KEY, OTHER, TEXT, Make, answer, codes, places, write_state

from engine.generation import ReuseReason
from engine.kv_geometry import KvGeometry
from engine.states import kv_folder
from engine.states.kv_file import KvFileError, write_kv_file
from engine.states.kv_folder import KvFolder, limit_folder
from engine.states.kv_writer import pending_bytes, writer_of
from engine.weights.part_file import PartFile


class TestSlowDisk:
    """What a model leaves at its end is still being written when it is loaded again."""

    def test_nothing_waits_for_what_is_still_being_written(
        self, make: Make, slow_disk: threading.Event
    ) -> None:
        store = make()
        for name, start in (("a", 1), ("b", 2), ("c", 3)):
            answer(store, name, [start, *TEXT[:150]])
        store.close()
        store = make()
        assert places(store) == {"c": "ram", "b": "ram", "a": "ram"}
        for name, start in (("a", 1), ("b", 2)):
            assert answer(store, name, [start, *TEXT[:160]]).reused == 151
        assert not slow_disk.is_set()
        slow_disk.set()
        store.wait()
        assert places(store) == {"b": "pool", "a": "pool", "c": "ram"}
        store.close()
        assert answer(make(), "a", [1, *TEXT[:170]]).reused == 161

    @pytest.mark.parametrize("loaded", [True, False])
    def test_a_limit_that_is_lowered_meanwhile_holds_for_what_is_being_written(
        self, make: Make, tmp_path: Path, slow_disk: threading.Event, loaded: bool
    ) -> None:
        """Where nothing is to be kept any more, nothing appears either; with and without a model."""
        store = make()
        for name, start in (("a", 1), ("b", 2), ("c", 3)):
            answer(store, name, [start, *TEXT[:150]])
        store.close()
        while not list((tmp_path / "states").glob("*.part")):
            writer_of(tmp_path / "states").wait_for_a_file(0.01)
        if loaded:
            make().limit(ram_budget=0, disk_budget=0)
        else:
            limit_folder(tmp_path / "states", 0)
        slow_disk.set()
        store.wait()
        assert list((tmp_path / "states").iterdir()) == []

    def test_a_state_that_is_being_written_at_the_end_is_not_written_twice(
        self, make: Make, tmp_path: Path, slow_disk: threading.Event, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        written: list[str] = []

        def write(*args: Any, **settings: Any) -> PartFile:
            written.append(settings["conversation"])
            return write_kv_file(*args, **settings)

        monkeypatch.setattr("engine.states.kv_writer.write_kv_file", write)
        store = make(slots=1, ram=0)
        answer(store, "a", TEXT[:150])
        answer(store, "b", [1, *TEXT[:70]])
        store.close()
        slow_disk.set()
        store.wait()
        assert written == ["a", "b"]

    def test_what_is_forgotten_before_it_is_written_takes_no_memory(
        self, make: Make, slow_disk: threading.Event
    ) -> None:
        store = make()
        for name, start in (("a", 1), ("b", 2)):
            answer(store, name, [start, *TEXT[:150]])
        store.close()  # the last one is written first
        before = pending_bytes()
        store.forget("a")
        assert pending_bytes() == before / 2

    def test_what_goes_wrong_after_the_end_is_told_by_the_next(
        self, make: Make, slow_disk: threading.Event, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def full(file: PartFile) -> None:
            assert slow_disk.wait(60)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        monkeypatch.setattr(PartFile, "sync", full)
        store = make()
        answer(store, "a", TEXT[:150])
        store.close()
        store = make(model="another")
        slow_disk.set()
        store.wait()
        assert [notice.code for notice in store.take_notices()] == ["states-not-kept"]

    def test_a_folders_writer_outlives_those_who_write(self, tmp_path: Path) -> None:
        path = tmp_path / "states" / "a file"
        writer_of(path.parent).stuck.append(path)
        gc.collect()
        assert writer_of(path.parent).stuck == [path]

    def test_a_fault_in_one_write_does_not_hold_up_the_others(
        self, make: Make, slow_disk: threading.Event, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """It is the thread's last one; another thread goes on."""
        faults: list[threading.ExceptHookArgs] = []
        monkeypatch.setattr(threading, "excepthook", faults.append)

        def write(*args: Any, **settings: Any) -> PartFile:
            if settings["conversation"] == "b":
                raise RuntimeError("a bug")
            return write_kv_file(*args, **settings)

        monkeypatch.setattr("engine.states.kv_writer.write_kv_file", write)
        store = make()
        for name, start in (("a", 1), ("b", 2), ("c", 3)):
            answer(store, name, [start, *TEXT[:150]])
        store.close()
        slow_disk.set()
        store.wait()
        assert [str(fault.exc_value) for fault in faults] == ["a bug"]
        assert places(make()) == {"c": "disk", "a": "disk"}

    def test_a_rewind_stops_what_the_model_left_too(
        self, make: Make, tmp_path: Path, slow_disk: threading.Event
    ) -> None:
        store = make()
        answer(store, "a", TEXT[:150])
        store.close()
        store = make()
        lease = store.take("a", OTHER[:120])
        assert lease.reused == 100
        slow_disk.set()
        store.wait()
        assert list((tmp_path / "states").glob("*")) == []
        store.give_back(lease)

    def test_another_model_is_told_though_the_first_ones_file_is_not_there_yet(
        self, make: Make, slow_disk: threading.Event
    ) -> None:
        store = make()
        answer(store, "a", TEXT[:150])
        store.close()
        other = make(model="another")
        assert answer(other, "a", TEXT[:150]).reason is ReuseReason.OTHER_MODEL
        assert answer(other, "b", [1, *TEXT[:70]]).reason is ReuseReason.NEW
        assert not slow_disk.is_set()

    def test_a_shorter_context_drops_what_is_being_written_too(
        self, make: Make, tmp_path: Path, slow_disk: threading.Event
    ) -> None:
        store = make()
        answer(store, "a", TEXT[:150])
        store.close()
        store = make(context=149)
        lease = answer(store, "a", TEXT[:120])
        assert (lease.reused, codes(store, lease)) == (0, ["state-unusable"])
        slow_disk.set()
        store.wait()
        assert list((tmp_path / "states").glob("*")) == []


class TestDisk:
    @pytest.mark.parametrize("keeps", [True, False])
    def test_a_full_disk_drops_the_oldest_and_says_so(
        self, keeps: bool, make: Make, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        def full(file: PartFile) -> None:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        monkeypatch.setattr(PartFile, "sync", full)
        store = make(slots=1, ram=0, keeps=keeps)
        for name, start in (("a", 1), ("b", 2), ("c", 3)):
            answer(store, name, [start, *TEXT[:150]])
            store.wait()
        store.table()
        assert [notice.code for notice in store.take_notices()] == (["states-not-kept"] if keeps else [])
        lease = answer(store, "a", [1, *TEXT[:151]])
        assert (lease.reused, lease.reason) == (0, ReuseReason.EVICTED)
        assert [notice.code for notice in lease.take_notices()] == ["state-dropped"]
        store.wait()  # the state that made room for it is tried on the disk too
        assert not keeps or list((tmp_path / "states").iterdir()) == []

    def test_a_folder_that_cannot_be_written_is_told_once(self, make: Make, tmp_path: Path) -> None:
        (tmp_path / "states").write_text("a file where the folder should be")
        store = make(slots=1, ram=0)
        for name, start in (("a", 1), ("b", 2), ("c", 3)):
            answer(store, name, [start, *TEXT[:150]])
            store.wait()
        store.close()
        store.wait()
        assert [notice.code for notice in store.take_notices()] == ["states-not-kept"]

    def test_a_writer_that_cannot_start_keeps_nobody_waiting_and_is_told(
        self, make: Make, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def no_thread(thread: threading.Thread) -> None:
            raise RuntimeError("can't start new thread")

        store = make(slots=1, ram=0)
        with monkeypatch.context() as patched:
            patched.setattr(threading.Thread, "start", no_thread)
            for name, start in (("a", 1), ("b", 2), ("c", 3)):
                answer(store, name, [start, *TEXT[:150]])
        waiting = threading.Thread(target=store.wait, daemon=True)
        waiting.start()
        waiting.join(10)
        assert not waiting.is_alive()
        assert [notice.code for notice in store.take_notices()] == ["states-not-kept"]
        assert list(places(store)) == ["c"]
        store.close()
        assert answer(make(), "c", [3, *TEXT[:151]]).reused == 151, "the next one starts"

    @pytest.mark.parametrize("damage", ["cut", "flipped page", "flipped header", "longer", "empty"])
    def test_a_damaged_file_is_dropped_told_and_read_again(
        self, damage: str, make: Make, tmp_path: Path
    ) -> None:
        store = make()
        answer(store, "a", TEXT[:150])
        store.close()
        store.wait()
        [path] = (tmp_path / "states").iterdir()
        raw = bytearray(path.read_bytes())
        match damage:
            case "cut":
                del raw[-500:]
            case "flipped page":
                raw[-1500] ^= 1
            case "flipped header":
                raw[300] ^= 1
            case "longer":
                raw += b"more"
            case "empty":
                raw.clear()
        path.write_bytes(raw)
        store = make()
        lease = answer(store, "a", TEXT[:150])
        assert lease.reused == 0
        assert codes(store, lease) == ["state-unusable"]
        assert not path.exists()

    @pytest.mark.parametrize("foreign", ["model", "numerics", "geometry", "conversation"])
    def test_a_file_of_something_else_under_this_name_is_dropped_and_told(
        self, foreign: str, make: Make, tmp_path: Path
    ) -> None:
        """Whoever put it there: a name alone proves nothing."""
        key = {
            "model": replace(KEY, model="another"),
            "numerics": replace(KEY, numerics="q4"),
            "geometry": replace(KEY, geometry=KvGeometry("int8", ((2, 2), (1, 4)))),
            "conversation": KEY,
        }[foreign]
        path = KvFolder(tmp_path / "states", KEY, context=CONTEXT).path("a")
        pages = [torch.ones(key.geometry.page_bytes, dtype=torch.uint8)] * 2
        name = "b" if foreign == "conversation" else "a"
        write_kv_file(
            path, key, conversation=name, ids=array("I", TEXT[:100]), pages=pages, stop=threading.Event()
        ).finish()
        store = make()
        lease = answer(store, "a", TEXT[:120])
        assert (lease.reused, codes(store, lease)) == (0, ["state-unusable"])
        assert not path.exists()
        assert answer(store, "b", TEXT[:100]).reused == 99, "of the answer just now, not of the file"

    @pytest.mark.parametrize("other", [TEXT[:250], TEXT[:60], [*TEXT[:50], *OTHER[:90]]])
    def test_what_another_window_has_put_in_a_files_place_is_used_and_stays(
        self, other: list[int], make: Make, tmp_path: Path
    ) -> None:
        """The conversation went on there, or was edited; this window has seen the file before."""
        store = make()
        answer(store, "a", TEXT[:150])
        store.close()
        store.wait()
        store = make()
        assert places(store) == {"a": "disk"}
        path = KvFolder(tmp_path / "states", KEY, context=CONTEXT).path("a")
        write_state("a", other, path)
        lease = answer(store, "b", [*other, 7])
        assert (lease.reused, codes(store, lease)) == (len(other), [])
        assert path.exists()
        lease = answer(store, "a", [*other, 8])
        assert (lease.reused, lease.reason, codes(store, lease)) == (len(other), None, [])

    @pytest.mark.parametrize("known", [True, False])
    def test_a_good_file_that_takes_a_damaged_ones_place_just_now_is_not_removed(
        self, known: bool, make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Between the look at the damaged one and its removal."""
        path = KvFolder(tmp_path / "states", KEY, context=CONTEXT).path("a")
        write_state("a", TEXT[:150], path)
        good = path.read_bytes()
        store = make()
        if known:
            assert places(store) == {"a": "disk"}
        damaged = bytearray(good)
        damaged[-1500 if known else 300] ^= 1
        path.write_bytes(damaged)
        name = "read_kv_pages" if known else "read_kv_header"
        real = getattr(kv_folder, name)

        def then_replaced(*args: Any, **settings: Any) -> Any:
            try:
                return real(*args, **settings)
            except KvFileError:
                fresh = tmp_path / "fresh"
                fresh.write_bytes(good)
                fresh.replace(path)
                raise

        monkeypatch.setattr(kv_folder, name, then_replaced)
        lease = answer(store, "a", TEXT[:160])
        assert (lease.reused, codes(store, lease)) == (150, [])
        assert path.exists()

    def test_more_tokens_than_the_context_are_dropped(self, make: Make) -> None:
        store = make()
        answer(store, "a", TEXT[:150])
        store.close()
        store.wait()
        store = make(context=149)
        lease = answer(store, "a", TEXT[:120])
        assert (lease.reused, codes(store, lease)) == (0, ["state-unusable"])
