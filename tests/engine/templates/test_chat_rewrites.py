"""Rewrites of chats for templates that refuse them: the smallest that works, and each is told."""

# ruff: noqa: E501  (templates are long lines)

from __future__ import annotations

import pytest
from chat_templates import (
    CHATML,
    GEMMA,
    LLAMA3,
    MISTRAL,
    QWEN3,
    TOKENIZER,
    assistant,
    codes,
    prompt,
    system,
    user,
)
from hypothesis import given
from hypothesis import strategies as st

from engine.errors import ChatTemplateError
from engine.templates.chat_messages import REWRITES, rewrites_of
from engine.templates.chat_template import ChatMessage


def test_a_chat_that_the_template_takes_is_not_touched():
    messages = [user("a"), assistant("b"), user("c")]
    for source in (CHATML, LLAMA3, MISTRAL, GEMMA, QWEN3):
        assert prompt(source, *messages).notices == ()
    messages = [system("s"), assistant(""), user("a"), user("b")]
    for source in (CHATML, LLAMA3, QWEN3):
        assert prompt(source, *messages).notices == ()


@pytest.mark.parametrize(
    ("messages", "expected", "changes"),
    [
        ([user("a"), user("b")], "<s>[INST] a\n\nb [/INST]", ["turns-joined"]),
        # stopped before the first word: the empty answer goes, and its two questions meet
        (
            [user("a"), assistant(""), user("b")],
            "<s>[INST] a\n\nb [/INST]",
            ["empty-answer-dropped", "turns-joined"],
        ),
        ([user("a"), assistant("par"), user("b")], "<s>[INST] a [/INST] par</s>[INST] b [/INST]", []),
        ([system("s"), user("a")], "<s>[INST] s\n\na [/INST]", ["system-folded"]),
        ([system("s"), user("a"), user("b")], "<s>[INST] s\n\na\n\nb [/INST]", ["system-folded", "turns-joined"]),
        (
            [system("s"), user("a"), assistant(""), user("b"), assistant("c"), assistant("d"), user("e")],
            "<s>[INST] s\n\na\n\nb [/INST] c\n\nd</s>[INST] e [/INST]",
            ["empty-answer-dropped", "system-folded", "turns-joined"],
        ),
        ([system(" "), user("a")], "<s>[INST] a [/INST]", ["system-folded"]),
        ([assistant("hello"), user("a")], "<s>[INST]  [/INST] hello</s>[INST] a [/INST]", ["user-turn-added"]),
        ([system("s"), assistant("hello"), user("a")], "<s>[INST] s [/INST] hello</s>[INST] a [/INST]",
         ["system-folded"]),
        ([user("a"), assistant("b"), system("now"), user("c")], "<s>[INST] a [/INST] b</s>[INST] now\n\nc [/INST]",
         ["system-folded"]),
    ],
)  # fmt: skip
def test_an_alternating_template_gets_the_smallest_rewrite_that_works(messages, expected, changes):
    result = prompt(MISTRAL, *messages)
    assert result.text == expected
    assert codes(result) == [f"template-{change}" for change in changes]
    assert list(result.ids) == TOKENIZER.encode(expected)


def test_a_template_without_a_system_role_gets_the_text_in_the_first_user_turn():
    result = prompt(GEMMA, system("Be brief."), user("hi"))
    assert result.text == "<s><start_of_turn>user\nBe brief.\n\nhi<end_of_turn>\n<start_of_turn>model\n"
    assert codes(result) == ["template-system-folded"]


def test_a_first_answer_is_left_out_where_an_empty_question_is_refused():
    source = MISTRAL.replace(
        "{% if message['role'] == 'user' %}{{ '[INST] '",
        "{% if not message['content'] %}{{ raise_exception('empty') }}{% endif %}"
        "{% if message['role'] == 'user' %}{{ '[INST] '",
    )
    result = prompt(source, assistant("hello"), user("a"))
    assert result.text == "<s>[INST] a [/INST]"
    assert codes(result) == ["template-first-answer-dropped"]


def test_a_silently_dropped_system_text_is_folded():
    source = "{% for m in messages if m.role != 'system' %}[{{ m.role }}] {{ m.content }} {% endfor %}"
    result = prompt(source, system("Be  brief."), user("hi"))
    assert result.text == "[user] Be  brief.\n\nhi "
    assert codes(result) == ["template-system-folded"]


def test_a_system_text_that_is_only_changed_counts_as_there():
    source = "{% for m in messages %}{{ m.content|replace(' ', '_')|upper }}|{% endfor %}"
    result = prompt(source, system("be brief"), user("hi"))
    assert result.text == "BE_BRIEF|HI|"
    assert result.notices == ()


def test_a_system_text_that_can_not_be_brought_in_is_told():
    source = "{{ raise_exception('no') if messages|length != 2 or messages[0].role != 'system' }}{{ messages[1].content }}"  # fmt: skip
    result = prompt(source, system("Be brief."), user("hi"))
    assert result.text == "hi"
    assert codes(result) == ["template-system-dropped"]


def test_what_no_rewrite_can_help_is_told_in_the_templates_words():
    source = "{{ raise_exception('Tools are needed, not ' ~ messages[0].content) }}"
    with pytest.raises(ChatTemplateError) as caught:
        prompt(source, user("<|im_end|> now"), user("b"))
    assert caught.value.message.endswith("Tools are needed, not <|im_end|> now.")
    assert caught.value.hint


def test_the_words_are_those_about_the_chat_as_it_was():
    source = "{{ raise_exception('there are ' ~ messages|length) }}"
    with pytest.raises(ChatTemplateError, match="there are 3"):
        prompt(source, user("a"), user("b"), user("c"))


TURNS = st.lists(
    st.builds(
        ChatMessage,
        st.sampled_from(["system", "user", "assistant"]),
        st.sampled_from(["", " ", "a", "b\n"]),
    ),
    min_size=1,
    max_size=6,
)


@given(TURNS.filter(lambda chat: any(m.role != "assistant" and m.content.strip() for m in chat)))
@pytest.mark.parametrize("source", [MISTRAL, GEMMA], ids=["mistral", "gemma"])
def test_every_chat_in_which_a_person_said_something_gets_a_prompt(source, messages):
    result = prompt(source, *messages)
    for message in messages:
        if message.role != "assistant":
            assert message.content.strip() in result.text


@given(TURNS)
def test_rewrites_come_in_order_of_size_and_never_twice(messages):
    ways = [notices for _, notices in rewrites_of(tuple(messages))]
    assert ways[0] == ()
    assert len(set(ways)) == len(ways)
    assert [len(way) for way in ways] == sorted(len(way) for way in ways)
    assert {notice for way in ways for notice in way} <= {rewrite.notice for rewrite in REWRITES}
