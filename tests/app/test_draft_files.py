"""Files that stand unsent in a chat are there again after a restart, or are named."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.attachment_draft import DraftState
from app.attachments import Attachment, attachment_name
from app.draft_files import DraftFiles
from app.drafts import MAX_SAVED

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)
attachments = st.builds(Attachment, texts.map(attachment_name), texts, st.none() | st.integers(1, 9))


@given(
    st.builds(
        DraftFiles, st.lists(attachments, max_size=3).map(tuple), st.lists(texts, max_size=3).map(tuple)
    )
)
def test_what_is_kept_is_what_is_read(files: DraftFiles) -> None:
    assert DraftFiles.from_json(files.as_json()) == files


@pytest.mark.parametrize(
    "text", [None, "", "{", "[]", "7", "null", '{"files": 1, "missing": "x"}', "[" * 100_000]
)
def test_what_is_no_list_of_files_is_none(text: str | None) -> None:
    assert DraftFiles.from_json(text) == DraftFiles()


def test_what_is_too_much_to_keep_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.draft_files.MAX_CHARACTERS", 10)
    small, large, last = Attachment("a", "12345"), Attachment("b", "1234567"), Attachment("c", "12345")
    assert DraftFiles.within_bounds([small, large, last], ["d"]) == DraftFiles((small, last), ("b", "d"))


def test_files_and_what_was_being_read_come_back(qtbot, make_controller) -> None:
    first = make_controller()
    first.start()
    first.drafts.keep_files(None, [Attachment("a.txt", "text")], ["b.pdf"])
    assert first.shutdown()
    second = make_controller()
    with qtbot.waitSignal(second.drafts_read):
        second.start()
    assert second.drafts.files(None) == DraftFiles((Attachment("a.txt", "text"),), ("b.pdf",))


def test_a_text_that_is_too_long_to_be_kept_is_told_once(controller, record) -> None:
    told = record(notice=controller.notice_raised)
    controller.drafts.keep(None, "x" * (MAX_SAVED + 1))
    controller.drafts.keep(None, "x" * (MAX_SAVED + 2))
    assert [notice.code for _, notice in told] == ["draft-too-long"]
    assert len(controller.drafts.text(None)) == MAX_SAVED + 2


def test_a_file_that_was_not_kept_stands_there_with_its_sentence(controller) -> None:
    draft = controller.attachments
    draft.put_attachments([Attachment("a.txt", "text")], ["b.pdf"])
    assert [(item.name, item.state) for item in draft.items] == [
        ("a.txt", DraftState.READY),
        ("b.pdf", DraftState.REFUSED),
    ]
    assert "b.pdf" in draft.items[1].problem.message
    assert draft.ready == (Attachment("a.txt", "text"),)
