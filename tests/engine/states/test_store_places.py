"""States that leave the pool: for memory, for files, and back, as budgets have it."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import pytest
from state_fakes import GEOMETRY
from state_steps import CONTEXT, KEY, OTHER, RAM, TEXT, Make, answer, codes, places, read, write_state

from engine.generation import ReuseReason
from engine.states.kv_file import write_kv_file
from engine.states.kv_folder import KvFolder, forget_conversation
from engine.weights.part_file import PartFile


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

    def test_a_file_that_comes_after_the_start_is_used_as_well(self, make: Make, tmp_path: Path) -> None:
        """Another window's, or of a program that was still writing it when this one began."""
        store = make()
        assert answer(store, "b", [1, *TEXT[:10]]).reason is ReuseReason.NEW
        path = KvFolder(tmp_path / "states", KEY, context=CONTEXT).path("a")
        write_state("a", TEXT[:150], path)
        lease = answer(store, "a", TEXT[:160])
        assert (lease.reused, lease.reason, codes(store, lease)) == (150, None, [])
        store.forget("a")
        assert answer(store, "a", TEXT[:160]).reused == 0

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

    def test_less_memory_sends_everything_to_disk_and_loses_nothing(
        self, make: Make, slow_disk: threading.Event
    ) -> None:
        store = make(slots=1)
        names = [f"chat {number}" for number in range(12)]
        for number, name in enumerate(names):
            answer(store, name, [number, *TEXT[:100]])
        store.limit(ram_budget=0, disk_budget=None)
        assert set(places(store)) == set(names)
        slow_disk.set()
        store.wait()
        assert places(store) == {**dict.fromkeys(names, "disk"), names[-1]: "pool"}

    def test_what_is_too_much_for_a_slow_disk_is_lost_oldest_first(
        self, make: Make, slow_disk: threading.Event
    ) -> None:
        """When other programs take the memory, many states have to leave it at once."""
        free = [RAM]
        store = make(slots=1, ram=lambda _taken: free[0])
        for number in range(12):
            answer(store, f"chat {number}", [number, *TEXT[:100]])
        free[0] = 0
        assert list(places(store)) == [f"chat {number}" for number in (11, 10, 9, 8, 7)]
        slow_disk.set()

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


class TestFreedByHand:
    """Somebody wants the memory now: what idle states have of it goes, what lies on disk stays."""

    def test_idle_states_leave_pool_and_memory_for_their_files(
        self, make: Make, slow_disk: threading.Event
    ) -> None:
        store = make(slots=2)
        for name, start in (("a", 1), ("b", 2), ("c", 3)):
            answer(store, name, [start, *TEXT[:150]])
        assert places(store) == {"c": "pool", "b": "pool", "a": "ram"}
        store.free_idle()
        assert places(store) == {"c": "ram", "b": "ram", "a": "ram"}, "as long as no file is whole"
        slow_disk.set()
        store.wait()
        assert places(store) == {"c": "disk", "b": "disk", "a": "disk"}
        assert answer(store, "b", [2, *TEXT[:160]]).reused == 151

    def test_the_one_that_is_being_answered_stays_where_it_is(self, make: Make) -> None:
        store = make(slots=2)
        answer(store, "idle", [1, *TEXT[:150]])
        lease = store.take("busy", [2, *TEXT[:150]])
        store.free_idle()
        store.wait()
        assert places(store) == {"busy": "pool", "idle": "disk"}
        store.give_back(lease)

    def test_one_that_goes_on_meanwhile_keeps_its_place(self, make: Make, slow_disk: threading.Event) -> None:
        store = make(slots=2)
        answer(store, "a", [1, *TEXT[:150]])
        store.free_idle()
        answer(store, "a", [1, *TEXT[:170]])
        slow_disk.set()
        store.wait()
        assert places(store) == {"a": "pool"}

    @pytest.mark.parametrize("settings", [{"disk": 0}, {"keeps": False}])
    def test_what_may_not_be_kept_on_disk_is_let_go(self, make: Make, settings: dict[str, Any]) -> None:
        """It is read again when its conversation goes on."""
        store = make(slots=1, **settings)
        answer(store, "a", [1, *TEXT[:150]])
        store.free_idle()
        store.wait()
        assert places(store) == {}
        assert answer(store, "a", [1, *TEXT[:150]]).reused == 0
