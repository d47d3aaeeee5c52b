"""The bar that says how far an export or an import is."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from PySide6.QtCore import Qt

from app import transfer_session
from app.conversations import ConversationStore
from app.transfer_job import TransferProgress, TransferStage
from app.transfer_session import ExportFormat
from app.ui.main_window import MainWindow
from app.ui.transfer_bar import TransferBar


@pytest.fixture
def bar(qtbot) -> TransferBar:
    bar = TransferBar()
    qtbot.addWidget(bar)
    return bar


@pytest.mark.parametrize(
    ("progress", "words", "value"),
    [
        (
            TransferProgress(TransferStage.WRITING, "a.md", 1500, 3000),
            "Writing chat 1,500 of 3,000 to a.md",
            500,
        ),
        (TransferProgress(TransferStage.ADDING, "a.zip", 0, 2), "Adding chat 0 of 2 from a.zip", 0),
        (TransferProgress(TransferStage.READING, "{a}.zip", 7), "Reading {a}.zip: 7 chats so far", None),
    ],
)
def test_it_says_what_is_done_of_what(bar: TransferBar, progress, words: str, value: int | None) -> None:
    bar.show_progress(progress)
    assert bar.isVisible()
    assert bar.words == bar.accessibleName() == words
    assert (bar.bar.value() if bar.bar.maximum() else None) == value


def test_it_goes_when_nothing_is_under_way_and_can_be_cancelled_once(bar: TransferBar, qtbot) -> None:
    progress = TransferProgress(TransferStage.READING, "a", 1)
    bar.show_progress(progress)
    with qtbot.waitSignal(bar.cancel_requested):
        qtbot.keyClick(bar.cancel_button, Qt.Key.Key_Space)
    bar.show_progress(progress)
    assert not bar.cancel_button.isEnabled()
    bar.show_progress(None)
    assert not bar.isVisible()
    bar.show_progress(progress)
    assert bar.cancel_button.isEnabled()


def test_a_long_export_is_cancelled_in_the_list(
    window: MainWindow, qtbot, app_paths, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.transfer_job.FIRST_SECONDS", 0.0)
    go_on = threading.Event()
    monkeypatch.setattr(transfer_session, "read_archived", lambda *_: go_on.wait(60) and None)
    bar = window.conversations.transfer_bar
    with qtbot.waitSignal(window.controller.transfer.progressed):
        window.controller.transfer.export(["a", "b"], tmp_path / "out.json", ExportFormat.JSON)
    assert bar.isVisible()
    qtbot.mouseClick(bar.cancel_button, Qt.MouseButton.LeftButton)
    with qtbot.waitSignal(window.controller.transfer.notice_raised):
        go_on.set()
    assert not bar.isVisible()
    assert [notice.code for notice in window.banners.notices()] == ["transfer-cancelled"]
    assert list(tmp_path.glob("out*")) == []
    ConversationStore(app_paths.conversations_file).close()  # and it can be opened
