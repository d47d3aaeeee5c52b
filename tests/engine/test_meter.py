"""What is counted of answers, of places in the pool and of memory."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest

from engine.generation import (
    DecodeStats,
    Finished,
    FinishReason,
    Prefilled,
    PrefillStats,
    SlotInfo,
    TextDelta,
)
from engine.meter import Meter
from engine.metrics import CardSpace, MemoryUse, Metrics, TokenWork, Work

MEMORY = MemoryUse(weight_bytes=700, cache_bytes=100, cache_pages=3)


class Device:
    """`work` is what the test says."""

    device = "cuda"

    def __init__(self) -> None:
        self.work = Work()

    def memory_use(self) -> MemoryUse:
        return MEMORY

    def run(self, launches: int = 10, uploads: int = 1, downloads: int = 1) -> None:
        done = self.work
        self.work = Work(done.launches + launches, done.uploads + uploads, done.downloads + downloads)


def meter() -> Meter:
    return Meter(most_slots=8, most_pages=64)


def slot(conversation: str, place: Any = "pool") -> SlotInfo:
    return SlotInfo(conversation, tokens=70, pages=2, place=place, reused=None, total=None)


def metrics(of: Meter, device: Device | None = None) -> Metrics:
    return of.metrics(device or Device())  # type: ignore[arg-type]


def finished(count: int, reason: FinishReason = FinishReason.LENGTH, *, reused: int = 4) -> Finished:
    return Finished(
        "", tuple(range(count)), reason, PrefillStats(10, reused, 2.0), DecodeStats(max(0, count - 1), 0.5)
    )


def watch(of: Meter, device: Device, events: list[Any]) -> list[Any]:
    """A function among the events is called where it stands."""

    def made() -> Any:
        for event in events:
            if callable(event):
                event()
            else:
                yield event

    return list(of.watched(made(), lambda: device.work))


TEXT = TextDelta("a", 1)


def test_an_answer_s_events_are_passed_on_as_they_are() -> None:
    events = [Prefilled(PrefillStats(10, 4, 2.0)), TEXT, TextDelta("", 2), finished(2)]
    assert watch(meter(), Device(), events) == events


def test_only_decode_steps_are_counted_and_by_the_token() -> None:
    of, device = meter(), Device()
    device.run(1000, 50, 50)  # the load
    prompt = lambda: device.run(500, 7, 3)  # noqa: E731
    tokens = [[device.run, TEXT] for _ in range(5)]
    watch(of, device, [prompt, Prefilled(finished(6).prefill), TEXT, *itertools.chain(*tokens), finished(6)])
    device.run(5, 9, 9)  # what comes behind: a page for the disk
    last = metrics(of).last_answer
    assert last is not None
    assert last.work == Work(50, 5, 5)
    each = last.token_work
    assert (each.launches_per_token, each.h2d_per_token, each.d2h_per_token) == (10.0, 1.0, 1.0)
    assert last.prefill.tokens_per_second == 3.0
    assert last.decode.tokens_per_second == 10.0


def test_what_tokens_ask_for_is_known_in_the_middle_of_an_answer_and_goes_with_it() -> None:
    of, device, seen = meter(), Device(), []
    look = lambda: seen.append(metrics(of).this_answer)  # noqa: E731
    steps = [device.run, TEXT, look, lambda: device.run(30, 3, 1), TEXT, look]
    watch(of, device, [look, Prefilled(finished(3).prefill), TEXT, look, *steps, finished(3)])
    assert seen == [None, TokenWork(0, Work()), TokenWork(1, Work(10, 1, 1)), TokenWork(2, Work(40, 4, 2))]
    assert metrics(of).this_answer is None
    last = metrics(of).last_answer
    assert last is not None
    assert last.token_work == seen[-1]


def test_an_answer_that_breaks_off_leaves_nothing_of_itself() -> None:
    of, device = meter(), Device()

    def fail() -> None:
        raise RuntimeError

    with pytest.raises(RuntimeError):
        watch(of, device, [Prefilled(finished(3).prefill), TEXT, fail])
    assert metrics(of).this_answer is None


def test_a_copy_too_many_shows() -> None:
    of, device = meter(), Device()
    steps = [device.run, TEXT, lambda: device.run(10, 3, 1), TEXT]
    watch(of, device, [Prefilled(finished(3).prefill), TEXT, *steps, finished(3)])
    last = metrics(of).last_answer
    assert last is not None
    assert (last.token_work.h2d_per_token, last.token_work.d2h_per_token) == (2.0, 1.0)


@pytest.mark.parametrize("held_back", [True, False])
def test_a_step_that_was_given_up_is_no_token_s(held_back: bool) -> None:
    of, device = meter(), Device()
    broken = lambda: device.run(3, 1, 0)  # noqa: E731
    rest = [TextDelta("rest", 1)] if held_back else []
    watch(
        of,
        device,
        [
            Prefilled(finished(2).prefill),
            TEXT,
            device.run,
            TEXT,
            broken,
            *rest,
            finished(2, FinishReason.CANCELLED),
        ],
    )
    last = metrics(of).last_answer
    assert last is not None
    assert last.work == Work(10, 1, 1)


def test_an_answer_of_no_decoded_token_has_no_rates() -> None:
    of, device = meter(), Device()
    watch(of, device, [Prefilled(finished(1).prefill), TEXT, finished(1)])
    last = metrics(of).last_answer
    assert last is not None
    assert last.token_work.h2d_per_token == last.token_work.launches_per_token == 0.0


def test_a_prompt_that_was_given_up_is_an_answer_too() -> None:
    of, device = meter(), Device()
    device.run(100, 5, 5)
    watch(of, device, [lambda: device.run(7, 1, 0), finished(0, FinishReason.CANCELLED)])
    last = metrics(of).last_answer
    assert last is not None
    assert last.work == Work()


def test_reused_tokens_add_up_over_answers() -> None:
    of, device = meter(), Device()
    for reused in (4, 0, 9):
        watch(of, device, [finished(2, reused=reused)])
    assert metrics(of).reused_tokens == 13


def test_leaving_the_pool_for_anywhere_is_an_eviction_and_being_forgotten_is_none() -> None:
    of = meter()
    of.look([slot("a"), slot("b"), slot("c"), slot("d"), slot("")])
    assert metrics(of).slots == 4
    of.look([slot("a"), slot("b", "ram"), slot("c", "disk")])
    assert (metrics(of).evictions, metrics(of).slots) == (3, 1)
    of.look([slot("a"), slot("b", "ram"), slot("c", "disk")])
    of.look([slot("a"), slot("b", "disk"), slot("c")])
    assert metrics(of).evictions == 3, "nothing left the pool"
    of.forget("a")
    of.look([slot("b", "disk"), slot("c")])
    assert metrics(of).evictions == 3
    of.look([slot("b", "disk"), slot("c", "ram")])
    assert metrics(of).evictions == 4, "a second time counts"


def test_each_fallback_counts_once() -> None:
    of = meter()
    of.look([slot("a")])
    for _ in range(3):
        of.look([slot("a", "fallback")])
    of.look([slot("a", "ram")])
    assert (metrics(of).fallbacks, metrics(of).evictions) == (1, 0)
    of.look([slot("a", "fallback")])
    assert metrics(of).fallbacks == 2


def test_what_others_have_of_a_card_is_what_is_left_of_it() -> None:
    used = MemoryUse(50, 20, 2, workspace_bytes=10, card=CardSpace("A card", 1000, 700))
    assert used.other_bytes == 220
    assert used.as_json() == {
        "card": "A card",
        "total_bytes": 1000,
        "bytes": {"weights": 50, "cache": 20, "workspace": 10, "other_programs": 220, "free": 700},
    }
    assert MemoryUse(50, 20, 2, card=CardSpace("A card", 1000, 990)).other_bytes == 0, "never below none"
    assert MEMORY.other_bytes == 0
    assert MEMORY.as_json()["card"] is None


def test_the_record_is_json_before_and_after_an_answer() -> None:
    of = meter()
    first = json.loads(json.dumps(metrics(of).as_json()))
    assert first["last_answer"] is None
    assert first["slots"] == {"used": 0, "most": 8}
    assert first["pages"] == {"used": 3, "most": 64}
    watch(of, Device(), [finished(3)])
    last = json.loads(json.dumps(metrics(of).as_json()))["last_answer"]
    assert {"h2d_per_token", "d2h_per_token", "launches_per_token", "reused_tokens"} <= set(last)
