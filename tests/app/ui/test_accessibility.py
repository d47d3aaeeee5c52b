"""A screen reader has a name for everything that can be used, and hears what happens by itself."""

from __future__ import annotations

import pytest
from PySide6 import QtGui
from PySide6.QtGui import QAccessible, QAccessibleAnnouncementEvent, QAccessibleEvent
from PySide6.QtWidgets import QAbstractItemView, QLabel, QWidget
from surfaces import SURFACES, controls, told

from app.ui.announcements import announce
from app.ui.main_window import MainWindow
from app.ui.message_view import MessageView
from engine.notices import Notice

DECORATION = ("Swatch", "IconLabel", "FocusRing")  # beside words that say the same, and around them


def spoken_name(widget: QWidget) -> str:
    interface = QAccessible.queryAccessibleInterface(widget)
    assert interface is not None, told(widget)
    return interface.text(QAccessible.Text.Name)


@pytest.mark.parametrize("surface", SURFACES, indirect=True)
def test_every_control_has_a_name_for_screen_readers(surface: QWidget) -> None:
    seen = list(controls(surface))
    assert seen
    assert [told(one) for one in seen if not spoken_name(one).strip()] == []


@pytest.mark.parametrize("surface", SURFACES, indirect=True)
def test_every_row_of_a_list_is_read_whole(surface: QWidget) -> None:
    for view in surface.findChildren(QAbstractItemView):
        if not view.isVisible():
            continue
        interface = QAccessible.queryAccessibleInterface(view)
        for row in range(view.model().rowCount()):
            child = interface.child(row)
            assert child is not None, told(view)
            assert child.text(QAccessible.Text.Name).strip(), f"row {row} of {told(view)}"


@pytest.mark.parametrize("surface", SURFACES, indirect=True)
def test_what_is_only_painted_is_also_said(surface: QWidget) -> None:
    """A bar, a plot, a meter: nothing but its accessible name tells a screen reader what it shows."""
    painted = [
        one
        for one in surface.findChildren(QWidget)
        if one.isVisible()
        and any(
            "paintEvent" in vars(kind) for kind in type(one).__mro__ if kind.__module__.startswith("app.")
        )
        and not any(child.isVisible() for child in one.findChildren(QWidget))
        and type(one).__name__ not in DECORATION
        and not (isinstance(one, QLabel) and not one.text())
    ]
    assert [told(one) for one in painted if not spoken_name(one).strip()] == []


@pytest.fixture
def heard(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, bool]]:
    """What a screen reader is told by itself, and whether at once."""
    told_of: list[tuple[str, bool]] = []

    def hear(event: QAccessibleEvent) -> None:
        if isinstance(event, QAccessibleAnnouncementEvent):
            urgent = event.politeness() is QAccessible.AnnouncementPoliteness.Assertive
            told_of.append((event.message(), urgent))

    monkeypatch.setattr(QAccessible, "updateAccessibility", hear)
    return told_of


def end_answer(window: MainWindow, qtbot, script) -> None:
    with qtbot.waitSignal(window.controller.answer_finished):
        script.gates[1].set()


def test_the_end_of_an_answer_is_said(answering: MainWindow, qtbot, script, heard) -> None:
    assert heard == [], "not while it is being written"
    end_answer(answering, qtbot, script)
    assert heard == [("The answer is complete.", False)]


def test_a_stopped_answer_is_said_to_be_stopped(answering: MainWindow, qtbot, heard) -> None:
    with qtbot.waitSignal(answering.controller.answer_finished):
        answering.chat.stop_requested.emit()
    assert heard == [("The answer was stopped.", False)]


def test_an_answer_that_ends_in_another_chat_is_said_with_its_title(
    answering: MainWindow, qtbot, script, heard
) -> None:
    answering.conversations.new_requested.emit()
    end_answer(answering, qtbot, script)
    assert heard == [("A new answer is in “Hi”.", False)]


@pytest.mark.parametrize(
    ("code", "words", "urgent"), [("disk-full", "Error", True), ("no-model", "Note", False)]
)
def test_a_notice_is_said_whole_and_an_error_at_once(
    window: MainWindow, heard, code: str, words: str, urgent: bool
) -> None:
    window.show_notice(Notice(code, "It is so.", "Do this."))
    assert heard == [(f"{words}: It is so. Do this.", urgent)]


def test_where_qt_cannot_announce_the_part_is_pointed_at(
    window: MainWindow, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before Qt 6.8."""
    events: list[QAccessible.Event] = []
    monkeypatch.delattr(QtGui, "QAccessibleAnnouncementEvent")
    monkeypatch.setattr(QAccessible, "updateAccessibility", lambda event: events.append(event.type()))
    announce(window, "It is so.")
    assert events == [QAccessible.Event.Alert]


@pytest.mark.parametrize("surface", ["a chat"], indirect=True)
def test_messages_and_their_parts_follow_one_another_for_screen_readers(surface: MainWindow) -> None:
    """Views are made from the newest to the oldest, but read from the oldest."""
    content = QAccessible.queryAccessibleInterface(surface.chat.transcript.widget())
    parts = [content.child(number).object() for number in range(content.childCount())]
    assert [one for one in parts if isinstance(one, MessageView)] == list(surface.chat.transcript.views)
    for view in surface.chat.transcript.views:
        seen = [one for one in view.children() if isinstance(one, QWidget) and one.isVisible()]
        assert [one.y() for one in seen] == sorted(one.y() for one in seen)
