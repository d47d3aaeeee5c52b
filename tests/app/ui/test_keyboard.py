"""Everything can be reached without a mouse, in an order that makes sense, and one sees where one is."""

from __future__ import annotations

import pytest
from PySide6.QtCore import QPoint, QRect, Qt
from PySide6.QtGui import QContextMenuEvent, QImage
from PySide6.QtTest import QTest
from PySide6.QtWidgets import (
    QAbstractItemView,
    QApplication,
    QMenu,
    QMessageBox,
    QPushButton,
    QRadioButton,
    QScrollBar,
    QWidget,
)
from surfaces import SURFACES, controls, show_chat, told

from app.settings import Theme as ThemeChoice
from app.ui.document_view import DocumentView
from app.ui.focus_ring import FocusRing
from app.ui.main_window import MainWindow
from app.ui.tab_order import reading_order
from app.ui.theme import contrast, theme_manager

_MOST_STEPS = 400


def tabbed(qtbot, root: QWidget) -> list[QWidget]:
    """What gets the focus by Tab, once round, in that order."""
    top = root.window()
    top.activateWindow()
    qtbot.waitUntil(top.isActiveWindow)
    if top.focusWidget() is None:
        QTest.keyClick(top, Qt.Key.Key_Tab)
    order: list[QWidget] = []
    for _ in range(_MOST_STEPS):
        at = QApplication.focusWidget()
        if at is None:
            break
        if at in order:
            if at is order[0]:
                break  # once round; else still inside a part with links of its own
        else:
            order.append(at)
        QTest.keyClick(at, Qt.Key.Key_Tab)
    return order


def chosen_by_arrows(widget: QWidget, order: list[QWidget]) -> bool:
    """One of several radio buttons: Tab reaches the one that is chosen, arrows the others."""
    return isinstance(widget, QRadioButton) and any(
        isinstance(one, QRadioButton) and one.parentWidget() is widget.parentWidget() for one in order
    )


def test_the_order_is_by_rows_and_from_left_to_right_however_things_were_made(qtbot) -> None:
    root = QWidget()
    qtbot.addWidget(root)
    places = {"beside": (100, 60), "second": (60, 0), "below": (0, 62), "first": (0, 4)}
    buttons = {name: QPushButton(name, root) for name in places}
    for name, (left, top) in places.items():
        buttons[name].setGeometry(left, top, 50, 30)
    root.show()
    qtbot.waitExposed(root)
    assert [one.text() for one in reading_order(root)] == ["first", "second", "below", "beside"]


@pytest.mark.parametrize("surface", SURFACES, indirect=True)
def test_tab_reaches_every_control(qtbot, surface: QWidget) -> None:
    seen = list(controls(surface))
    order = tabbed(qtbot, surface)
    missed = [one for one in seen if one not in order and not chosen_by_arrows(one, order)]
    assert [told(one) for one in missed] == []


@pytest.mark.parametrize("surface", SURFACES, indirect=True)
def test_tab_goes_from_the_top_down_and_from_left_to_right(qtbot, surface: QWidget) -> None:
    """And back the same way by Shift+Tab."""
    if isinstance(surface, QMessageBox):
        return  # its buttons stand as the desktop has them
    forward = tabbed(qtbot, surface)
    first = min(forward, key=lambda one: reading_order(surface).index(one))
    place = forward.index(first)
    assert forward[place:] + forward[:place] == [one for one in reading_order(surface) if one in forward]
    at = QApplication.focusWidget()
    QTest.keyClick(at, Qt.Key.Key_Backtab, Qt.KeyboardModifier.ShiftModifier)
    assert QApplication.focusWidget() is forward[forward.index(at) - 1]


def test_parts_of_the_window_follow_one_another(window: MainWindow) -> None:
    """The list, the line above the chat, the chat, what is written, the line below, each as a whole."""
    show_chat(window)
    order = reading_order(window)
    chat = window.chat
    parts = [window.conversations, window.header, chat.transcript, chat.composer, window.status]
    at = [
        next(number for number, part in enumerate(parts) if part.isAncestorOf(one))
        for one in order
        if one is not chat.jump_button
    ]
    assert at == sorted(at)
    assert len(set(at)) >= 4


def test_messages_are_read_from_the_oldest_and_their_buttons_after_their_words(window: MainWindow) -> None:
    show_chat(window)
    views = window.chat.transcript.views
    order = [one for one in reading_order(window.chat.transcript) if not isinstance(one, QScrollBar)]
    assert [view.message_id for view in views] == ["m1", "m2", "m3", "m4"]
    at = [next(number for number, view in enumerate(views) if view.isAncestorOf(one)) for one in order]
    assert at == sorted(at)
    for view in views:
        mine = [one for one in order if view.isAncestorOf(one)]
        words = [mine.index(one) for one in mine if isinstance(one, DocumentView)]
        buttons = [mine.index(one) for one in mine if view.actions_.isAncestorOf(one)]
        assert max(words) < min(buttons)


def test_the_message_that_gets_the_focus_is_scrolled_to(qtbot, window: MainWindow) -> None:
    show_chat(window)
    first = window.chat.transcript.views[0]
    qtbot.wait(0)
    assert first.files[0].visibleRegion().isEmpty(), "the chat is at its end"
    window.header.menu_button.setFocus()
    QTest.keyClick(window.header.menu_button, Qt.Key.Key_Tab)
    focus = QApplication.focusWidget()
    assert first.isAncestorOf(focus)
    assert not focus.visibleRegion().isEmpty()


# Where one is can be seen


def picture_around(widget: QWidget) -> QImage:
    top = widget.window()
    corner = widget.mapTo(top, QPoint(0, 0))
    around = QRect(corner, widget.size()).adjusted(-8, -8, 8, 8) & top.rect()
    return top.grab(around).toImage()


def seen_change(before: QImage, after: QImage) -> float:
    """The strongest contrast between what was and what is, of any point."""
    changed = {
        (before.pixelColor(x, y).name(), after.pixelColor(x, y).name())
        for x in range(before.width())
        for y in range(before.height())
        if before.pixel(x, y) != after.pixel(x, y)
    }
    return max((contrast(*pair) for pair in changed), default=1.0)


@pytest.mark.parametrize("theme", [ThemeChoice.LIGHT, ThemeChoice.DARK])
@pytest.mark.parametrize("surface", SURFACES, indirect=True)
def test_what_has_the_focus_is_marked(qtbot, surface: QWidget, theme: ThemeChoice) -> None:
    """In each theme anew; lists mark the row."""
    theme_manager().apply(theme)
    top = surface.window()
    top.activateWindow()
    qtbot.waitUntil(top.isActiveWindow)
    unmarked = []
    for one in reading_order(surface):
        if not one.isVisible():
            continue
        if isinstance(one, QAbstractItemView):
            QTest.keyClick(one, Qt.Key.Key_Down)  # to its first row, if to none yet
        one.setFocus(Qt.FocusReason.TabFocusReason)
        top.setAttribute(Qt.WidgetAttribute.WA_KeyboardFocusChange)  # as Tab does, see the next test
        QApplication.processEvents()
        if one.visibleRegion().isEmpty():
            continue
        after = picture_around(one)
        one.clearFocus()
        QApplication.processEvents()
        if seen_change(picture_around(one), after) < 3.0:
            unmarked.append(told(one))
    theme_manager().apply(ThemeChoice.LIGHT)
    assert unmarked == []


def test_lists_mark_their_row_when_tab_has_led_to_them(qtbot, window: MainWindow) -> None:
    show_chat(window)
    window.activateWindow()
    qtbot.waitUntil(window.isActiveWindow)
    view = window.conversations.view
    while QApplication.focusWidget() is not view:
        QTest.keyClick(QApplication.focusWidget(), Qt.Key.Key_Tab)
    after = picture_around(view)
    view.clearFocus()
    assert seen_change(picture_around(view), after) >= 3.0


@pytest.mark.parametrize("surface", ["a chat"], indirect=True)
def test_the_ring_around_a_text_goes_along_with_it(qtbot, surface: MainWindow) -> None:
    document = next(surface.chat.transcript.documents)
    document.setFocus(Qt.FocusReason.TabFocusReason)
    ring = surface.findChild(FocusRing)
    assert ring is not None
    host = ring.parentWidget()
    surface.resize(surface.width() - 150, surface.height())
    qtbot.wait(0)
    corner = document.mapTo(host, QPoint(0, 0))
    assert ring.geometry().contains(QRect(corner, document.size()))
    with qtbot.waitSignal(ring.destroyed):
        surface.chat.focus_composer()


@pytest.mark.parametrize("surface", ["a chat"], indirect=True)
def test_a_click_into_a_text_draws_no_ring(surface: MainWindow) -> None:
    next(surface.chat.transcript.documents).setFocus(Qt.FocusReason.MouseFocusReason)
    assert surface.findChild(FocusRing) is None


# Everything that a menu or a row offers by mouse


def test_every_action_of_the_window_is_in_its_menu_or_has_keys(window: MainWindow) -> None:
    listed = {action for menu in window.findChildren(QMenu) for action in menu.actions()}
    assert [
        action.text() for action in window.actions() if action not in listed and not action.shortcuts()
    ] == []


@pytest.mark.parametrize("surface", ["a chat"], indirect=True)
def test_the_menu_key_opens_the_menu_of_the_chosen_chat_and_of_a_message(qtbot, surface: MainWindow) -> None:
    """By the event that the key makes: its place is inside what has the focus."""
    view = surface.conversations.view
    view.setCurrentIndex(surface.conversations.model.index_of("c1"))
    document = surface.chat.transcript.views[1].documents[0]
    for widget, place in ((view, view.visualRect(view.currentIndex()).center()), (document, QPoint(5, 5))):
        reason = QContextMenuEvent.Reason.Keyboard
        QApplication.sendEvent(widget, QContextMenuEvent(reason, place, widget.mapToGlobal(place)))
        qtbot.waitUntil(lambda: QApplication.activePopupWidget() is not None)
        menu = QApplication.activePopupWidget()
        assert isinstance(menu, QMenu)
        assert [action.text() for action in menu.actions() if not action.isSeparator()]
        menu.close()


def test_the_panel_is_moved_by_the_menu_as_by_the_mouse(window: MainWindow) -> None:
    for area, action in window.actions_.panel_places.items():
        action.trigger()
        assert window.dock.isVisible()
        assert not window.dock.isFloating()
        assert window.places.frame.dockWidgetArea(window.dock) is area
