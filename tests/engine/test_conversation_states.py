"""How much of conversations is kept, and where: as chosen."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from engine.checkpoints.model_folder import open_model
from engine.config import EngineConfig
from engine.conversation_states import default_ram_budget
from engine.cpu.memory import RESERVE_BYTES
from engine.default_folders import states_folder
from engine.engine import Engine
from engine.errors import Cancelled
from engine.generation import GenerationRequest
from engine.states.kv_folder import used_bytes
from engine.states.kv_writer import pending_bytes
from engine.weights.part_file import PartFile

MODEL = Path(__file__).parents[1] / "models" / "tiny-qwen2"
PLENTY = 10**9
CHATS = ("a", "b", "c")

Load = Callable[..., Engine]


@pytest.fixture
def load() -> Iterator[Load]:
    """One slot, so that a chat leaves the pool as soon as another one begins."""
    engines: list[Engine] = []

    def load_model(**budgets: Any) -> Engine:
        config: dict[str, Any] = {"device": "cpu", "weights": "native", "slots": 1, "context": 256}
        engines.append(Engine.load(open_model(MODEL), EngineConfig(**(config | budgets))))
        return engines[-1]

    yield load_model
    for each in engines:
        each.close()
        each.late_notices(wait=True)


def talk(engine: Engine) -> None:
    for number, chat in enumerate(CHATS):
        request = GenerationRequest(tuple(range(number, number + 70)), conversation=chat, max_new_tokens=1)
        assert list(engine.generate(request))
        engine.late_notices(wait=True)


def places(engine: Engine) -> dict[str, str]:
    return {slot.conversation: slot.place for slot in engine.slot_table()}


@pytest.mark.parametrize(
    ("ram", "disk", "first_chats"),
    [
        (PLENTY, PLENTY, "ram"),
        (PLENTY, 0, "ram"),
        (0, PLENTY, "disk"),
        (0, 0, None),
    ],
)
def test_chats_that_leave_the_pool_go_where_the_budgets_let_them(
    load: Load, ram: int, disk: int, first_chats: str | None
) -> None:
    engine = load(state_ram_budget=ram, state_disk_budget=disk)
    talk(engine)
    left = dict.fromkeys(CHATS[:-1], first_chats) if first_chats else {}
    assert places(engine) == {**left, CHATS[-1]: "pool"}
    assert (used_bytes(states_folder()) > 0) == (first_chats == "disk")


@pytest.mark.parametrize(("disk", "num_left"), [(PLENTY, 3), (0, 0)])
def test_what_the_next_start_finds_is_what_the_disk_may_hold(load: Load, disk: int, num_left: int) -> None:
    engine = load(state_ram_budget=PLENTY, state_disk_budget=disk)
    talk(engine)
    engine.close()
    assert engine.late_notices(wait=True) == ()
    assert len(list(states_folder().glob("*.safetensors"))) == num_left
    assert len(places(load(state_disk_budget=disk))) == num_left


def test_other_budgets_hold_at_once(load: Load) -> None:
    engine = load(state_ram_budget=PLENTY, state_disk_budget=PLENTY)
    talk(engine)
    engine.limit_states(ram_budget=0, disk_budget=PLENTY)
    engine.late_notices(wait=True)
    assert places(engine) == {"a": "disk", "b": "disk", "c": "pool"}
    engine.limit_states(ram_budget=0, disk_budget=0)
    assert used_bytes(states_folder()) == 0
    talk(engine)
    assert places(engine) == {"c": "pool"}
    engine.limit_states(ram_budget=None, disk_budget=None)
    talk(engine)
    assert places(engine) == {"a": "ram", "b": "ram", "c": "pool"}


def test_without_a_choice_memory_takes_a_quarter_of_what_is_free_and_four_gib_at_most(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for free, budget in ((0, 0), (RESERVE_BYTES, 0), (RESERVE_BYTES + 400, 100), (2**40, 4 * 2**30)):
        monkeypatch.setattr("engine.conversation_states.available_bytes", lambda free=free: free)
        assert default_ram_budget() == budget


def test_memory_that_becomes_free_after_the_load_is_used(load: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    """The model before it has gone only now, or its states are only now written."""
    free = 0
    monkeypatch.setattr("engine.conversation_states.available_bytes", lambda: free)
    engine = load()
    talk(engine)
    assert places(engine) == {"a": "disk", "b": "disk", "c": "pool"}
    free = 2**40
    talk(engine)
    assert places(engine) == {"a": "ram", "b": "ram", "c": "pool"}
    taken = default_ram_budget(400)
    free = RESERVE_BYTES
    assert (taken, default_ram_budget(400)) == (4 * 2**30, 100), "what is taken already counts as free"


class TestLoadsBehindOthers:
    """An unloaded model's states are still being written, and take memory that the next one is to have."""

    @pytest.fixture
    def slow_disk(self, monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
        go_on, sync = threading.Event(), PartFile.sync

        def slow_sync(file: PartFile) -> None:
            assert go_on.wait(60)
            sync(file)

        monkeypatch.setattr(PartFile, "sync", slow_sync)
        yield go_on
        go_on.set()

    @pytest.fixture
    def left_behind(self, load: Load, slow_disk: threading.Event) -> None:
        engine = load()
        assert list(engine.generate(GenerationRequest((1, 2, 3), conversation="a", max_new_tokens=1)))
        engine.close()

    def test_a_model_that_fits_once_they_are_written_waits_for_that(
        self, load: Load, left_behind: None, slow_disk: threading.Event, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        looks = 0

        def free() -> int:
            nonlocal looks
            looks += 1
            if looks == 3:
                slow_disk.set()
            return RESERVE_BYTES if pending_bytes() else 2**40

        assert pending_bytes() > 0
        for where in ("engine.loading", "engine.cpu.memory"):
            monkeypatch.setattr(f"{where}.available_bytes", free)
        engine = load(weights="auto")
        assert pending_bytes() == 0
        assert "weights-packed-to-fit" not in [notice.code for notice in engine.summary.notices]

    def test_one_that_fits_beside_them_does_not_wait(
        self, load: Load, left_behind: None, slow_disk: threading.Event
    ) -> None:
        load()
        assert pending_bytes() > 0
        assert not slow_disk.is_set()

    def test_a_load_that_waits_for_them_can_be_cancelled(
        self, left_behind: None, slow_disk: threading.Event, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        cancel = threading.Event()

        def free() -> int:
            cancel.set()
            return RESERVE_BYTES

        monkeypatch.setattr("engine.loading.available_bytes", free)
        with pytest.raises(Cancelled):
            Engine.load(open_model(MODEL), EngineConfig(weights="native"), cancel=cancel)
        assert not slow_disk.is_set()


def test_the_files_lie_where_they_are_to(load: Load, tmp_path: Path) -> None:
    engine = load(states_folder=tmp_path / "states")
    talk(engine)
    engine.close()
    engine.late_notices(wait=True)
    assert used_bytes(tmp_path / "states") > 0
    assert not states_folder().exists()
    assert set(places(load(states_folder=tmp_path / "states"))) == set(CHATS)
