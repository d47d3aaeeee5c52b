"""What conversations share, what moves where, and what is said of it; a fake backend shows wrong bytes."""

from __future__ import annotations

import threading
from functools import partial
from pathlib import Path

import pytest
import torch
from state_fakes import GEOMETRY, FakePool, cold_logits, new_home
from state_steps import CONTEXT, KEY, OTHER, RAM, TEXT, Make, answer, codes, places, read

from engine.errors import Cancelled, OutOfMemoryError
from engine.generation import ReuseReason
from engine.kv_geometry import PAGE
from engine.states.kv_folder import KvFolder


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

    def test_a_next_turn_of_which_another_has_more_is_no_rewritten_history(self, make: Make) -> None:
        store = make()
        answer(store, "a", TEXT[:100])
        answer(store, "b", [*TEXT[:120], 999])
        lease = answer(store, "a", TEXT[:150])
        assert (lease.reused, lease.reason, lease.diverged_at) == (120, None, None)

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

    @pytest.mark.parametrize("decode", [True, False])
    def test_an_answer_that_waits_for_the_disk_to_have_memory_can_be_stopped(
        self, decode: bool, make: Make, slow_disk: threading.Event
    ) -> None:
        home = new_home(64)
        pool = home.ledger.pool
        assert isinstance(pool, FakePool)
        store = make(home=home, slots=1)
        answer(store, "a", [1, *TEXT[:150]])
        lease = read(store, "b", [2, *TEXT[:63]])
        allocate = pool.allocate
        pool.allocate = lambda: None  # type: ignore[method-assign]
        cancel = threading.Event()
        cancel.set()
        step = partial(lease.decode, 5) if decode else partial(lease.prefill, [5, 6])
        with pytest.raises(Cancelled):
            step(cancel=cancel)
        assert not slow_disk.is_set()
        pool.allocate = allocate  # type: ignore[method-assign]
        assert list(lease.ids) == [2, *TEXT[:63]]
        store.give_back(lease)
        assert answer(store, "a", [1, *TEXT[:151]]).reused == 151

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
