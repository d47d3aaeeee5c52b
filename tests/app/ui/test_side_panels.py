"""The chat keeps its width: what stands beside it gives way, and comes back."""

from __future__ import annotations

import pytest
from PySide6.QtCore import Qt
from PySide6.QtWidgets import QWidget

from app.settings import load_settings
from app.ui.main_window import MainWindow

LEAST_CHAT = 400  # pixels
NARROW, WIDE = 640, 1100


def shown(window: MainWindow) -> tuple[bool, bool]:
    """Whether the list and the panel are on the screen."""
    return window.conversations.isVisible(), window.panel.isVisible()


def chat_width(window: MainWindow) -> int:
    return window.chat.width() if window.chat.isVisible() else window.loader.width()


def resize(qtbot, window: MainWindow, width: int) -> None:
    window.resize(width, 500)
    qtbot.waitUntil(lambda: window.width() == width)


@pytest.fixture
def narrow(window: MainWindow, qtbot) -> MainWindow:
    resize(qtbot, window, NARROW)
    return window


def test_the_chat_keeps_its_least_width_whatever_is_opened_beside_it(narrow: MainWindow, qtbot) -> None:
    for button in (narrow.header.live_button, narrow.header.sidebar_button, narrow.header.live_button):
        qtbot.mouseClick(button, Qt.MouseButton.LeftButton)
        qtbot.waitUntil(lambda: chat_width(narrow) >= LEAST_CHAT)
        assert narrow.width() == NARROW


@pytest.mark.parametrize("width", range(640, 900, 13))
def test_at_every_width_as_much_is_shown_as_leaves_the_chat_its_room(
    window: MainWindow, qtbot, width: int
) -> None:
    window.actions_.toggle_live.trigger()
    resize(qtbot, window, width)
    qtbot.waitUntil(lambda: chat_width(window) >= LEAST_CHAT)
    assert window.panel.isVisible()
    room = LEAST_CHAT + window.panel.minimumWidth() + window.conversations.minimumWidth() + 2
    assert window.conversations.isVisible() == (width >= room)


def test_where_both_find_no_room_the_one_that_was_asked_for_last_is_shown(narrow: MainWindow) -> None:
    assert shown(narrow) == (True, False)
    narrow.actions_.toggle_live.trigger()
    assert shown(narrow) == (False, True)
    narrow.actions_.toggle_sidebar.trigger()
    assert shown(narrow) == (True, False)
    narrow.actions_.toggle_live.trigger()
    assert shown(narrow) == (False, True)


def test_putting_one_away_brings_back_the_one_that_gave_way(narrow: MainWindow) -> None:
    narrow.actions_.toggle_live.trigger()
    narrow.actions_.toggle_live.trigger()
    assert shown(narrow) == (True, False)
    narrow.actions_.toggle_sidebar.trigger()
    assert shown(narrow) == (False, False), "the panel was put away before"


def test_what_gave_way_comes_back_when_the_window_grows(narrow: MainWindow, qtbot) -> None:
    narrow.actions_.toggle_live.trigger()
    resize(qtbot, narrow, WIDE)
    assert shown(narrow) == (True, True)
    resize(qtbot, narrow, NARROW)
    assert shown(narrow) == (False, True)


def test_a_title_is_renamed_where_it_can_be_seen(narrow: MainWindow) -> None:
    narrow.actions_.toggle_live.trigger()
    narrow.actions_.rename.trigger()
    assert shown(narrow) == (True, False)


def test_a_panel_that_only_gave_way_is_there_at_the_next_start(narrow: MainWindow, app_paths) -> None:
    narrow.actions_.toggle_live.trigger()
    narrow.actions_.toggle_sidebar.trigger()
    assert shown(narrow) == (True, False)
    narrow.close()
    assert load_settings(app_paths.settings_file).settings.live_panel


def test_the_list_is_what_a_narrow_window_starts_with(open_window, qtbot) -> None:
    first = open_window()
    resize(qtbot, first, NARROW)
    first.actions_.toggle_live.trigger()
    first.close()
    second = open_window()
    assert second.width() == NARROW
    assert shown(second) == (True, False)
    assert chat_width(second) >= LEAST_CHAT


def test_hidden_widgets_take_no_room_of_others(window: MainWindow, qtbot) -> None:
    window.actions_.toggle_sidebar.trigger()
    resize(qtbot, window, NARROW)
    window.actions_.toggle_live.trigger()
    qtbot.waitUntil(lambda: chat_width(window) + window.panel.width() + 1 == NARROW)
    assert isinstance(window.chat.parentWidget(), QWidget)
