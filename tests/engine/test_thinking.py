"""Thinking is told from the answer whatever the chunks, the quotes and the missing tags."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.thinking import DEFAULT_TAGS, ThinkingSplitter, leaves_thinking_open


def split(text, *, sizes=(), open=False, tags=DEFAULT_TAGS):
    """Thinking and answer of `text`, pushed in pieces of these sizes (the rest at once)."""
    splitter = ThinkingSplitter(open=open, tags=tags)
    deltas, start = [], 0
    for size in sizes:
        deltas.append(splitter.push(text[start : start + size]))
        start += size
    deltas.append(splitter.push(text[start:]))
    deltas.append(splitter.finish())
    return "".join(d.thinking for d in deltas), "".join(d.text for d in deltas)


def one_by_one(text):
    return [1] * len(text)


@pytest.mark.parametrize("sizes", [[], [1] * 100, [3] * 30], ids=["whole", "characters", "threes"])
@pytest.mark.parametrize(
    ("text", "open_", "expected"),
    [
        ("<think>a</think>b", False, ("a", "b")),
        ("a</think>b", True, ("a", "b")),
        ("<think>a", False, ("a", "")),
        ("a", True, ("a", "")),
        ("<think>a</think>b", True, ("a", "b")),          # the model repeats what the prompt has opened
        ("\n<think>\na\n</think>\n\nb", False, ("\n\na\n", "\n\nb")),
        ("just an answer", False, ("", "just an answer")),
        ("<thinking>a</think>b</thinking>c", False, ("a</think>b", "c")),
        ("[THINK]a[/THINK]b", False, ("a", "b")),
        ("<think></think>b", False, ("", "b")),
        ("", False, ("", "")),
        ("", True, ("", "")),
        (" \n", False, ("", " \n")),
        ("<thi", False, ("", "<thi")),
        ("<think>a</thi", False, ("a</thi", "")),
    ],
)  # fmt: skip
def test_tags_are_told_apart_in_any_chunks(text, open_, expected, sizes):
    assert split(text, sizes=sizes, open=open_) == expected


def test_a_tag_split_over_three_chunks_is_still_one():
    splitter = ThinkingSplitter()
    assert splitter.push("<th") == ("", "")
    assert splitter.push("in") == ("", "")
    assert splitter.push("k>a</t") == ("a", "")
    assert splitter.push("hin") == ("", "")
    assert splitter.push("k>b") == ("", "b")
    assert splitter.finish() == ("", "")


def test_what_can_not_become_a_tag_is_given_out_at_once():
    splitter = ThinkingSplitter(open=True)
    assert splitter.push("2 < 3 and ").thinking == "2 < 3 and "
    assert splitter.push("</").thinking == ""
    assert splitter.push("b>").thinking == "</b>"


def test_thinking_begins_only_at_the_start_of_an_answer():
    text = "Write <think> and </think> around it."
    assert split(text, sizes=one_by_one(text)) == ("", text)


def test_a_second_block_after_the_answer_began_is_text():
    text = "<think>a</think>b<think>c</think>"
    assert split(text, sizes=one_by_one(text)) == ("a", "b<think>c</think>")


@pytest.mark.parametrize(
    ("thinking", "answer"),
    [
        ("The tag `</think>` ends it. ", "Right"),
        ("The tag `` `</think>` `` and `x </think> y`.\n", "Right"),
        ("Code:\n```html\n<p>\n</think>\n</p>\n```\nso", "Right"),
        ("Code:\n~~~\n</think>\n~~~\nso", "\n\nRight"),
        ("Code:\n```\n<think>\nhm\n</think>\n\nanswer\n```\nso\n", "\n\nRight"),  # an example
        ("Code:\n````\n```\n</think>\n````\nso", "Right"),
        ("- list:\n    ```\n    </think>\n    ```\n", "Right"),
        ("Maybe <tool_call>{}</tool_call> would do?", "<tool_call>{}</tool_call>"),
    ],
)  # fmt: skip
def test_a_quoted_closing_tag_does_not_end_the_thinking(thinking, answer):
    text = f"<think>{thinking}</think>{answer}"
    assert split(text) == (thinking, answer)
    assert split(text, sizes=one_by_one(text)) == (thinking, answer)


@pytest.mark.parametrize(
    ("thinking", "answer"),
    [
        ("a stray ` on the line", "\nRight"),                     # no second backtick: no code
        ("a stray ` on the line", ""),
        ("two `` and one `", "\nRight ` here"),
        ("a `b` c `d`", "Right"),
        ("stray `\nnext line ", "Right ` here"),
        ("```py\nx = 1\n", "\n\nHere:\n```py\nx = 1\n```\n"),     # the fence was never closed
    ],
)  # fmt: skip
def test_code_that_never_closes_does_not_swallow_the_answer(thinking, answer):
    text = f"<think>{thinking}</think>{answer}"
    assert split(text) == (thinking, answer)
    assert split(text, sizes=one_by_one(text)) == (thinking, answer)


def test_the_prompt_tells_whether_thinking_is_open():
    assert leaves_thinking_open("<|im_start|>assistant\n<think>\n")
    assert not leaves_thinking_open("<|im_start|>assistant\n<think>\n\n</think>\n\n")
    assert not leaves_thinking_open("<|im_start|>assistant\n")
    assert not leaves_thinking_open("")


PIECES = st.lists(
    st.sampled_from(
        ["<think>", "</think>", "<", "</", "think>", "`", "``", "```", "~~~", "\n", "\n\n", " ", "a", "語"]
    ),
    max_size=30,
)  # fmt: skip


@given(PIECES, st.lists(st.integers(1, 7), max_size=40), st.booleans())
def test_chunks_never_change_the_result(pieces, sizes, open_):
    text = "".join(pieces)
    assert split(text, sizes=sizes, open=open_) == split(text, open=open_)


@given(PIECES, st.lists(st.integers(1, 7), max_size=40), st.booleans())
def test_nothing_is_lost_but_the_tags(pieces, sizes, open_):
    text = "".join(pieces)
    thinking, answer = split(text, sizes=sizes, open=open_)
    candidates = {text}
    body = text.lstrip()
    if body.startswith("<think>"):
        candidates = {text.replace("<think>", "", 1)}
    without_closing = {
        c[: i] + c[i + len("</think>") :]
        for c in candidates
        for i in range(len(c))
        if c.startswith("</think>", i)
    }  # fmt: skip
    assert thinking + answer in candidates | without_closing
