"""The tiny checkpoints against what Hugging Face transformers computes from the same files in float32."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from model_files import TINY_MODELS

from engine.checkpoints.model_folder import open_model
from engine.config import EngineConfig
from engine.engine import Engine
from engine.generation import Finished, FinishReason, GenerationRequest, SamplingParams
from engine.templates.chat_template import ChatMessage

# Two float32 programs differ by some 2e-5 here; one wrong setting moves a log-probability by 0.6.
TOLERANCE = 2e-3
MODELS = sorted(folder for folder in TINY_MODELS.iterdir() if folder.is_dir())
GREEDY = SamplingParams(temperature=0.0)


@pytest.fixture(scope="module", params=MODELS, ids=lambda folder: folder.name)
def folder(request: pytest.FixtureRequest) -> Path:
    path: Path = request.param
    return path


@pytest.fixture(scope="module")
def engine(folder: Path) -> Iterator[Engine]:
    loaded = Engine.load(open_model(folder), EngineConfig(device="cpu", weights="native", kv="native"))
    yield loaded
    loaded.close()


@pytest.fixture(scope="module")
def expected(folder: Path) -> Any:
    return json.loads((folder / "expected.json").read_text(encoding="utf-8"))


@pytest.fixture
def greedy(engine: Engine) -> Callable[..., Finished]:
    def answer(ids: list[int], count: int, conversation: str = "") -> Finished:
        request = GenerationRequest(
            tuple(ids),
            sampling=GREEDY,
            max_new_tokens=count,
            ignore_eos=True,
            conversation=conversation,
        )
        *_, finished = engine.generate(request)
        assert isinstance(finished, Finished)
        return finished

    return answer


def test_log_probabilities(engine: Engine, expected: Any) -> None:
    for prompt in expected["prompts"]:
        score = engine.score(prompt["ids"])
        assert score.n == len(prompt["logprobs"])
        assert score.logprobs == pytest.approx(prompt["logprobs"], abs=TOLERANCE, rel=0.0)
        assert score.nll == pytest.approx(prompt["sum_nll"], abs=TOLERANCE * score.n)


def test_greedy_continuations(greedy: Callable[..., Finished], expected: Any) -> None:
    for prompt in expected["prompts"]:
        finished = greedy(prompt["ids"], len(prompt["greedy_ids"]))
        assert list(finished.token_ids) == prompt["greedy_ids"]
        assert finished.finish_reason is FinishReason.LENGTH


def test_a_fork_reuses_what_both_ways_share(greedy: Callable[..., Finished], expected: Any) -> None:
    fork = expected["fork"]
    base = next(prompt for prompt in expected["prompts"] if prompt["name"] == fork["base"])
    greedy(base["ids"], 24, conversation="fork")
    forked = greedy(
        [*base["ids"][: fork["keep"]], *fork["suffix_ids"]], len(fork["greedy_ids"]), conversation="fork"
    )
    assert list(forked.token_ids) == fork["greedy_ids"]
    assert forked.prefill.reused >= fork["keep"]


def test_chats_render_and_encode(engine: Engine, expected: Any) -> None:
    for chat in expected["chat"]:
        prompt = engine.chat_prompt([ChatMessage(**message) for message in chat["messages"]])
        assert prompt.text == chat["templated"]
        assert list(prompt.ids) == chat["ids"]


def test_raw_text_encodes_without_control_tokens(folder: Path, engine: Engine, expected: Any) -> None:
    """The expected ids hold the control token that the text spells; ours are equal up to it and go on."""
    ids = engine.encode(expected["encode"]["text"])
    special = expected["encode"]["text"].index("<|im_end|>")
    before = engine.encode(expected["encode"]["text"][:special])
    assert ids[: len(before) - 1] == before[:-1]
    assert len(ids) > len(expected["encode"]["ids"])
