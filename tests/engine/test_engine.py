from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from model_files import TINY_MODELS, copy_model, edit_json

from engine.checkpoints.model_folder import open_model
from engine.config import EngineConfig
from engine.cpu.backend import PREFILL_BLOCK
from engine.engine import Engine
from engine.errors import (
    ComputeFaultError,
    ContextFullError,
    SettingError,
)
from engine.generation import (
    Finished,
    FinishReason,
    GenerationEvent,
    GenerationRequest,
    Prefilled,
    ReuseReason,
    SamplingParams,
    TextDelta,
)
from engine.notices import Notice

MODEL = TINY_MODELS / "tiny-qwen2"
CPU = EngineConfig(device="cpu", weights="native")
PROMPT = tuple(random.Random(7).choices(range(480), k=40))

Load = Callable[..., Engine]
Cold = Callable[..., Finished]


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    loaded = Engine.load(open_model(MODEL), CPU)
    yield loaded
    loaded.close()


@pytest.fixture(scope="module")
def cold() -> Iterator[Cold]:
    """Answers by an engine that keeps nothing: every prompt is read from its beginning."""
    loaded = Engine.load(open_model(MODEL), CPU)

    def cold_answer(prompt: Sequence[int] = PROMPT, **request: Any) -> Finished:
        finished = answer(loaded, prompt, **request)
        assert finished.prefill.reused == 0
        return finished

    yield cold_answer
    loaded.close()


@pytest.fixture
def load() -> Iterator[Load]:
    """Loads a folder with settings, and closes the engine after the test."""
    engines: list[Engine] = []

    def load_folder(path: Path = MODEL, **settings: Any) -> Engine:
        engines.append(
            Engine.load(open_model(path), EngineConfig(**{"device": "cpu", "weights": "native", **settings}))
        )
        return engines[-1]

    yield load_folder
    for each in engines:
        each.close()


def events(engine: Engine, prompt: Sequence[int] = PROMPT, **request: Any) -> list[GenerationEvent]:
    settings = {"max_new_tokens": 8, "ignore_eos": True, **request}
    return list(engine.generate(GenerationRequest(tuple(prompt), **settings)))


def answer(engine: Engine, prompt: Sequence[int] = PROMPT, **request: Any) -> Finished:
    finished = events(engine, prompt, **request)[-1]
    assert isinstance(finished, Finished)
    return finished


class CountingEvent(threading.Event):
    """Set from its n-th look on, as if another thread had set it just then."""

    def __init__(self, looks: int) -> None:
        super().__init__()
        self._left = looks

    def is_set(self) -> bool:
        self._left -= 1
        return self._left < 0


class TestEvents:
    def test_prefilled_then_a_delta_for_each_token_then_finished(self, engine: Engine) -> None:
        first, *deltas, last = events(engine)
        assert isinstance(first, Prefilled)
        assert (first.stats.tokens, first.stats.reused) == (len(PROMPT), 0)
        assert first.stats.seconds > 0
        assert isinstance(last, Finished)
        assert all(isinstance(delta, TextDelta) for delta in deltas)
        assert [delta.token_id for delta in deltas if isinstance(delta, TextDelta)] == list(last.token_ids)
        assert "".join(delta.text for delta in deltas if isinstance(delta, TextDelta)) == last.text
        assert (last.finish_reason, len(last.token_ids)) == (FinishReason.LENGTH, 8)
        assert last.decode.tokens == 7  # the first came from the prefill
        assert last.decode.seconds > 0

    def test_time_that_the_consumer_takes_is_not_counted(
        self, engine: Engine, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """With a clock that stands while the engine works, whatever is counted is the consumer's."""
        now, seen = 0.0, []
        monkeypatch.setattr("engine.answering.time.perf_counter", lambda: now)
        for event in engine.generate(GenerationRequest(PROMPT, max_new_tokens=3, ignore_eos=True)):
            seen.append(event)
            now += 100.0
        finished = seen[-1]
        assert isinstance(finished, Finished)
        assert (finished.prefill.seconds, finished.decode.seconds) == (0.0, 0.0)

    def test_no_new_tokens_reads_the_prompt_only(self, engine: Engine) -> None:
        first, last = events(engine, max_new_tokens=0)
        assert isinstance(first, Prefilled)
        assert isinstance(last, Finished)
        assert (last.text, last.token_ids, last.finish_reason) == ("", (), FinishReason.LENGTH)

    def test_the_same_seed_draws_the_same_tokens(self, engine: Engine) -> None:
        def drawn(seed: int | None) -> Finished:
            return answer(engine, sampling=SamplingParams(temperature=2.0, seed=seed), max_new_tokens=20)

        assert drawn(5).token_ids == drawn(5).token_ids
        assert drawn(5).token_ids != drawn(6).token_ids
        fresh = drawn(None)
        assert fresh.seed is not None
        assert drawn(fresh.seed).token_ids == fresh.token_ids


class TestEnding:
    @pytest.fixture
    def greedy(self, engine: Engine) -> tuple[int, ...]:
        return answer(engine, max_new_tokens=20).token_ids

    @pytest.mark.parametrize("as_list", [True, False])
    def test_any_end_token_ends_the_answer_and_is_no_part_of_the_text(
        self, as_list: bool, tmp_path: Path, load: Load, greedy: tuple[int, ...]
    ) -> None:
        position = next(i for i in range(2, 20) if greedy[i] not in greedy[:i])
        end = greedy[position]
        folder = copy_model("tiny-qwen2", tmp_path / "model")
        value = [end, 495] if as_list else end
        edit_json(folder / "generation_config.json", lambda config: config.update(eos_token_id=value))
        ended = load(folder)
        finished = answer(ended, max_new_tokens=20, ignore_eos=False)
        assert finished.finish_reason is FinishReason.END
        assert finished.token_ids == greedy[: position + 1]
        assert finished.text == answer(ended, max_new_tokens=position).text
        assert answer(ended, max_new_tokens=20, ignore_eos=True).token_ids == greedy

    def test_the_tokenizers_own_end_token_counts_as_well(
        self, tmp_path: Path, load: Load, greedy: tuple[int, ...]
    ) -> None:
        """Folders are common whose config and tokenizer name different ones; either ends the answer."""
        folder = copy_model("tiny-qwen2", tmp_path / "model")
        edit_json(folder / "generation_config.json", lambda config: config.update(eos_token_id=480))
        edit_json(folder / "config.json", lambda config: config.update(eos_token_id=481))
        engine = load(folder)
        assert {480, 481, 495} <= engine._end_ids

    def test_a_stop_string_ends_the_answer_and_is_no_part_of_the_text(self, engine: Engine) -> None:
        text = answer(engine, max_new_tokens=20).text
        stop = text[len(text) // 2 :][:3]
        finished = answer(engine, max_new_tokens=20, stop=("never in it", stop))
        assert finished.finish_reason is FinishReason.STOP
        assert finished.text == text[: text.index(stop)]
        assert len(finished.token_ids) < 20

    def test_what_a_stop_string_held_back_is_given_out_at_the_end(self, engine: Engine) -> None:
        text = answer(engine).text
        assert answer(engine, stop=(text[-1] + " and more",)).text == text

    @pytest.mark.parametrize(
        ("prompt", "max_new", "tokens", "reason"),
        [
            (50, None, 14, FinishReason.CONTEXT),
            (50, 100, 14, FinishReason.CONTEXT),
            (50, 14, 14, FinishReason.LENGTH),
            (50, 13, 13, FinishReason.LENGTH),
            (63, None, 1, FinishReason.CONTEXT),
            (64, 0, 0, FinishReason.LENGTH),
        ],
    )
    def test_prompt_and_answer_together_fill_the_context_and_no_more(
        self, prompt: int, max_new: int | None, tokens: int, reason: FinishReason, load: Load
    ) -> None:
        finished = answer(load(context=64), (PROMPT * 2)[:prompt], max_new_tokens=max_new)
        assert (len(finished.token_ids), finished.finish_reason) == (tokens, reason)

    @pytest.mark.parametrize(("prompt", "max_new"), [(64, None), (64, 1), (65, None), (65, 0)])
    def test_a_prompt_that_leaves_no_room_is_refused_with_both_numbers(
        self, prompt: int, max_new: int | None, load: Load
    ) -> None:
        engine = load(context=64)
        with pytest.raises(ContextFullError, match=rf"\b{prompt} tokens.*\b64\b"):
            engine.generate(GenerationRequest((PROMPT * 2)[:prompt], max_new_tokens=max_new))

    def test_large_numbers_of_tokens_are_grouped_by_thousands(self, load: Load) -> None:
        engine = load(context=1064)
        with pytest.raises(ContextFullError, match=r"1,065 tokens.*\b1,064\b"):
            engine.generate(GenerationRequest((1,) * 1065))
        with pytest.raises(ContextFullError, match=r"1,064 tokens.*\b1,064\b"):
            engine.generate(GenerationRequest((1,) * 1064))
        with pytest.raises(ContextFullError, match=r"1,065 tokens.*\b1,064\b"):
            engine.score((1,) * 1065)

    def test_what_the_backend_says_in_mid_answer_comes_with_that_answer_and_no_other(
        self, load: Load
    ) -> None:
        engine = load()
        backend, notice = engine._backend, Notice("card-recording-refused", "Tokens take longer.")
        assert backend is not None
        said = [*backend.notices]
        request = GenerationRequest(PROMPT, max_new_tokens=4, ignore_eos=True)
        running = engine.generate(request)
        assert isinstance(next(running), Prefilled)
        backend.notices = (*said, notice)  # type: ignore[misc]
        *_, finished = running
        assert isinstance(finished, Finished)
        assert finished.notices == (notice,)
        assert answer(engine).notices == ()
        assert engine.late_notices(wait=True) == ()


class TestRequests:
    @pytest.mark.parametrize(
        ("prompt", "request_settings", "words"),
        [
            ((), {}, "empty"),
            ((1, -1), {}, "-1"),
            ((1, 512), {}, "512"),
            ((1, 2**63), {}, str(2**63)),
            ((1,), {"max_new_tokens": -1}, "-1"),
            ((1,), {"sampling": SamplingParams(temperature=-0.5)}, "-0.5"),
            ((1,), {"stop": ("",)}, "stop string"),
        ],
    )
    def test_what_makes_no_sense_is_refused_at_once(
        self, prompt: tuple[int, ...], request_settings: dict[str, Any], words: str, engine: Engine
    ) -> None:
        with pytest.raises(SettingError, match=words):
            engine.generate(GenerationRequest(prompt, **request_settings))

    def test_text_never_becomes_a_control_token(self, engine: Engine) -> None:
        assert not {495, 494} & set(engine.encode("<|im_end|><|im_start|>"))


class TestConversations:
    def test_the_next_turn_reads_only_what_is_new(self, load: Load, cold: Cold) -> None:
        engine = load()
        first = answer(engine, conversation="turns")
        prompt = (*PROMPT, *first.token_ids, 5, 6, 7)
        second = answer(engine, prompt, conversation="turns")
        # The last token of an answer is drawn and not run, so it is read with the next turn.
        assert second.prefill.reused == len(PROMPT) + len(first.token_ids) - 1
        assert second.token_ids == cold(prompt).token_ids
        engine.forget("turns")
        assert answer(engine, prompt, conversation="turns").prefill.reused == 0

    def test_the_same_prompt_again_gives_the_same_answer(self, engine: Engine) -> None:
        """Everything is cached then; one token still has to run for its logits."""
        first = answer(engine, conversation="again")
        second = answer(engine, conversation="again")
        assert second.prefill.reused == len(PROMPT) - 1
        assert second.token_ids == first.token_ids

    def test_interleaved_conversations_equal_cold_runs(self, load: Load, cold: Cold) -> None:
        """Five chats in three slots, in random turns with random cuts: none may see another's cache."""
        engine, chance = load(slots=3), random.Random(11)
        system = list(PROMPT[:20])  # they all begin alike
        chats = {name: [*system, chance.randrange(480)] for name in "abcde"}
        parked = 0
        for _ in range(40):
            name = chance.choice("abcde")
            ids = chats[name]
            del ids[max(21, len(ids) - chance.randrange(12)) :]
            ids += chance.choices(range(480), k=chance.randrange(1, 9))
            warm = answer(engine, ids, conversation=name, max_new_tokens=5)
            assert warm.token_ids == cold(ids, max_new_tokens=5).token_ids
            assert warm.notices == ()
            parked += sum(row.place == "ram" for row in engine.slot_table())
            ids += warm.token_ids
        assert parked > 3, "the slots were too many to show anything"

    def test_two_answers_at_the_same_time_do_not_mix(self, engine: Engine, cold: Cold) -> None:
        prompts = {"left": PROMPT, "right": PROMPT[::-1]}
        streams = {
            name: engine.generate(
                GenerationRequest(prompt, max_new_tokens=8, ignore_eos=True, conversation=name)
            )
            for name, prompt in prompts.items()
        }
        last: dict[str, GenerationEvent] = {}
        for pair in zip(*streams.values(), strict=True):
            last.update(zip(streams, pair, strict=True))
        for name, prompt in prompts.items():
            finished = last[name]
            assert isinstance(finished, Finished)
            assert finished.token_ids == cold(prompt).token_ids

    def test_a_new_conversation_begins_with_what_another_has_read(self, load: Load, cold: Cold) -> None:
        engine = load()
        answer(engine, conversation="first")
        prompt = (*PROMPT[:30], 5, 6, 7)
        second = answer(engine, prompt, conversation="second")
        assert (second.prefill.reused, second.prefill.reason) == (30, ReuseReason.NEW)
        assert second.token_ids == cold(prompt).token_ids

    def test_the_next_start_goes_on_where_the_last_one_ended(self, load: Load, cold: Cold) -> None:
        first = load()
        kept = answer(first, conversation="kept")
        first.close()
        prompt = (*PROMPT, *kept.token_ids, 9)
        second = load()
        assert [row.place for row in second.slot_table()] == ["disk"]
        warm = answer(second, prompt, conversation="kept")
        assert (warm.prefill.reused, warm.prefill.reason) == (len(prompt) - 2, None)
        assert warm.token_ids == cold(prompt).token_ids
        second.forget("kept")
        second.close()
        assert load().slot_table() == ()

    def test_a_cache_of_another_form_is_not_used(self, load: Load) -> None:
        first = load(kv="int8")
        answer(first, conversation="kept")
        first.close()
        other = answer(load(kv="native"), conversation="kept")
        assert (other.prefill.reused, other.prefill.reason) == (0, ReuseReason.OTHER_MODEL)

    def test_a_second_answer_without_a_slot_says_where_it_is_computed(self, load: Load, cold: Cold) -> None:
        engine = load(slots=1)
        settings = {"max_new_tokens": 4, "ignore_eos": True}
        first = engine.generate(GenerationRequest(PROMPT, conversation="first", **settings))
        next(first)
        second = answer(engine, PROMPT[::-1], conversation="second", max_new_tokens=4)
        assert [notice.code for notice in second.notices] == ["state-fallback"]
        assert second.token_ids == cold(PROMPT[::-1], max_new_tokens=4).token_ids
        *_, finished = first
        assert isinstance(finished, Finished)
        assert finished.token_ids == cold(max_new_tokens=4).token_ids


class TestStopping:
    def check_usable(
        self, engine: Engine, cold: Cold, conversation: str, ids: Sequence[int], at_least: int
    ) -> None:
        """The conversation goes on as if nothing had happened, with what was finished still cached."""
        warm = answer(engine, ids, conversation=conversation)
        assert warm.prefill.reused >= at_least
        assert warm.token_ids == cold(ids).token_ids

    def test_a_stop_takes_effect_before_the_next_token(self, engine: Engine, cold: Cold) -> None:
        cancel, seen = threading.Event(), []
        request = GenerationRequest(PROMPT, max_new_tokens=50, ignore_eos=True, conversation="stop")
        for event in engine.generate(request, cancel):
            seen.append(event)
            if sum(isinstance(each, TextDelta) for each in seen) == 3:
                cancel.set()
        finished = seen[-1]
        assert isinstance(finished, Finished)
        assert (finished.finish_reason, len(finished.token_ids)) == (FinishReason.CANCELLED, 3)
        assert finished.text == cold(max_new_tokens=3).text
        self.check_usable(engine, cold, "stop", (*PROMPT, *finished.token_ids, 9), len(PROMPT) + 2)

    def test_stopped_before_it_began(self, engine: Engine, cold: Cold) -> None:
        cancel = threading.Event()
        cancel.set()
        (finished,) = engine.generate(GenerationRequest(PROMPT, conversation="before"), cancel)
        assert isinstance(finished, Finished)
        assert (finished.finish_reason, finished.text) == (FinishReason.CANCELLED, "")
        self.check_usable(engine, cold, "before", PROMPT, 0)

    def test_a_long_prompt_stops_between_layers_and_keeps_finished_blocks(
        self, engine: Engine, cold: Cold
    ) -> None:
        long = PROMPT * (3 * PREFILL_BLOCK // len(PROMPT))
        request = GenerationRequest(long, max_new_tokens=1, conversation="long")
        layers = engine.summary.layers
        (finished,) = engine.generate(request, CountingEvent(1 + layers + 1))  # in the second block
        assert isinstance(finished, Finished)
        assert finished.finish_reason is FinishReason.CANCELLED
        assert finished.prefill.tokens == len(long)
        self.check_usable(engine, cold, "long", long, PREFILL_BLOCK)

    @pytest.mark.parametrize("taken", [0, 1, 2, 5])
    def test_an_iterator_that_is_closed_leaves_the_conversation_sound(
        self, taken: int, engine: Engine, cold: Cold
    ) -> None:
        name = f"closed {taken}"
        request = GenerationRequest(PROMPT, max_new_tokens=20, ignore_eos=True, conversation=name)
        stream = engine.generate(request)
        for _ in range(taken):
            next(stream)
        stream.close()  # type: ignore[attr-defined]
        self.check_usable(engine, cold, name, PROMPT, len(PROMPT) - 1 if taken else 0)


class TestFaults:
    @pytest.mark.parametrize("step", [0, 1, 4])
    @pytest.mark.parametrize("bad", [float("nan"), float("inf")])
    def test_logits_that_are_no_numbers_end_the_answer_and_not_the_conversation(
        self, step: int, bad: float, load: Load, cold: Cold, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        engine, calls = load(), 0

        def made_faulty(sound: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
            def faulty(*args: Any, **settings: Any) -> torch.Tensor:
                nonlocal calls
                logits = sound(*args, **settings)
                if calls == step:
                    logits[100] = bad
                calls += 1
                return logits

            return faulty

        for name in ("prefill", "decode"):
            monkeypatch.setattr(engine._backend, name, made_faulty(getattr(engine._backend, name)))
        with pytest.raises(ComputeFaultError):
            answer(engine, conversation="fault")
        warm = answer(engine, conversation="fault")
        assert warm.prefill.reused == (len(PROMPT) - 1 if step else 0)
        assert warm.token_ids == cold().token_ids


class TestScore:
    def test_equals_the_probabilities_that_generation_draws_from(self, engine: Engine) -> None:
        ids = (*PROMPT, *answer(engine).token_ids)
        backend = engine._backend
        assert backend is not None
        cache = backend.new_cache()
        steps = [backend.forward([token_id], cache).log_softmax(-1) for token_id in ids[:-1]]
        expected = [float(step[following]) for step, following in zip(steps, ids[1:], strict=True)]
        score = engine.score(ids)
        assert score.logprobs == pytest.approx(expected, abs=1e-4)
        assert score.nll == pytest.approx(-sum(expected), abs=1e-3)
        assert score.as_json() == {"logprobs": list(score.logprobs), "nll": score.nll, "n": len(ids) - 1}

    @pytest.mark.parametrize("length", [2, 256, 257, 258, 600])
    def test_blocks_leave_no_seam(self, length: int, engine: Engine) -> None:
        ids = random.Random(3).choices(range(480), k=600)
        score = engine.score(ids[:length])
        assert score.n == length - 1
        assert score.logprobs == pytest.approx(engine.score(ids).logprobs[: length - 1], abs=1e-4)

    def test_one_token_has_nothing_to_be_scored_by(self, engine: Engine) -> None:
        assert engine.score([5]).as_json() == {"logprobs": [], "nll": 0.0, "n": 0}

    def test_leaves_conversations_alone(self, engine: Engine) -> None:
        answer(engine, conversation="scored")
        engine.score(PROMPT[::-1])
        assert answer(engine, conversation="scored").prefill.reused == len(PROMPT) - 1

    @pytest.mark.parametrize(
        ("ids", "error"), [((), SettingError), ((1, 512), SettingError), ((1,) * 65, ContextFullError)]
    )
    def test_refuses_what_it_cannot_run(self, ids: tuple[int, ...], error: type, load: Load) -> None:
        with pytest.raises(error):
            load(context=64).score(ids)
