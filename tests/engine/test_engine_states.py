"""What an answer says of its reuse, and that nothing done to states on the way shows in what is computed."""

from __future__ import annotations

import errno
import gc
import os
import random
import weakref
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from model_files import TINY_MODELS, copy_model, edit_json

from engine.checkpoints.model_folder import open_model
from engine.config import EngineConfig
from engine.default_folders import states_folder
from engine.engine import Engine
from engine.errors import ContextFullError, ModelUnloadedError
from engine.generation import Finished, FinishReason, GenerationRequest, Prefilled, ReuseReason
from engine.kv_geometry import PAGE
from engine.states.prefixes import common_prefix
from engine.states.state import as_ids
from engine.templates.chat_template import ChatMessage
from engine.weights.part_file import PartFile

MODEL = TINY_MODELS / "tiny-qwen2"
EVERY_MODEL = pytest.mark.parametrize(
    "name", sorted(folder.name for folder in TINY_MODELS.iterdir() if folder.is_dir())
)
TEXT = tuple(random.Random(7).choices(range(480), k=300))

Load = Callable[..., Engine]


@pytest.fixture
def load() -> Iterator[Load]:
    engines: list[Engine] = []

    def load_folder(path: Path = MODEL, **settings: Any) -> Engine:
        config = EngineConfig(**{"device": "cpu", "weights": "native", **settings})
        engines.append(Engine.load(open_model(path), config))
        return engines[-1]

    yield load_folder
    for each in engines:
        each.close()
        each.late_notices(wait=True)


@pytest.fixture(scope="module")
def cold() -> Iterator[Callable[[Sequence[int]], tuple[int, ...]]]:
    """Answers by an engine that keeps nothing: every prompt is read from its beginning."""
    config = EngineConfig(device="cpu", weights="native", keep_states=False)
    engine = Engine.load(open_model(MODEL), config)

    def cold_answer(prompt: Sequence[int]) -> tuple[int, ...]:
        finished = answer(engine, "", prompt)
        assert finished.prefill.reused == 0
        return finished.token_ids

    yield cold_answer
    engine.close()


@pytest.fixture
def little_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """States go straight from the pool to disk."""
    monkeypatch.setattr("engine.conversation_states._MAX_RAM_BYTES", 0)


@pytest.fixture
def full_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(file: PartFile) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(PartFile, "sync", full)


def answer(engine: Engine, conversation: str, prompt: Sequence[int], **request: Any) -> Finished:
    settings = {"max_new_tokens": 4, "ignore_eos": True, **request}
    first, *_, last = engine.generate(GenerationRequest(tuple(prompt), conversation=conversation, **settings))
    assert isinstance(first, Prefilled)
    assert isinstance(last, Finished)
    assert last.prefill == first.stats
    return last


def reuse(finished: Finished) -> tuple[int, ReuseReason | None, int | None]:
    return finished.prefill.reused, finished.prefill.reason, finished.prefill.diverged_at


def chat(*texts: str, system: str = "You help.") -> list[ChatMessage]:
    roles = ("user", "assistant") * len(texts)
    return [ChatMessage("system", system), *map(ChatMessage, roles, texts)]


class TestReasons:
    def test_an_edited_message_says_from_which_token_on_it_is_read_again(self, load: Load) -> None:
        engine = load()
        before = engine.chat_prompt(chat("The sky is blue", "Yes", "And the sea?")).ids
        edited = engine.chat_prompt(chat("The sky is red", "Yes", "And the sea?")).ids
        parted = common_prefix(as_ids(before), as_ids(edited))
        assert 5 < parted < len(edited) - 5
        assert reuse(answer(engine, "chat", before)) == (0, ReuseReason.NEW, None)
        assert reuse(answer(engine, "chat", edited)) == (parted, ReuseReason.HISTORY_REWRITTEN, parted)
        assert reuse(answer(engine, "chat", edited)) == (len(edited) - 1, None, None)

    def test_a_template_that_writes_the_history_anew_is_told_every_turn(
        self, load: Load, tmp_path: Path
    ) -> None:
        folder = copy_model("tiny-qwen2", tmp_path / "model")
        counting = "{{ messages | length }} messages{% for m in messages %} {{ m.content }}{% endfor %}"
        edit_json(folder / "tokenizer_config.json", lambda config: config.update(chat_template=counting))
        engine = load(folder)
        texts = ["The sky is blue and wide", "Yes", "And the sea?"]
        for length, reason in ((1, ReuseReason.NEW), (3, ReuseReason.HISTORY_REWRITTEN)):
            finished = answer(engine, "chat", engine.chat_prompt(chat(*texts[:length])).ids)
            assert finished.prefill.reason is reason
        assert finished.prefill.diverged_at == finished.prefill.reused == 0

    def test_a_turn_that_goes_on_needs_no_reason(self, load: Load) -> None:
        engine = load()
        first = answer(engine, "chat", TEXT[:100])
        prompt = (*TEXT[:100], *first.token_ids, 5, 6)
        assert reuse(answer(engine, "chat", prompt)) == (103, None, None)

    def test_a_fork_that_goes_on_needs_no_reason_either(self, load: Load) -> None:
        engine = load()
        first = answer(engine, "chat", TEXT[:100])
        assert reuse(answer(engine, "fork", (*TEXT[:100], *first.token_ids, 5))) == (103, None, None)
        begun = answer(engine, "another", (*TEXT[:20], 1, 2, 3))
        assert reuse(begun) == (20, ReuseReason.NEW, None)

    def test_another_model_is_told_at_once_and_the_first_finds_its_own_again(
        self, load: Load, tmp_path: Path
    ) -> None:
        """No start lies between: what the first one leaves is still being written when the other is asked."""
        other = copy_model("tiny-qwen2", tmp_path / "other")
        weights = other / "model.safetensors"
        data = bytearray(weights.read_bytes())
        data[-1] ^= 1
        weights.write_bytes(data)
        first = load()
        answer(first, "chat", TEXT[:200])
        second = load(other)
        first.close()
        assert reuse(answer(second, "chat", TEXT[:200])) == (0, ReuseReason.OTHER_MODEL, None)
        assert reuse(answer(second, "new", TEXT[100:200])) == (0, ReuseReason.NEW, None)
        second.close()
        assert reuse(answer(load(), "chat", TEXT[:210]))[0] == 200

    def test_what_had_to_make_room_is_told_with_the_answer(
        self, load: Load, little_memory: None, full_disk: None, cold: Any
    ) -> None:
        """Memory and disk are full, so the chat without a slot is lost; its text reads as before."""
        engine = load(slots=1)
        answer(engine, "first", TEXT[:100])
        between = answer(engine, "second", TEXT[100:200])
        told = [notice.code for notice in (*between.notices, *engine.late_notices(wait=True))]
        assert told == ["states-not-kept"]
        again = answer(engine, "first", TEXT[:110])
        assert reuse(again) == (0, ReuseReason.EVICTED, None)
        assert [notice.code for notice in again.notices] == ["state-dropped"]
        assert again.token_ids == cold(TEXT[:110])

    def test_a_file_that_decayed_is_told_with_the_answer(self, load: Load, cold: Any) -> None:
        first = load()
        answer(first, "chat", TEXT[:200])
        first.close()
        first.late_notices(wait=True)
        [path] = states_folder().iterdir()
        data = bytearray(path.read_bytes())
        data[-100_000] ^= 1
        path.write_bytes(data)
        again = answer(load(), "chat", TEXT[:210])
        assert reuse(again) == (0, ReuseReason.EVICTED, None)
        assert [notice.code for notice in again.notices] == ["state-unusable"]
        assert again.token_ids == cold(TEXT[:210])
        assert not path.exists()


class TestForks:
    @pytest.mark.parametrize("place", ["pool", "ram", "disk", "next start"])
    def test_a_fork_reads_nothing_again_when_its_original_is_gone(
        self, place: str, load: Load, cold: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """It was cut in the middle of the original, whose file is deleted before the fork's first turn."""
        if place == "disk":
            monkeypatch.setattr("engine.conversation_states._MAX_RAM_BYTES", 0)
        engine = load(slots=1)
        answer(engine, "chat", TEXT[:200])
        if place in ("ram", "disk"):
            answer(engine, "other", TEXT[250:270])
            engine.late_notices(wait=True)
        if place == "next start":
            engine.close()
            engine = load(slots=1)
        where = {row.conversation: row.place for row in engine.slot_table()}["chat"]
        assert where == ("disk" if place == "next start" else place)
        assert engine.fork("fork", (*TEXT[:150], 1, 2)) == 150
        engine.forget("chat")
        prompt = (*TEXT[:150], 3, 4)
        finished = answer(engine, "fork", prompt)
        assert reuse(finished) == (150, None, None)
        assert finished.token_ids == cold(prompt)


class TestFaults:
    def test_after_a_fault_nothing_of_the_step_is_read_again(
        self, load: Load, cold: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """What lies in the file was whole before, and stays."""
        first = load()
        prompt = (*TEXT[:100], *answer(first, "chat", TEXT[:100]).token_ids, *TEXT[100:200])
        first.close()
        engine = load()

        def faulty(*args: Any, **settings: Any) -> None:
            raise RuntimeError("a bug")

        with monkeypatch.context() as patched:
            patched.setattr(engine._backend, "decode", faulty)
            with pytest.raises(RuntimeError, match="a bug"):
                answer(engine, "chat", prompt)
        assert [(row.tokens, row.place) for row in engine.slot_table()] == [(103, "disk")]
        again = answer(engine, "chat", prompt)
        assert reuse(again) == (103, None, None)
        assert again.token_ids == cold(prompt)


class TestUnloading:
    @pytest.mark.parametrize("taken", [0, 1, 2])
    def test_an_answer_whose_model_was_unloaded_ends_with_a_sentence(self, taken: int, load: Load) -> None:
        """What was computed until then is kept like any other state."""
        engine = load()
        events = engine.generate(GenerationRequest(TEXT[:100], max_new_tokens=8, conversation="chat"))
        for _ in range(taken):
            next(events)
        engine.close()
        for _ in range(2):
            with pytest.raises(ModelUnloadedError, match="was unloaded"):
                engine.generate(GenerationRequest(TEXT[:100]))
        with pytest.raises(ModelUnloadedError, match="was unloaded"):
            list(events)
        assert list(events) == []
        again = answer(load(), "chat", TEXT[:110])
        assert again.prefill.reused == (100 if taken else 0)

    def test_an_answer_that_nobody_takes_does_not_keep_the_model_in_memory(self, load: Load) -> None:
        engine = load()
        events = engine.generate(GenerationRequest(TEXT[:100], conversation="chat"))
        next(events)
        backend = weakref.ref(engine._backend)
        engine.close()
        gc.collect()
        assert backend() is None
        events.close()


class TestShortcuts:
    @pytest.mark.parametrize("place", ["pool", "ram", "disk", "next start"])
    @pytest.mark.parametrize("length", [1, 2, PAGE - 1, PAGE, PAGE + 1, 2 * PAGE])
    def test_regenerating_right_after_a_return_runs_one_token(
        self, place: str, length: int, load: Load, cold: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The whole prompt is cached, and nothing else: not one token is new."""
        if place == "disk":
            monkeypatch.setattr("engine.conversation_states._MAX_RAM_BYTES", 0)
        engine = load(slots=1)
        answer(engine, "chat", TEXT[:length], max_new_tokens=0)
        if place in ("ram", "disk"):
            answer(engine, "other", TEXT[150:170], max_new_tokens=0)
            engine.late_notices(wait=True)
            assert {row.conversation: row.place for row in engine.slot_table()}["chat"] == place
        if place == "next start":
            engine.close()
            engine = load(slots=1)
        again = answer(engine, "chat", TEXT[:length])
        assert reuse(again) == (length - 1, None, None)
        assert again.token_ids == cold(TEXT[:length])
        assert answer(engine, "chat", TEXT[:length]).token_ids == again.token_ids

    @pytest.mark.parametrize("little", [False, True])
    def test_two_system_prompts_side_by_side_never_answer_for_each_other(
        self, little: bool, load: Load, cold: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """They differ in one token, and push each other out of the only slot, fifty times."""
        if little:
            monkeypatch.setattr("engine.conversation_states._MAX_RAM_BYTES", 0)
        engine = load(slots=1)
        prompts = {name: (*TEXT[:70], token, *TEXT[71:73]) for name, token in (("a", 1), ("b", 2))}
        expected = {name: cold(prompt) for name, prompt in prompts.items()}
        assert expected["a"] != expected["b"]
        for _ in range(25):
            for name, prompt in prompts.items():
                assert answer(engine, name, prompt).token_ids == expected[name]

    @pytest.mark.parametrize("context", [PAGE - 1, PAGE, PAGE + 1])
    def test_a_context_of_a_page_and_one_slot_is_enough_for_two_chats(
        self, context: int, load: Load, cold: Any
    ) -> None:
        engine = load(context=context, slots=1)
        ids = {"a": TEXT[:20], "b": TEXT[100:120]}
        for _ in range(4):
            for name, prompt in ids.items():
                finished = answer(engine, name, prompt)
                assert finished.token_ids == cold(prompt)
                assert finished.notices == ()
                ids[name] = (*prompt, *finished.token_ids, 3, 4)
        for name, prompt in ids.items():
            last = answer(engine, name, prompt, max_new_tokens=None)
            assert (len(prompt) + len(last.token_ids), last.finish_reason) == (context, FinishReason.CONTEXT)

    def test_a_chat_without_a_token_leaves_nothing(self, load: Load) -> None:
        engine = load()
        engine.forget("never seen")
        assert engine.slot_table() == ()
        engine.close()
        assert engine.late_notices(wait=True) == ()
        assert not states_folder().exists()


@EVERY_MODEL
@pytest.mark.parametrize("warm", [False, True])
def test_every_family_refuses_what_does_not_fit_and_answers_what_does(
    name: str, warm: bool, load: Load
) -> None:
    """Never a cut in silence; also where a beginning is cached."""
    context = PAGE + 7
    engine = load(TINY_MODELS / name, context=context)
    if warm:
        answer(engine, "chat", TEXT[:50], max_new_tokens=0)
    for length in (context, context + 1):
        with pytest.raises(ContextFullError, match=rf"\b{length} tokens.*\b{context}\b"):
            answer(engine, "chat", TEXT[:length])
    finished = answer(engine, "chat", TEXT[: context - 1], max_new_tokens=None)
    assert (len(finished.token_ids), finished.finish_reason) == (1, FinishReason.CONTEXT)
    assert finished.prefill.tokens == context - 1
    assert finished.prefill.reused == (50 if warm else 0)
    read = answer(engine, "chat", TEXT[:context], max_new_tokens=0)
    assert (read.token_ids, read.finish_reason) == ((), FinishReason.LENGTH)
