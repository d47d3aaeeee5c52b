"""What is left out when a conversation outgrows the context: whole turns, the oldest, in big steps."""

from __future__ import annotations

from datetime import UTC, datetime
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.answer_stats import AnswerStats
from app.context_policy import (
    ContextPolicy,
    first_read,
    kept_messages,
    left_out_of,
    possible_cuts,
    prompt_limit,
    without_oldest,
)
from app.conversation_records import Message, MessageStatus
from app.prompt import fitted_prompt

COMPLETE = MessageStatus.COMPLETE


def message(role: str, text: str = "x", *, stats: AnswerStats | None = None) -> Message:
    return Message(
        id=f"{role} {text}",
        conversation_id="chat",
        role=role,
        text=text,
        thinking="",
        status=COMPLETE,
        created_at=datetime(2026, 1, 1, tzinfo=UTC),
        stats=stats,
    )


def stats(left_out: int, *, prompt_tokens: int = 9) -> AnswerStats:
    return AnswerStats(prompt_tokens, 0, 0.0, 1, 1.0, "end", "cpu", left_out=left_out)


@st.composite
def conversations(draw) -> tuple[list[Message], list[int]]:
    """A system prompt or none, then questions and answers in any order, a question last."""
    roles = ["system"] * draw(st.integers(0, 2))
    roles += draw(st.lists(st.sampled_from(["user", "assistant"]), max_size=12))
    messages = [message(role, str(place)) for place, role in enumerate([*roles, "user"])]
    counts = draw(st.lists(st.integers(1, 60), min_size=len(messages), max_size=len(messages)))
    return messages, counts


@given(conversations(), st.integers(1, 500), st.integers(0, 14))
def test_what_is_kept_is_the_system_prompt_and_the_newest_turns(
    conversation, limit: int, before: int
) -> None:
    messages, counts = conversation
    kept = kept_messages(messages, counts, limit, left_out_before=before)
    head = [one for one in messages if one.role == "system"]
    rest = messages[len(head) :]
    assert list(kept.messages) == head + rest[kept.left_out :]
    assert kept.messages[-1] is messages[-1]
    if kept.left_out:
        assert kept.messages[len(head)].role == "user", "it begins at the border of a turn"
        assert first_read(messages, kept.left_out) is kept.messages[len(head)]
    else:
        assert first_read(messages, 0) is None


@given(conversations(), st.integers(1, 500), st.integers(0, 14))
def test_nothing_is_left_out_without_need_and_what_is_kept_fits_where_anything_does(
    conversation, limit: int, before: int
) -> None:
    messages, counts = conversation
    kept = kept_messages(messages, counts, limit, left_out_before=before)
    sizes = dict(zip((one.id for one in messages), counts, strict=True))
    size = sum(sizes[one.id] for one in kept.messages)
    if sum(counts) <= limit:
        assert kept.left_out == 0
    elif cuts := possible_cuts(messages):
        assert kept.left_out in cuts
        assert size <= limit or kept.left_out == cuts[-1]
        assert size <= limit // 2 or kept.left_out in (before, cuts[-1]), "a new cut makes room for more"


@given(
    st.integers(40, 400),
    st.lists(st.tuples(st.integers(1, 15), st.integers(1, 15)), min_size=1, max_size=60),
    st.booleans(),
)
def test_a_cut_stays_until_the_context_is_full_again(limit: int, turns, instructed: bool) -> None:
    """Turn after turn: the beginning of the prompt only changes when what is new no longer fits."""
    messages = [message("system")] if instructed else []
    counts = [3] if instructed else []
    before = 0
    cuts: list[int] = []
    for number, (asked, answered) in enumerate(turns):
        messages.append(message("user", f"q{number}"))
        counts.append(asked)
        kept = kept_messages(messages, counts, limit, left_out_before=before)
        still = without_oldest(messages, before)
        size = sum(counts) - sum(counts[len(counts) - len(messages) + instructed :][:before])
        if size <= limit:
            assert kept == still
        else:
            assert kept.left_out > before
            cuts.append(number)
        before = kept.left_out
        messages.append(message("assistant", f"a{number}"))
        counts.append(answered)
    # Half of the context is free after a cut, and a turn takes 30 tokens at most.
    assert all(later - earlier >= limit // 2 // 30 for earlier, later in pairwise(cuts))


def test_more_context_brings_back_what_was_left_out() -> None:
    messages = [message("user", "1"), message("assistant", "2"), message("user", "3")]
    assert kept_messages(messages, [40, 40, 40], 100).left_out == 2
    assert kept_messages(messages, [40, 40, 40], 120, left_out_before=2).left_out == 0


@pytest.mark.parametrize(
    ("context", "limit"), [(1, 1), (4, 3), (128, 96), (4096, 3072), (8192, 7168), (131072, 130048)]
)
def test_an_answer_has_room_in_any_context(context: int, limit: int) -> None:
    assert prompt_limit(context) == limit


def test_the_last_prompt_that_was_read_says_what_it_left_out() -> None:
    messages = [
        message("user"),
        message("assistant", stats=stats(4)),
        message("user"),
        message("assistant", stats=stats(0, prompt_tokens=0)),  # it failed before anything was read
        message("user"),
    ]
    assert left_out_of(messages) == 4
    assert left_out_of(messages[:1]) == 0


# With an engine


class Engine:
    """Each message takes its words and some more; every text takes a word more than it looks."""

    class summary:  # noqa: N801  (stands for an object)
        context_length = 128

    def __init__(self, frame: int = 4) -> None:
        self.frame = frame
        self.rendered: list[int] = []

    def chat_prompt(self, messages):
        from engine.templates.chat_template import ChatPrompt

        self.rendered.append(len(messages))
        tokens = sum(self.frame + len(one.content.split()) for one in messages)
        return ChatPrompt(tuple(range(tokens)), " ".join(one.content for one in messages), ())

    def encode(self, text: str) -> list[int]:
        return list(range(len(text.split())))


def long_chat(num_turns: int, *, words: int = 8) -> list[Message]:
    messages = [message("system", "rule")]
    for number in range(num_turns):
        messages += [message("user", f"q{number} " * words), message("assistant", f"a{number} " * words)]
    return [*messages, message("user", "last")]


def test_a_prompt_that_fits_is_rendered_once_and_whole() -> None:
    engine = Engine()
    fitted = fitted_prompt(engine, long_chat(2), ContextPolicy.DROP_OLDEST)
    assert (fitted.left_out, fitted.cut_anew, engine.rendered) == (0, False, [6])


def test_stopping_never_leaves_anything_out() -> None:
    engine = Engine()
    fitted = fitted_prompt(engine, long_chat(20), ContextPolicy.STOP)
    assert (fitted.left_out, engine.rendered) == (0, [42])
    assert len(fitted.prompt.ids) > 128


@pytest.mark.parametrize("frame", [0, 1, 4, 9])
@pytest.mark.parametrize("num_turns", [5, 6, 7, 20])
def test_dropping_keeps_the_rule_and_the_question_and_fits(frame: int, num_turns: int) -> None:
    fitted = fitted_prompt(Engine(frame), long_chat(num_turns), ContextPolicy.DROP_OLDEST)
    assert len(fitted.prompt.ids) <= prompt_limit(128)
    assert fitted.prompt.text.startswith("rule")
    assert fitted.prompt.text.endswith("last")
    assert fitted.cut_anew == (fitted.left_out > 0)


def test_a_question_that_fills_the_context_alone_is_left_to_the_engine_to_refuse() -> None:
    messages = [*long_chat(3)[:-1], message("user", "word " * 200)]
    fitted = fitted_prompt(Engine(), messages, ContextPolicy.DROP_OLDEST)
    assert fitted.left_out == 6
    assert len(fitted.prompt.ids) > 128


def test_messages_that_are_larger_than_they_look_are_cut_again() -> None:
    """Counts are estimates; the prompt itself has the last word."""

    class Deceiving(Engine):
        def encode(self, text: str) -> list[int]:
            return [0] if text.startswith(("q6", "a6")) else super().encode(text)

    fitted = fitted_prompt(Deceiving(), long_chat(7, words=40), ContextPolicy.DROP_OLDEST)
    assert len(fitted.prompt.ids) <= prompt_limit(128)
