"""Every key that does something stands in one list, and the sheet shows that list."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

import pytest
from PySide6.QtCore import Qt
from PySide6.QtGui import QAction, QKeySequence, QShortcut
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QApplication, QWidget

import app.ui
from app.ui.actions import WindowActions
from app.ui.main_window import MainWindow
from app.ui.shortcut_list import ACTION_GROUPS, Shortcut, ShortcutGroup, all_shortcuts, shown_keys
from app.ui.shortcut_sheet import ShortcutRow, ShortcutSheet

SOURCES = sorted(Path(app.ui.__file__).parent.glob("*.py"))
NAMES = {"Return": "Enter", "Escape": "Esc", "Delete": "Del", "Up": "↑", "Down": "↓", "PageUp": "PgUp"}

# Where the keys that a module takes by itself stand in the sheet. The keys of a dialog are "Everywhere".
PLACES = {
    "chat_pane.py": ShortcutGroup.WRITING,
    "conversation_list.py": ShortcutGroup.LIST,
    "filter_bar.py": ShortcutGroup.SEARCH,
    "main_window.py": ShortcutGroup.MODELS,
    "message_edit.py": ShortcutGroup.WRITING,
    "preset_box.py": ShortcutGroup.ANYWHERE,
    "search_results.py": ShortcutGroup.SEARCH,
    "settings_dialog.py": ShortcutGroup.ANYWHERE,
    "shortcut_sheet.py": ShortcutGroup.ANYWHERE,
}
ELSEWHERE = {("chat_pane.py", "End"): ShortcutGroup.MESSAGES}
# Keys of the sheet itself, which scroll it as they scroll any page.
OF_PAGES = {("shortcut_sheet.py", "↑"), ("shortcut_sheet.py", "↓")}


def keys_in(source: Path) -> Iterator[str]:
    """The keys that a module compares what is pressed with, as the sheet calls them."""
    for node in ast.walk(ast.parse(source.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Attribute) and node.attr.startswith("Key_"):
            name = node.attr.removeprefix("Key_")
            yield NAMES.get(name, name)


@pytest.fixture
def shortcuts(window: MainWindow) -> tuple[Shortcut, ...]:
    return all_shortcuts(window.actions_)


@pytest.fixture
def sheet(window: MainWindow) -> ShortcutSheet:
    window.actions_.shortcuts.trigger()
    opened = window.findChild(ShortcutSheet)
    opened.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose, False)
    return opened


def listed(shortcuts: tuple[Shortcut, ...]) -> set[tuple[str, ...]]:
    return {keys for shortcut in shortcuts for keys in shortcut.ways}


def test_every_shortcut_of_the_window_is_listed(window: MainWindow, shortcuts: tuple[Shortcut, ...]) -> None:
    there = [keys for action in window.findChildren(QAction) for keys in action.shortcuts()]
    there += [shortcut.key() for shortcut in window.findChildren(QShortcut)]
    assert there
    texts = (keys.toString(QKeySequence.SequenceFormat.PortableText) for keys in there)
    assert {shown_keys(text) for text in texts if text} <= listed(shortcuts)


def test_every_action_with_keys_has_its_place(window: MainWindow) -> None:
    with_keys = set()
    for one in fields(WindowActions):
        made = getattr(window.actions_, one.name)
        if any(action.shortcuts() for action in (made.values() if isinstance(made, dict) else (made,))):
            with_keys.add(one.name)
    assert with_keys == set(ACTION_GROUPS)


def test_no_two_actions_have_the_same_keys(window: MainWindow) -> None:
    keys = [each.toString() for action in window.findChildren(QAction) for each in action.shortcuts() if each]
    assert len(keys) == len(set(keys))


@pytest.mark.parametrize("source", SOURCES, ids=lambda path: path.name)
def test_every_key_that_a_widget_takes_is_listed_in_its_place(
    source: Path, shortcuts: tuple[Shortcut, ...]
) -> None:
    for key in keys_in(source):
        if (source.name, key) in OF_PAGES:
            continue
        assert source.name in PLACES, f"{source.name} takes {key}: say in PLACES where that is listed"
        group = ELSEWHERE.get((source.name, key), PLACES[source.name])
        here = {each for one in shortcuts if one.group is group for keys in one.ways for each in keys}
        name = "Enter" if key == "Enter" else key
        assert name in here, f"{source.name} takes {key}; it is not listed under “{group.value}”"


def test_places_name_only_modules_that_take_keys() -> None:
    assert {source.name for source in SOURCES if any(keys_in(source))} == set(PLACES)


def test_keys_that_tooltips_name_are_listed(window: MainWindow, shortcuts: tuple[Shortcut, ...]) -> None:
    known = {"+".join(keys) for keys in listed(shortcuts)}
    for widget in window.findChildren(QWidget):
        tip = widget.toolTip()
        if tip.endswith(")") and "(" in tip:
            named = tip.rpartition("(")[2].removesuffix(")")
            if QKeySequence(named).count() and not named.islower():
                assert named in known, f"{tip!r} names keys that the sheet does not have"


@pytest.mark.parametrize(
    ("written", "keys"),
    [
        ("Ctrl+N", ("Ctrl", "N")),
        ("Ctrl+Shift++", ("Ctrl", "Shift", "+")),
        ("+", ("+",)),
        ("Esc", ("Esc",)),
        ("Ctrl+/", ("Ctrl", "/")),
        ("Shift+Up", ("Shift", "↑")),
    ],
)
def test_a_combination_is_taken_apart_by_its_keys(written: str, keys: tuple[str, ...]) -> None:
    assert shown_keys(written) == keys


@pytest.mark.parametrize("key", [Qt.Key.Key_Slash, Qt.Key.Key_F1])
def test_its_keys_open_it_and_esc_closes_it(window: MainWindow, qtbot, key: Qt.Key) -> None:
    window.activateWindow()
    window.chat.focus_composer()
    control = Qt.KeyboardModifier.ControlModifier
    QTest.keyClick(window, key, control if key == Qt.Key.Key_Slash else Qt.KeyboardModifier.NoModifier)
    sheet = window.findChild(ShortcutSheet)
    assert sheet is not None
    assert sheet.isVisible()
    with qtbot.waitSignal(sheet.finished):
        QTest.keyClick(sheet.search, Qt.Key.Key_Escape)


def test_it_shows_all_that_is_listed_once(sheet: ShortcutSheet, shortcuts: tuple[Shortcut, ...]) -> None:
    assert sorted(map(repr, sheet.shown())) == sorted(map(repr, shortcuts))
    assert all(row.accessibleName() for row in sheet.findChildren(ShortcutRow))


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ("new chat", ["New chat", "Branch into a new chat"]),
        ("ctrl+j", ["Show what the engine keeps"]),
        ("SHIFT+ENTER", ["Begin a new line"]),
        ("models folder", ["Open a model folder"]),
    ],
)
def test_typing_finds_by_words_and_by_keys(sheet: ShortcutSheet, query: str, found: list[str]) -> None:
    QTest.keyClicks(sheet.search, query)
    assert [one.words for one in sheet.shown()] == found


def test_a_search_without_result_says_so_and_esc_ends_the_search_before_the_dialog(
    sheet: ShortcutSheet,
) -> None:
    every = len(sheet.shown())
    QTest.keyClicks(sheet.search, "xyzzy")
    assert sheet.shown() == []
    assert sheet.nothing.isVisible()
    QTest.keyClick(sheet.search, Qt.Key.Key_Return)
    assert sheet.isVisible(), "Enter closes nothing"
    QTest.keyClick(sheet.search, Qt.Key.Key_Escape)
    assert sheet.isVisible()
    assert len(sheet.shown()) == every
    QTest.keyClick(sheet.search, Qt.Key.Key_Escape)
    assert not sheet.isVisible()


def test_one_can_begin_to_type_at_once(window: MainWindow, sheet: ShortcutSheet, qtbot) -> None:
    qtbot.waitUntil(lambda: QApplication.focusWidget() is sheet.search)


def test_arrows_scroll_it_while_the_field_has_the_focus(sheet: ShortcutSheet, qtbot) -> None:
    sheet.resize(sheet.minimumSize())
    bar = sheet._scroll.verticalScrollBar()
    qtbot.waitUntil(lambda: bar.maximum() > 0)
    QTest.keyClick(sheet.search, Qt.Key.Key_Down)
    assert bar.value() > 0
    QTest.keyClick(sheet.search, Qt.Key.Key_Up)
    assert bar.value() == 0
