"""Files that stand unsent in a chat, over a restart of the window."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from app.attachments import Attachment


def test_files_that_stand_unsent_are_there_after_a_restart(
    window, qtbot, open_window, tmp_path: Path
) -> None:
    path = tmp_path / "birds.txt"
    path.write_text("Kestrels hover.")
    window.attachments.attach([path])
    qtbot.waitUntil(lambda: len(window.controller.attachments.ready) == 1)
    window.close()
    path.unlink()
    again = open_window()
    qtbot.waitUntil(lambda: len(again.controller.attachments.ready) == 1)
    (item,) = again.controller.attachments.items
    assert (item.name, item.attachment.text) == ("birds.txt", "Kestrels hover.")
    again.controller.attachments.remove(item.id)
    again.close()
    assert open_window().controller.attachments.items == ()


def test_a_file_that_was_being_read_at_the_end_is_named_after_the_restart(
    window, qtbot, open_window, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun = threading.Event()

    def read(path: Path, cancel: threading.Event) -> Attachment:
        begun.set()
        assert cancel.wait(60)
        return Attachment(path.name, "text")

    monkeypatch.setattr("app.file_text.read_attachment", read)
    window.attachments.attach([tmp_path / "slow.txt"])
    assert begun.wait(60)
    window.close()
    again = open_window()
    qtbot.waitUntil(lambda: len(again.controller.attachments.items) == 1)
    (item,) = again.controller.attachments.items
    assert item.problem.code == "attachment-not-kept"
    assert "slow.txt" in item.problem.message
