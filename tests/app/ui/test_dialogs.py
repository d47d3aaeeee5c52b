"""Questions never block the loop, and only the pressed button acts."""

from __future__ import annotations

import pytest
from PySide6.QtCore import Qt, QUrl
from PySide6.QtWidgets import QMessageBox, QWidget

from app.ui import dialogs


@pytest.fixture
def parent(qtbot) -> QWidget:
    parent = QWidget()
    qtbot.addWidget(parent)
    parent.show()
    return parent


def press(qtbot, box: QMessageBox, text: str) -> None:
    [button] = [button for button in box.buttons() if button.text().replace("&", "") == text]
    qtbot.mouseClick(button, Qt.MouseButton.LeftButton)


def test_web_address_is_opened_only_after_yes_and_is_shown_whole(parent: QWidget, qtbot) -> None:
    opened: list[QUrl] = []
    url = QUrl("https://example.org/a?b=c#d")
    box = dialogs.ask_to_open(parent, url, open_url=opened.append)
    assert box.isVisible(), "the call has returned while the question stands"
    assert "https://example.org/a?b=c#d" in box.informativeText()
    press(qtbot, box, "Cancel")
    assert opened == []
    press(qtbot, dialogs.ask_to_open(parent, url, open_url=opened.append), "Open")
    assert opened == [url]


@pytest.mark.parametrize(
    "address",
    [
        "file:///etc/passwd",
        "javascript:alert(1)",
        "data:text/html,x",
        "smb://host/share",
        "https:",
        "relative/path",
    ],
)
def test_anything_else_is_refused_in_words(parent: QWidget, address: str) -> None:
    opened: list[QUrl] = []
    box = dialogs.ask_to_open(parent, QUrl(address), open_url=opened.append)
    assert [button.text().replace("&", "") for button in box.buttons()] == ["Close"]
    for button in box.buttons():
        button.click()
    assert opened == []


def test_look_alike_address_is_shown_in_its_true_letters(parent: QWidget) -> None:
    box = dialogs.ask_to_open(parent, QUrl("https://exаmple.org/"), open_url=lambda _: None)  # Cyrillic "а"
    assert "xn--" in box.text() + box.informativeText()


def test_endless_address_does_not_make_an_endless_box(parent: QWidget) -> None:
    box = dialogs.ask_to_open(parent, QUrl("https://example.org/" + "a" * 5000), open_url=lambda _: None)
    assert len(box.informativeText()) < 500


def test_deleting_asks_and_return_does_not_delete(parent: QWidget, qtbot) -> None:
    deleted: list[bool] = []
    box = dialogs.ask_to_delete_message(parent, on_accept=lambda: deleted.append(True))
    assert box.textFormat() == Qt.TextFormat.PlainText
    qtbot.keyClick(box, Qt.Key.Key_Return)
    assert deleted == []
    box = dialogs.ask_to_delete_message(parent, on_accept=lambda: deleted.append(True))
    press(qtbot, box, "Delete")
    assert deleted == [True]


def test_escape_means_no(parent: QWidget, qtbot) -> None:
    deleted: list[bool] = []
    box = dialogs.ask_to_delete_message(parent, on_accept=lambda: deleted.append(True))
    qtbot.keyClick(box, Qt.Key.Key_Escape)
    qtbot.waitUntil(lambda: parent.findChild(QMessageBox) is None)
    assert deleted == []
