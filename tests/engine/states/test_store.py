"""What conversations share, what moves where, and what is said of it; a fake backend shows wrong bytes."""

from __future__ import annotations

import errno
import gc
import os
import random
import threading
import time
from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from state_fakes import GEOMETRY, FakePool, cold_logits, new_home

from engine.backend import Sequence as PageTable
from engine.errors import OutOfMemoryError
from engine.generation import ReuseReason
from engine.kv_geometry import PAGE, KvGeometry
from engine.states import kv_folder
from engine.states.kv_file import KvFileError, KvKey, write_kv_file
from engine.states.kv_folder import KvFolder, forget_conversation
from engine.states.kv_writer import pending_bytes, writer_of
from engine.states.lease import Lease
from engine.states.store import StateStore
from engine.weights.part_file import PartFile

KEY = KvKey("model", "native", GEOMETRY)
CONTEXT = 8 * PAGE
RAM = 10**6
TEXT = random.Random(3).choices(range(1000), k=CONTEXT)
OTHER = TEXT[:100] + random.Random(4).choices(range(1000), k=CONTEXT - 100)

Make = Callable[..., StateStore]


@pytest.fixture(autouse=True)
def _small_disks_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engine.states.kv_folder.LEAST_FREE_BYTES", 0)


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    """Stores that share a folder; the pages of each are checked at the end."""
    stores: list[StateStore] = []

    def make_store(
        *,
        slots: int = 8,
        pages: int = 64,
        ram: int = RAM,
        disk: int = 10**9,
        model: str = "model",
        **more: Any,
    ) -> StateStore:
        key = KvKey(model, "native", GEOMETRY)
        folder = KvFolder(tmp_path / "states", key, context=more.get("context", CONTEXT), limit_bytes=disk)
        new_fallback = more.get("new_fallback", lambda: new_home(CONTEXT // PAGE))
        store = StateStore(
            more.get("home") or new_home(pages),
            slots=slots,
            new_fallback=new_fallback,
            folder=folder if more.get("keeps", True) else None,
            ram_budget=ram,
        )
        stores.append(store)
        return store

    yield make_store
    for store in stores:
        if hasattr(store, "_residence"):  # it isn't closed
            store.check()
        store.wait()


@pytest.fixture
def slow_disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """No file is whole before this is set."""
    go_on = threading.Event()
    sync = PartFile.sync

    def slow_sync(file: PartFile) -> None:
        assert go_on.wait(60)
        sync(file)

    monkeypatch.setattr(PartFile, "sync", slow_sync)
    yield go_on
    go_on.set()


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


class TestReuse:
    @pytest.mark.parametrize("length", [1, 2, 52, 63, 64, 65, 76, 127, 128, 129, 500])
    def test_a_turn_reads_only_what_is_new(self, length: int, make: Make) -> None:
        store = make()
        answer(store, "a", TEXT[:length])
        lease = answer(store, "a", TEXT[: length + 9])
        assert (lease.reused, lease.total, lease.reason) == (length, length + 9, None)

    @pytest.mark.parametrize("length", [1, 2, 64, 65, 128])
    def test_regenerating_runs_the_last_token_again(self, length: int, make: Make) -> None:
        store = make()
        answer(store, "a", TEXT[:length])
        lease = answer(store, "a", TEXT[:length])
        assert (lease.reused, lease.reason) == (length - 1, None)

    def test_a_rewritten_history_says_where(self, make: Make) -> None:
        store = make()
        answer(store, "a", TEXT[:200])
        lease = answer(store, "a", OTHER[:300])
        assert (lease.reused, lease.reason, lease.diverged_at) == (100, ReuseReason.HISTORY_REWRITTEN, 100)

    def test_a_new_conversation_begins_with_what_another_has_read(self, make: Make) -> None:
        store = make()
        answer(store, "a", TEXT[:200])
        lease = answer(store, "b", OTHER[:200])
        assert (lease.reused, lease.reason) == (100, ReuseReason.NEW)
        assert answer(store, "a", TEXT[:201]).reused == 200, "the other one was not touched"
        assert answer(store, "c", [1001, 1002]).reason is ReuseReason.NEW

    def test_an_edited_message_starts_from_the_best_of_all_states(self, make: Make) -> None:
        """The edited text is there already: another branch of the conversation has it."""
        store = make()
        answer(store, "a", TEXT[:300])
        answer(store, "branch", OTHER[:300])
        lease = answer(store, "a", OTHER[:310])
        assert (lease.reused, lease.reason) == (300, None)
        assert answer(store, "branch", OTHER[:301]).reused == 300

    def test_no_conversation_keeps_nothing_and_may_use_what_there_is(self, make: Make) -> None:
        store = make()
        answer(store, "", TEXT[:200])
        assert answer(store, "", TEXT[:200]).reused == 0
        answer(store, "a", TEXT[:200])
        assert answer(store, "", TEXT[:200]).reused == 199
        assert places(store) == {"a": "pool"}

    def test_an_empty_prompt_is_no_trouble(self, make: Make) -> None:
        store = make()
        lease = store.take("a", [])
        assert (lease.reused, lease.total) == (0, 0)
        store.give_back(lease)
        assert store.table() == ()

    def test_a_context_of_one_page(self, make: Make) -> None:
        store = make(slots=1, pages=1, context=PAGE, new_fallback=lambda: new_home(1))
        for conversation in "abab":
            answer(store, conversation, TEXT[:PAGE])
            answer(store, conversation, OTHER[: PAGE - 1])


class TestForks:
    def test_a_fork_copies_nothing_and_its_first_step_one_page(self, make: Make) -> None:
        home = new_home(64)
        pool = home.ledger.pool
        assert isinstance(pool, FakePool)
        store = make(home=home)
        answer(store, "a", TEXT[:300])
        assert store.fork("a", "b") == 300
        assert (pool.copies, len(pool.pages)) == (0, 5)
        answer(store, "b", [*TEXT[:300], 7])
        assert (pool.copies, len(pool.pages)) == (1, 6)
        answer(store, "a", [*TEXT[:300], 8])
        assert (pool.copies, len(pool.pages)) == (1, 6)

    @pytest.mark.parametrize("first", ["a", "b"])
    def test_forgetting_one_leaves_the_other(self, first: str, make: Make) -> None:
        store = make()
        answer(store, "a", TEXT[:300])
        assert store.fork("a", "b", 190) == 190
        store.forget(first)
        store.check()
        other = "b" if first == "a" else "a"
        kept = 190 if other == "b" else 300
        assert answer(store, other, [*TEXT[:kept], 7]).reused == kept

    def test_a_conversation_that_is_being_answered_can_be_forked(self, make: Make) -> None:
        store = make()
        lease = read(store, "a", TEXT[:70])
        assert store.fork("a", "b", 66) == 66
        assert torch.equal(lease.decode(5), cold_logits([*TEXT[:70], 5]))
        assert answer(store, "b", [*TEXT[:66], 9]).reused == 66
        store.give_back(lease)

    @pytest.mark.parametrize("place", ["pool", "ram", "disk", "next start", "fallback", "no slot"])
    @pytest.mark.parametrize("length", [1, 64, 190, 300])
    def test_a_fork_outlives_its_source_wherever_that_lies(self, place: str, length: int, make: Make) -> None:
        store = make(slots=1, ram=0 if place == "disk" else RAM)
        other = read(store, "b", OTHER[:130]) if place == "fallback" else None
        lease = read(store, "a", TEXT[:300])
        if place not in ("fallback", "no slot"):
            store.give_back(lease)
        if place in ("ram", "disk"):
            answer(store, "b", [1, *TEXT[:100]])
            store.wait()
        if place == "next start":
            store.close()
            store.wait()
            store = make()
        expected = {"next start": "disk", "no slot": "pool"}.get(place, place)
        assert places(store)["a"] == expected
        assert store.begin("fork", [*TEXT[:length], 7]) == length
        store.forget("a")
        for open_lease in (lease, other):
            if open_lease is not None:
                store.give_back(open_lease)
        store.check()
        again = answer(store, "fork", [*TEXT[:length], 9, 10])
        assert (again.reused, again.reason, codes(store, again)) == (length, None, [])

    def test_a_fork_of_a_fork_needs_neither_of_the_two(self, make: Make, tmp_path: Path) -> None:
        store = make()
        answer(store, "a", TEXT[:300])
        assert store.begin("b", [*TEXT[:200], 7]) == 200
        store.forget("a")
        assert store.begin("c", [*TEXT[:250], 7]) == 200
        store.forget("b")
        store.close()
        store.wait()
        assert answer(make(), "c", TEXT[:210]).reused == 200, "also at the next start"
        assert len(list((tmp_path / "states").iterdir())) == 1

    def test_a_fork_begins_with_the_best_there_is(self, make: Make) -> None:
        store = make()
        assert store.begin("fork", TEXT[:100]) == 0
        answer(store, "a", OTHER[:300])
        answer(store, "b", TEXT[:150])
        assert store.begin("fork", TEXT[:200]) == 150
        assert places(store) == {"fork": "pool", "b": "pool", "a": "pool"}

    def test_a_damaged_file_is_no_fork_and_the_next_best_is(self, make: Make, tmp_path: Path) -> None:
        store = make()
        answer(store, "a", TEXT[:300])
        answer(store, "b", TEXT[:100])
        store.close()
        store.wait()
        store = make()
        assert set(places(store).values()) == {"disk"}
        path = KvFolder(tmp_path / "states", KEY, context=CONTEXT).path("a")
        raw = bytearray(path.read_bytes())
        raw[-1500] ^= 1
        path.write_bytes(raw)
        assert store.begin("fork", TEXT[:200]) == 100
        assert [notice.code for notice in store.take_notices()] == ["state-unusable"]

    def test_pages_that_forks_share_in_memory_are_counted_once(self, make: Make, tmp_path: Path) -> None:
        """A budget for one state is enough for all its forks, so none is written."""
        store = make(slots=1, ram=6 * GEOMETRY.page_bytes)
        answer(store, "a", TEXT[:320])
        lease = read(store, "other", [1])
        assert places(store)["a"] == "ram"
        for name in ("b", "c", "d"):
            assert store.begin(name, [*TEXT[:320], 1]) == 320
        store.give_back(lease)
        store.wait()
        assert places(store) == dict.fromkeys("dcba", "ram") | {"other": "pool"}
        assert not (tmp_path / "states").exists()


class TestSlots:
    def test_two_chats_at_once_with_one_slot(self, make: Make) -> None:
        """Neither may see the other's, and the second one is told that it has no place."""
        store = make(slots=1)
        first = read(store, "a", TEXT[:100])
        second = read(store, "b", OTHER[:130])
        assert (second.reused, codes(store, first), codes(store, second)) == (0, [], ["state-fallback"])
        assert places(store) == {"a": "pool", "b": "fallback"}
        ids = {"a": TEXT[:100], "b": OTHER[:130]}
        for token in (5, 6, 7):
            for lease in (first, second):
                ids[lease.conversation] = [*ids[lease.conversation], token]
                assert torch.equal(lease.decode(token), cold_logits(ids[lease.conversation]))
        assert codes(store, second) == [], "said once, not at every token"
        store.give_back(first)
        store.give_back(second)
        lease = answer(store, "b", [*ids["b"], 8])
        assert (lease.reused, codes(store, lease)) == (len(ids["b"]), [])
        assert places(store) == {"a": "ram", "b": "pool"}

    def test_returning_after_eight_others_reads_nothing_again(self, make: Make) -> None:
        store = make(slots=8)
        names = [f"chat {number}" for number in range(9)]
        for number, name in enumerate(names):
            answer(store, name, [number, *TEXT[:300]])
        assert places(store)["chat 0"] == "ram"
        assert answer(store, "chat 0", [0, *TEXT[:301]]).reused == 301

    def test_a_pool_that_runs_full_in_an_answer_parks_who_is_idle(self, make: Make) -> None:
        store = make(pages=4)
        answer(store, "a", TEXT[:100])
        lease = read(store, "b", OTHER[:100])
        for length in range(100, 140):
            assert torch.equal(lease.decode(OTHER[length]), cold_logits(OTHER[: length + 1]))
        store.give_back(lease)
        assert places(store) == {"a": "pool", "b": "pool"}, "the first page is shared"
        lease = answer(store, "c", [1, *TEXT[:190]])
        assert codes(store, lease) == []
        assert places(store)["c"] == "pool"

    def test_an_answer_that_outgrows_the_pool_moves_and_says_so_once(self, make: Make) -> None:
        store = make(pages=2)
        lease = read(store, "a", TEXT[:126])
        for length in range(126, 140):
            assert torch.equal(lease.decode(TEXT[length]), cold_logits(TEXT[: length + 1]))
        assert codes(store, lease) == ["state-fallback"]
        assert places(store) == {"a": "fallback"}
        store.give_back(lease)

    def test_no_memory_anywhere_changes_nothing(self, make: Make) -> None:
        store = make(pages=2, new_fallback=lambda: new_home(2))
        lease = read(store, "a", TEXT[:128])
        with pytest.raises(OutOfMemoryError, match=r"129 tokens \(3 pages\)"):
            lease.decode(5)
        assert list(lease.ids) == TEXT[:128]
        store.check()
        store.give_back(lease)
        assert answer(store, "a", TEXT[:128]).reused == 127

    def test_the_fallback_may_be_another_device(self, make: Make) -> None:
        store = make(slots=1, home=new_home(64, "cuda"))
        first, second = store.take("a", TEXT[:9]), store.take("b", OTHER[:9])
        assert (first.home.backend.device, second.home.backend.device) == ("cuda", "cpu")
        assert "the CPU" in second.take_notices()[0].message
        store.give_back(first)
        store.give_back(second)


class TestWhileComputing:
    def test_a_conversation_taken_again_has_a_state_of_its_own(self, make: Make) -> None:
        store = make()
        answer(store, "a", TEXT[:100])
        first = read(store, "a", TEXT[:101])
        second = read(store, "a", OTHER[:150])
        assert second.reused == 0
        store.give_back(second)
        store.give_back(first)  # too late: the conversation has another state by now
        store.give_back(first)
        assert answer(store, "a", OTHER[:160]).reused == 150

    def test_forgetting_keeps_nothing_of_the_answer(self, make: Make, tmp_path: Path) -> None:
        store = make()
        lease = read(store, "a", TEXT[:100])
        store.forget("a")
        assert torch.equal(lease.decode(5), cold_logits([*TEXT[:100], 5]))
        store.give_back(lease)
        assert store.table() == ()
        assert answer(store, "a", TEXT[:100]).reused == 0


class TestFaults:
    """`sound=False`: an answer ended in a way that nobody foresaw."""

    def test_what_was_live_is_not_read_again(self, make: Make) -> None:
        store = make()
        lease = read(store, "a", TEXT[:100])
        store.give_back(lease, sound=False)
        assert store.table() == ()
        lease = answer(store, "a", TEXT[:100])
        assert (lease.reused, lease.reason, codes(store, lease)) == (0, ReuseReason.EVICTED, [])

    @pytest.mark.parametrize("slots", [1, 2])
    def test_the_file_stays_and_serves_the_next_answer(self, slots: int, make: Make) -> None:
        store = make(slots=slots)
        answer(store, "a", TEXT[:100])
        store.close()
        store = make(slots=slots)
        other = read(store, "b", [7])
        lease = read(store, "a", TEXT[:150])  # with one slot, in a pool of its own
        store.give_back(lease, sound=False)
        assert places(store) == {"a": "disk", "b": "pool"}
        store.give_back(other)
        assert answer(store, "a", TEXT[:160]).reused == 100

    def test_a_file_that_is_just_being_written_is_not_waited_for(
        self, make: Make, slow_disk: threading.Event
    ) -> None:
        """What goes into it is in memory still."""
        store = make(slots=1, ram=0)
        answer(store, "a", TEXT[:100])
        answer(store, "b", [7])
        lease = read(store, "a", TEXT[:150])
        store.give_back(lease, sound=False)
        assert places(store) == {"a": "disk", "b": "ram"}
        assert answer(store, "a", TEXT[:160]).reused == 100
        assert not slow_disk.is_set()


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


class TestMemory:
    """Where the pool lies in the same memory as what is parked."""

    @pytest.mark.parametrize("room", [0, 1, 2])
    def test_parking_without_memory_for_the_copies_drops_the_state_and_says_so(
        self, room: int, make: Make
    ) -> None:
        home = new_home(64)
        pool = home.ledger.pool
        assert isinstance(pool, FakePool)
        store = make(home=home, slots=1)
        answer(store, "a", TEXT[:150])
        pool.room_for_copies = room
        answer(store, "b", OTHER[:150])
        pool.room_for_copies = None
        assert places(store) == {"b": "pool"}
        store.check()
        lease = store.take("a", [1, *TEXT[:150]])
        assert (lease.reused, lease.reason, codes(store, lease)) == (
            0,
            ReuseReason.EVICTED,
            ["state-dropped"],
        )
        store.give_back(lease)

    def test_a_full_memory_lets_parked_copies_go_oldest_first(self, make: Make) -> None:
        """Those that are not written yet are written; nothing has to be read again."""
        home = new_home(64)
        pool = home.ledger.pool
        assert isinstance(pool, FakePool)
        store = make(home=home, slots=1)
        for name, start in (("a", 1), ("b", 2)):
            answer(store, name, [start, *TEXT[:150]])
        lease = read(store, "c", [3, *TEXT[:60]])
        assert places(store) == {"c": "pool", "b": "ram", "a": "ram"}
        allocate = pool.allocate

        def allocate_beside_copies() -> int | None:
            """There is room for three pages, wherever they lie."""
            states = [*store._idle.values(), lease.state]
            copies = sum(len(state.ram.pages) for state in states if state.ram is not None)
            return allocate() if len(pool.pages) + copies < 5 else None

        pool.allocate = allocate_beside_copies  # type: ignore[method-assign]
        lease.prefill(TEXT[60:100])
        assert places(store) == {"c": "pool", "b": "ram", "a": "disk"}
        lease.prefill(TEXT[100:250])
        assert places(store) == {"c": "pool", "b": "disk", "a": "disk"}
        pool.allocate = allocate  # type: ignore[method-assign]
        assert codes(store, lease) == []
        store.give_back(lease)
        for name, start in (("a", 1), ("b", 2)):
            assert answer(store, name, [start, *TEXT[:151]]).reused == 151

    def test_a_copy_that_cannot_be_written_is_dropped_for_an_answer_and_told(
        self, make: Make, tmp_path: Path
    ) -> None:
        (tmp_path / "states").write_text("a file where the folder should be")
        home = new_home(64)
        store = make(home=home, slots=1)
        answer(store, "a", [1, *TEXT[:150]])
        lease = read(store, "b", [2, *TEXT[:60]])
        pool = home.ledger.pool
        assert isinstance(pool, FakePool)
        allocate = pool.allocate
        pool.allocate = lambda: allocate() if places(store).get("a") is None else None  # type: ignore[method-assign]
        lease.prefill(TEXT[60:100])
        pool.allocate = allocate  # type: ignore[method-assign]
        store.give_back(lease)
        assert places(store) == {"b": "pool"}
        lease = store.take("a", [1, *TEXT[:151]])
        assert (lease.reused, lease.reason) == (0, ReuseReason.EVICTED)
        assert codes(store, lease) == ["state-dropped", "states-not-kept"]
        store.give_back(lease)


class TestPlaces:
    def test_memory_then_disk_and_back(self, make: Make) -> None:
        store = make(slots=1, ram=3 * GEOMETRY.page_bytes)
        for name, start in (("a", 1), ("b", 2), ("c", 3)):
            answer(store, name, [start, *TEXT[:150]])
        store.wait()
        assert places(store) == {"a": "disk", "b": "ram", "c": "pool"}
        lease = answer(store, "a", [1, *TEXT[:151]])
        assert (lease.reused, lease.reason, codes(store, lease)) == (151, None, [])

    @pytest.mark.parametrize("hours", [0.5, 1000, -1000])
    def test_no_time_that_passes_drops_anything(
        self, hours: float, make: Make, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Also when the clock is set back: who was used last stays last."""
        store = make(slots=2, ram=3 * GEOMETRY.page_bytes)
        for name, start in (("a", 1), ("b", 2), ("c", 3), ("d", 4)):
            answer(store, name, [start, *TEXT[:150]])
        store.wait()
        before = places(store)
        now_ns = time.time_ns() + int(hours * 3600e9)
        monkeypatch.setattr("engine.states.store.time.time_ns", lambda: now_ns)
        assert places(store) == before == {"d": "pool", "c": "pool", "b": "ram", "a": "disk"}
        for name, start in (("a", 1), ("b", 2), ("c", 3), ("d", 4)):
            lease = answer(store, name, [start, *TEXT[:151]])
            assert (lease.reused, lease.reason) == (151, None)
            store.wait()
        assert list(places(store)) == ["d", "c", "b", "a"]

    def test_the_next_start_goes_on_without_reading_anything(self, make: Make) -> None:
        store = make()
        for name, start in (("a", 1), ("b", 2), ("c", 3)):
            answer(store, name, [start, *TEXT[:150]])
        store.close()
        store.wait()
        store = make()
        assert places(store) == {"c": "disk", "b": "disk", "a": "disk"}
        assert list(places(store)) == ["c", "b", "a"], "in the order in which they were used"
        for name, start in (("a", 1), ("b", 2), ("c", 3)):
            assert answer(store, name, [start, *TEXT[:151]]).reused == 151

    def test_what_is_being_answered_at_the_end_is_kept_as_far_as_it_came(
        self, make: Make, tmp_path: Path
    ) -> None:
        store = make()
        answer(store, "a", TEXT[:100])
        store.close()
        store = make()
        again = read(store, "a", TEXT[:150])
        forgotten = read(store, "b", [1, *TEXT[:150]])
        nameless = read(store, "", [2, *TEXT[:150]])
        store.forget("b")
        store.close()
        for lease in (again, forgotten, nameless):
            store.give_back(lease)
        store = make()
        assert list(places(store)) == ["a"]
        assert answer(store, "a", TEXT[:151]).reused == 150

    def test_another_model_finds_nothing_and_says_why(self, make: Make) -> None:
        store = make()
        answer(store, "a", TEXT[:150])
        store.close()
        other = make(model="another")
        lease = answer(other, "a", TEXT[:150])
        assert (lease.reused, lease.reason) == (0, ReuseReason.OTHER_MODEL)
        assert answer(make(), "a", TEXT[:151]).reused == 150, "the first one's is still there"

    def test_deleting_a_conversation_deletes_its_files_of_every_model(
        self, make: Make, tmp_path: Path
    ) -> None:
        for model in ("one", "two"):
            store = make(model=model)
            answer(store, "a", TEXT[:150])
            answer(store, "b", TEXT[:150])
            store.close()
        store.wait()
        assert forget_conversation(tmp_path / "states", "a") == ()
        assert places(make(model="one")) == {"b": "disk"}
        make(model="two").forget("b")
        assert list((tmp_path / "states").iterdir()) == []

    def test_deleting_while_it_is_written_leaves_nothing(
        self, make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        store = make()
        answer(store, "a", TEXT[:150])
        monkeypatch.setattr(
            PartFile, "sync", lambda file: forget_conversation(tmp_path / "states", "a") and None
        )
        store.close()
        store.wait()
        assert list((tmp_path / "states").iterdir()) == []

    def test_a_rewound_state_takes_its_file_along(self, make: Make, tmp_path: Path) -> None:
        """The file says more than is left of the conversation, so it goes at once."""
        store = make()
        answer(store, "a", TEXT[:150])
        store.close()
        store.wait()
        store = make()
        lease = store.take("a", OTHER[:120])
        assert lease.reused == 100
        assert list((tmp_path / "states").iterdir()) == []
        store.give_back(lease)

    def test_a_rewind_stops_every_write_of_what_was_longer(
        self, make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Two of the state wait behind another's, from two turns, when the person edits the first message."""
        may_end = threading.Event()
        monkeypatch.setattr(PartFile, "sync", lambda file: may_end.wait(60) and None)
        store = make(slots=1, ram=0)
        answer(store, "first", [1, *TEXT[:70]])
        answer(store, "a", TEXT[:100])
        answer(store, "second", [2, *TEXT[:70]])
        answer(store, "a", TEXT[:150])
        answer(store, "third", [3, *TEXT[:70]])
        answer(store, "a", [*TEXT[:40], *OTHER[:20]])
        may_end.set()
        store.wait()
        path = KvFolder(tmp_path / "states", KEY, context=CONTEXT).path("a")
        assert path.parent.exists()
        assert not path.exists()

    def test_of_two_writes_of_one_state_only_the_last_is_made(
        self, make: Make, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        begun, may_end, lengths = threading.Event(), threading.Event(), []

        def write(*args: Any, **settings: Any) -> PartFile:
            lengths.append(len(settings["ids"]))
            begun.set()
            assert may_end.wait(60)
            return write_kv_file(*args, **settings)

        monkeypatch.setattr("engine.states.kv_writer.write_kv_file", write)
        store = make(slots=1, ram=0)
        answer(store, "first", [1, *TEXT[:70]])
        answer(store, "a", TEXT[:100])
        assert begun.wait(60)
        answer(store, "second", [2, *TEXT[:70]])
        answer(store, "a", TEXT[:150])
        answer(store, "second", [2, *TEXT[:80]])
        may_end.set()
        store.wait()
        assert lengths == [71, 71, 150], "the state of 100 tokens was replaced in the queue"
        assert places(store) == {"first": "disk", "second": "pool", "a": "disk"}

    def test_what_has_to_make_room_on_disk_goes_oldest_first(self, make: Make) -> None:
        store = make(disk=20_000)
        for name, start in (("a", 1), ("b", 2), ("c", 3), ("d", 4)):
            answer(store, name, [start, *TEXT[:150]])
        store.close()
        store.wait()
        kept = places(make())
        assert list(kept) == ["d", "c"]

    def test_a_copy_in_memory_is_written_again_when_its_file_had_to_make_room(
        self, make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        may_end = threading.Event()
        monkeypatch.setattr(PartFile, "sync", lambda file: may_end.wait(60) and None)
        store = make(slots=1, ram=3 * GEOMETRY.page_bytes)
        for name, start in (("a", 1), ("b", 2), ("c", 3)):
            answer(store, name, [start, *TEXT[:150]])
        store.forget("b")
        may_end.set()
        store.wait()
        assert places(store) == {"a": "ram", "c": "pool"}
        [path] = (tmp_path / "states").iterdir()
        path.unlink()
        store.close()
        assert answer(make(), "a", [1, *TEXT[:151]]).reused == 151

    def test_rows_behind_the_tokens_never_leave_the_pool(self, make: Make, tmp_path: Path) -> None:
        """They may be left over from a text that was taken back, or from another conversation."""
        store = make()
        answer(store, "a", [*TEXT[:100], *[777] * 20])
        lease = store.take("a", [*TEXT[:100], 5])
        store.give_back(lease)
        store.close()
        store.wait()
        [path] = (tmp_path / "states").iterdir()
        assert (777).to_bytes(4, "little") not in path.read_bytes()


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
