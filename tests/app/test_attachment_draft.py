"""Files are read and counted in the background, and never more than were asked for."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from app import file_text
from app.attachment_draft import AttachmentDraft, DraftState
from app.attachments import MAX_ATTACHMENTS, Attachment
from engine.errors import Cancelled


class Model:
    """Its tokens are words; `words` of None stands for no model."""

    def __init__(self) -> None:
        self.loaded = True
        self.counted: list[str] = []
        self.threads: set[int] = set()

    @property
    def encode(self):
        return self.words if self.loaded else None

    def words(self, text: str) -> list[int]:
        self.threads.add(threading.get_ident())
        self.counted.append(text)
        return [0] * len(text.split())


@pytest.fixture
def model() -> Model:
    return Model()


@pytest.fixture
def draft(qapp, model: Model):
    made = AttachmentDraft(lambda: model.encode)
    made.count_anew()
    yield made
    assert made.shutdown()


def files(folder: Path, *texts: str) -> list[Path]:
    paths = [folder / f"{number}.txt" for number in range(len(texts))]
    for path, text in zip(paths, texts, strict=True):
        path.write_text(text)
    return paths


def wait(qtbot, draft: AttachmentDraft) -> None:
    """Until everything is read and counted."""
    qtbot.waitUntil(
        lambda: not draft.busy and all(one.tokens is not None or one.problem for one in draft.items)
    )


def test_files_are_read_in_their_order_and_counted_off_the_gui_thread(qtbot, draft, model, tmp_path) -> None:
    draft.add(files(tmp_path, "one two three", "four"))
    assert [item.state for item in draft.items] == [DraftState.READING] * 2
    assert draft.busy
    wait(qtbot, draft)
    assert [(item.name, item.tokens) for item in draft.items] == [("0.txt", 3), ("1.txt", 1)]
    assert draft.ready == (Attachment("0.txt", "one two three"), Attachment("1.txt", "four"))
    assert draft.num_tokens == 4
    assert threading.get_ident() not in model.threads


def test_a_file_that_is_refused_says_why_and_takes_no_other_with_it(qtbot, draft, tmp_path) -> None:
    good, bad = files(tmp_path, "good", "bad\0")
    draft.add([bad, good, tmp_path / "gone"])
    wait(qtbot, draft)
    assert [item.state.name for item in draft.items] == ["REFUSED", "READY", "REFUSED"]
    assert draft.items[0].problem is not None
    assert draft.items[0].problem.message == "“1.txt” holds no text that could be read."
    assert draft.ready == (Attachment("0.txt", "good"),)


def test_without_a_model_files_are_read_and_counted_once_there_is_one(qtbot, draft, model, tmp_path) -> None:
    model.loaded = False
    draft.count_anew()
    draft.count_text("a question")
    draft.add(files(tmp_path, "one two"))
    qtbot.waitUntil(lambda: not draft.busy)
    assert (draft.items[0].tokens, draft.num_tokens, model.counted) == (None, 0, [])
    model.loaded = True
    draft.count_anew()
    qtbot.waitUntil(lambda: draft.num_tokens == 4)


def test_another_model_counts_anew(qtbot, draft, model, tmp_path) -> None:
    draft.add(files(tmp_path, "one two"))
    wait(qtbot, draft)
    model.words = lambda text: [0] * len(text)
    draft.count_anew()
    assert draft.items[0].tokens is None
    wait(qtbot, draft)
    assert draft.items[0].tokens == 7


def test_progress_of_a_load_counts_nothing_anew(qtbot, draft, model, tmp_path) -> None:
    draft.add(files(tmp_path, "one two"))
    wait(qtbot, draft)
    for _ in range(5):
        draft.count_anew()
    assert draft.items[0].tokens == 2
    assert model.counted == ["one two"]


def test_only_the_last_text_is_counted(qtbot, draft) -> None:
    for text in ("a", "a b", "a b c"):
        draft.count_text(text)
    qtbot.waitUntil(lambda: draft.text_tokens == 3)
    draft.count_text("")
    assert draft.text_tokens == 0


def test_a_file_that_is_taken_away_is_no_longer_read(qtbot, draft, tmp_path, monkeypatch) -> None:
    begun, ended = threading.Event(), threading.Event()

    def read(path: Path, cancel: threading.Event) -> Attachment:
        begun.set()
        assert cancel.wait(10)
        ended.set()
        raise Cancelled

    monkeypatch.setattr(file_text, "read_attachment", read)
    draft.add(files(tmp_path, "endless", "never begun"))
    assert begun.wait(10)
    for item in draft.items:
        draft.remove(item.id)
    assert draft.items == ()
    assert ended.wait(10)


def test_a_message_takes_so_many_files_and_says_so_once(qtbot, draft, tmp_path) -> None:
    paths = files(tmp_path, *["x"] * (MAX_ATTACHMENTS + 3))
    draft.add(paths)
    draft.add(paths)
    wait(qtbot, draft)
    assert len(draft.ready) == MAX_ATTACHMENTS
    (refused,) = (item for item in draft.items if item.state is DraftState.REFUSED)
    assert "at most 20 files" in refused.problem.message


def test_what_was_sent_goes_and_what_was_added_since_stays(qtbot, draft, tmp_path) -> None:
    draft.add(files(tmp_path, "sent", "added since"))
    wait(qtbot, draft)
    draft.sent([draft.items[0].id])
    assert draft.ready == (Attachment("1.txt", "added since"),)


def test_other_files_take_the_place_of_these_and_come_back(qtbot, draft, tmp_path) -> None:
    draft.add(files(tmp_path, "mine"))
    wait(qtbot, draft)
    mine = draft.items
    draft.put_attachments([Attachment("old.txt", "of the edited message")])
    wait(qtbot, draft)
    assert [item.tokens for item in draft.items] == [4]
    draft.put(mine)
    assert draft.items == mine
