"""The panel can be moved: to the other side, below the chat, into a window of its own; and it stays there."""

from __future__ import annotations

from collections.abc import Callable

from PySide6.QtCore import QByteArray, Qt

from app.ui.main_window import MainWindow

Area = Qt.DockWidgetArea


def opened(window: MainWindow, qtbot) -> MainWindow:
    if not window.panel.isVisible():
        qtbot.mouseClick(window.header.live_button, Qt.MouseButton.LeftButton)
    assert window.panel.isVisible()
    return window


def test_its_button_puts_it_away_and_that_is_remembered(window: MainWindow, qtbot) -> None:
    opened(window, qtbot)
    qtbot.mouseClick(window.dock.close_button, Qt.MouseButton.LeftButton)
    assert not window.panel.isVisible()
    assert not window.sides.is_wanted(window.dock)
    assert not window.controller.settings.live_panel
    qtbot.mouseClick(window.header.live_button, Qt.MouseButton.LeftButton)
    assert window.panel.isVisible()


def test_a_window_of_its_own_takes_no_room_from_the_chat_and_comes_back(window: MainWindow, qtbot) -> None:
    opened(window, qtbot)
    window.resize(1100, 600)
    beside = window.chat.width() + window.loader.width()
    qtbot.mouseClick(window.dock.float_button, Qt.MouseButton.LeftButton)
    assert window.dock.isFloating()
    assert window.panel.isVisible()
    assert window.dock.taken_width == 0
    qtbot.waitUntil(lambda: window.chat.width() + window.loader.width() > beside)
    assert "Put back" in window.dock.float_button.toolTip()
    window.resize(640, 600)
    assert window.panel.isVisible(), "a narrow window doesn't hide what isn't in it"
    qtbot.mouseClick(window.dock.float_button, Qt.MouseButton.LeftButton)
    assert not window.dock.isFloating()


def test_below_the_chat_it_leaves_the_list_its_place_in_a_narrow_window(window: MainWindow, qtbot) -> None:
    opened(window, qtbot)
    window.places.frame.addDockWidget(Area.BottomDockWidgetArea, window.dock)
    window.resize(640, 700)
    qtbot.waitUntil(lambda: window.width() == 640)
    assert window.dock.taken_width == 0
    assert window.panel.isVisible()
    assert window.conversations.isVisible()


def test_where_it_was_is_remembered(open_window: Callable[..., MainWindow], qtbot) -> None:
    first = opened(open_window(), qtbot)
    first.places.frame.addDockWidget(Area.LeftDockWidgetArea, first.dock)
    first.close()
    again = open_window()
    assert again.places.frame.dockWidgetArea(again.dock) is Area.LeftDockWidgetArea
    assert again.panel.isVisible()


def test_a_remembered_place_that_is_no_place_is_not_used(
    open_window: Callable[..., MainWindow], qtbot
) -> None:
    first = opened(open_window(), qtbot)
    first.places.frame.saveState = lambda: QByteArray(b"no place")
    first.close()
    again = open_window()
    assert again.controller.settings.dock_state_base64 == "bm8gcGxhY2U="
    assert again.places.frame.dockWidgetArea(again.dock) is Area.RightDockWidgetArea
    assert again.panel.isVisible()


def test_what_was_folded_stays_folded_at_the_next_start(
    open_window: Callable[..., MainWindow], qtbot
) -> None:
    first = opened(open_window(), qtbot)
    qtbot.keyClick(first.panel.sections["Model"].heading, Qt.Key.Key_Space)
    assert first.controller.settings.folded_sections == ("Model",)
    first.close()
    second = opened(open_window(), qtbot)
    assert not second.panel.sections["Model"].heading.isChecked()
    assert not second.panel.model.isVisible()
    assert second.panel.now.isVisible()
    qtbot.keyClick(second.panel.sections["Model"].heading, Qt.Key.Key_Space)
    assert second.panel.model.isVisible()
    assert second.controller.settings.folded_sections == ()


def test_a_name_of_another_version_folds_nothing(window: MainWindow, qtbot) -> None:
    opened(window, qtbot).panel.fold(["Of a later version"])
    assert window.panel.now.isVisible()
    assert window.panel.model.isVisible()
