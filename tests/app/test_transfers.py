"""Long exports and imports say how far they are, and can be given up without leaving anything behind."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from app import transfer_session
from app.archive import ArchivedConversation, ArchivedMessage
from app.controller import ChatController
from app.conversations import ConversationStore
from app.export_json import as_json
from app.transfer_job import TransferJob, TransferProgress, TransferStage
from app.transfer_session import ExportFormat
from engine.errors import Cancelled

TITLES = ["First", "第二", "Third"]


def conversation(title: str) -> ArchivedConversation:
    return ArchivedConversation(title, (ArchivedMessage("q", None, "user", f"What is {title}?"),))


@pytest.fixture(autouse=True)
def nothing_is_too_short_to_be_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.transfer_job.FIRST_SECONDS", 0.0)
    monkeypatch.setattr("app.transfer_job.INTERVAL_SECONDS", 0.0)


@pytest.fixture
def ids(app_paths) -> list[str]:
    store = ConversationStore(app_paths.conversations_file)
    found = store.add_archived([conversation(title) for title in TITLES])
    store.close()
    return found


@pytest.fixture
def started(qtbot, controller: ChatController, ids: list[str]) -> ChatController:
    with qtbot.waitSignal(controller.conversation_opened):
        controller.start()
    return controller


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "chats.json"
    path.write_text(f"[{','.join(as_json(conversation(title)) for title in TITLES)}]", encoding="utf-8")
    return path


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """An export waits for it before its second conversation."""
    go_on, asked = threading.Event(), []
    read = transfer_session.read_archived

    def read_slowly(connection, conversation_id: str) -> ArchivedConversation | None:
        asked.append(conversation_id)
        if len(asked) == 2:
            assert go_on.wait(60)
        return read(connection, conversation_id)

    monkeypatch.setattr(transfer_session, "read_archived", read_slowly)
    yield go_on
    go_on.set()


def titles(started: ChatController, qtbot) -> list[str]:
    with qtbot.waitSignal(started.conversations_changed) as changed:
        started.pin_conversations([], True)
    return sorted(summary.title for summary in changed.args[0])


def test_an_export_says_how_far_it_is_and_that_it_ended(qtbot, started, ids, tmp_path: Path, record) -> None:
    seen = record(step=started.transfer.progressed, notice=started.transfer.notice_raised)
    with qtbot.waitSignal(started.transfer.notice_raised):
        started.transfer.export(ids, tmp_path / "out.md", ExportFormat.MARKDOWN)
    steps = [TransferProgress(TransferStage.WRITING, "out.md", done, 3) for done in range(3)]
    assert [event[1] for event in seen[:-1]] == [*steps, None]
    assert seen[-1][1].code == "conversations-exported"


def test_an_import_says_how_much_was_read_and_then_added(qtbot, started, file: Path, record) -> None:
    seen = record(step=started.transfer.progressed)
    with qtbot.waitSignal(started.transfer.imported):
        started.transfer.import_files([file])
    reading = [TransferProgress(TransferStage.READING, "chats.json", done) for done in range(3)]
    adding = [TransferProgress(TransferStage.ADDING, "chats.json", done, 3) for done in range(3)]
    assert [event[1] for event in seen] == [*reading, *adding, None]


def test_a_cancelled_export_leaves_the_file_that_was_there(
    qtbot, started, ids, tmp_path: Path, held: threading.Event
) -> None:
    target = tmp_path / "out.json"
    target.write_text("an older export")
    with qtbot.waitSignal(started.transfer.progressed, check_params_cb=lambda progress: progress.done == 1):
        started.transfer.export(ids, target, ExportFormat.JSON)
    with qtbot.waitSignal(started.transfer.notice_raised) as told:
        started.transfer.cancel()
        held.set()
    assert told.args[0].code == "transfer-cancelled"
    assert target.read_text() == "an older export"
    assert [path for path in tmp_path.iterdir() if path.name.startswith("out")] == [target]


def test_what_waits_behind_a_cancelled_export_is_given_up_too(
    qtbot, started, ids, tmp_path: Path, held: threading.Event, file: Path, record
) -> None:
    codes = record(notice=started.transfer.notice_raised)
    with qtbot.waitSignal(started.transfer.progressed, check_params_cb=lambda progress: progress.done == 1):
        started.transfer.export(ids, tmp_path / "out.json", ExportFormat.JSON)
    started.transfer.import_files([file, file])
    with qtbot.waitSignal(started.transfer.progressed, check_params_cb=lambda progress: progress is None):
        started.transfer.cancel()
        held.set()
    qtbot.waitUntil(lambda: len(codes) == 3)
    assert {notice.code for _, notice in codes} == {"transfer-cancelled"}
    assert titles(started, qtbot) == sorted(TITLES)


def test_an_import_that_is_cancelled_while_it_is_added_adds_nothing(
    qtbot, started, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    add = ConversationStore.add_archived

    def add_and_be_cancelled(store, conversations, on_step):
        def step(done: int) -> None:
            if done == 2:
                started.transfer.cancel()
            on_step(done)

        return add(store, conversations, step)

    monkeypatch.setattr(ConversationStore, "add_archived", add_and_be_cancelled)
    with qtbot.waitSignal(started.transfer.notice_raised) as told:
        started.transfer.import_files([file])
    assert told.args[0].message == "The import of chats.json was cancelled; nothing of it was added."
    assert titles(started, qtbot) == sorted(TITLES)


def test_after_a_cancel_the_next_one_is_done(qtbot, started, ids, tmp_path: Path, held) -> None:
    with qtbot.waitSignal(started.transfer.progressed, check_params_cb=lambda progress: progress.done == 1):
        started.transfer.export(ids, tmp_path / "one.json", ExportFormat.JSON)
    with qtbot.waitSignal(started.transfer.notice_raised):
        started.transfer.cancel()
        held.set()
    with qtbot.waitSignal(started.transfer.notice_raised) as told:
        started.transfer.export(ids, tmp_path / "two.json", ExportFormat.JSON)
    assert told.args[0].code == "conversations-exported"


def test_a_failure_ends_the_progress_too(qtbot, started, tmp_path: Path, record) -> None:
    bad = tmp_path / "bad.json"
    bad.write_text("Dear diary")
    seen = record(step=started.transfer.progressed)
    with qtbot.waitSignal(started.transfer.notice_raised) as told:
        started.transfer.import_files([bad])
    assert told.args[0].code == "import-refused"
    assert seen[-1] == ("step", None)


def test_what_is_done_soon_shows_nothing_and_long_work_is_thinned(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [100.0]
    monkeypatch.setattr("app.transfer_job.FIRST_SECONDS", 0.4)
    monkeypatch.setattr("app.transfer_job.INTERVAL_SECONDS", 0.1)
    monkeypatch.setattr("app.transfer_job.time.monotonic", lambda: clock[0])
    seen: list[TransferProgress] = []
    job = TransferJob("x", seen.append)
    step = job.watcher(TransferStage.WRITING, 100)
    for done in range(100):
        clock[0] = 100.0 + done / 100
        step(done)
    assert [progress.done for progress in seen] == [40, 50, 60, 70, 80, 90]
    job.cancel.set()
    with pytest.raises(Cancelled):
        step(100)
