"""What is kept of an attached file, and how the model reads it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.attachments import (
    Attachment,
    attachment_name,
    attachments_as_json,
    attachments_from_json,
    content_with,
    fit_of,
)
from app.context_policy import ContextPolicy, prompt_limit

NOTES = Attachment("notes.md", "# Notes\n\nA kestrel hovers.\n")
NAMES = st.text(min_size=1).map(attachment_name)
ATTACHMENTS = st.builds(
    Attachment, NAMES, st.text(st.characters(codec="utf-8")), st.none() | st.integers(1, 999)
)


@pytest.mark.parametrize(
    ("text", "lines"), [("one", 1), ("one\n", 1), ("one\ntwo", 2), ("one\n\n", 2), ("\n", 1)]
)
def test_a_newline_at_the_end_begins_no_line(text: str, lines: int) -> None:
    assert Attachment("x", text).num_lines == lines


def test_a_message_without_files_is_read_as_it_was_written() -> None:
    assert content_with("  Hi\n", ()) == "  Hi\n"


def test_files_come_first_and_the_question_last() -> None:
    content = content_with("What is it?", [NOTES, Attachment("b.py", "print(1)")])
    assert content == (
        "File “notes.md”:\n```\n# Notes\n\nA kestrel hovers.\n```\n\n"
        "File “b.py”:\n```\nprint(1)\n```\n\nWhat is it?"
    )


def test_a_file_alone_is_a_message() -> None:
    assert content_with(" \n", [NOTES]).endswith("hovers.\n```")


@given(st.text("`a\n", max_size=60))
def test_nothing_in_a_file_can_end_its_fence(text: str) -> None:
    lines = content_with("", [Attachment("x", text)]).split("\n")
    fence = lines[1]
    assert set(fence) == {"`"}
    assert fence == lines[-1]
    assert not any(fence in line for line in lines[2:-1])


@given(st.lists(ATTACHMENTS, max_size=4))
def test_what_is_written_is_read_again(attachments: list[Attachment]) -> None:
    assert attachments_from_json(attachments_as_json(attachments)) == tuple(attachments)


@pytest.mark.parametrize("damaged", ["", "{", "[" * 100_000, "7", '{"name": 1}', '[{"name": "a"}, 3]', None])
def test_what_can_not_be_read_opens_without_it(damaged: str | None) -> None:
    assert attachments_from_json(damaged) == ()


def test_a_sound_file_beside_a_damaged_one_stays() -> None:
    text = '[{"name": "a", "text": 5}, {"name": "b", "text": "B", "pages": true, "newer": 1}]'
    assert attachments_from_json(text) == (Attachment("b", "B"),)


def test_a_name_can_neither_leave_its_line_nor_turn_it_around() -> None:
    assert attachment_name("a\nb\u202e.txt") == "a b.txt"
    assert attachment_name("\n") == "file"
    assert len(attachment_name("n" * 5_000)) == 200


@pytest.mark.parametrize(("needed", "fits"), [(0, True), (299, True), (300, True), (301, False)])
def test_a_message_fits_into_what_the_conversation_leaves(needed: int, fits: bool) -> None:
    used = prompt_limit(1_000) - 300
    assert fit_of(needed, used=used, context=1_000, policy=ContextPolicy.STOP).fits is fits


def test_where_the_oldest_messages_make_room_a_message_has_all_of_it() -> None:
    fit = fit_of(700, used=5_000, context=1_000, policy=ContextPolicy.DROP_OLDEST)
    assert fit.fits
    assert fit.room == prompt_limit(1_000)
    assert fit_of(1, used=5_000, context=1_000, policy=ContextPolicy.STOP).room == 0
