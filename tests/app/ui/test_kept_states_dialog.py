"""How much is kept of conversations: shown, chosen in gigabytes, refused in words, and removed when asked."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from PySide6.QtCore import Qt
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QMessageBox

from app.kept_states import KeptStates
from app.settings import Settings
from app.ui.kept_states_dialog import KeptStatesDialog
from app.ui.main_window import MainWindow

KEPT = KeptStates(
    Path("/home/someone/data/states"),
    num_bytes=312_000_000,
    default_ram_bytes=4 * 2**30,
    default_disk_bytes=10 * 10**9,
)

OpenDialog = Callable[..., KeptStatesDialog]


@pytest.fixture
def open_dialog(qtbot) -> OpenDialog:
    def open_one(**settings: int | None) -> KeptStatesDialog:
        dialog = KeptStatesDialog(Settings(**settings))
        dialog.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose, False)
        qtbot.addWidget(dialog)
        dialog.open()
        return dialog

    return open_one


def test_it_says_how_much_is_on_disk_now_and_where(open_dialog: OpenDialog) -> None:
    dialog = open_dialog()
    assert not dialog.remove_button.isEnabled(), "nothing was measured yet"
    dialog.show_kept(KEPT)
    assert dialog.used.text().replace("\u202f", " ") == "312 MB on disk now"
    assert dialog.folder.text() == str(KEPT.folder)
    assert dialog.remove_button.isEnabled()


def test_what_is_taken_where_nothing_is_chosen_stands_in_the_empty_fields(open_dialog: OpenDialog) -> None:
    dialog = open_dialog()
    dialog.show_kept(KEPT)
    assert (dialog.memory.text(), dialog.memory.placeholderText()) == ("", "4.3")
    assert (dialog.disk.text(), dialog.disk.placeholderText()) == ("", "10.0")
    dialog.show_kept(replace(KEPT, default_ram_bytes=41_000_000))
    assert dialog.memory.placeholderText() == "0.041", "0.0 would mean that nothing is kept"


@pytest.mark.parametrize(
    ("memory", "disk", "chosen"),
    [
        ("", "", (None, None)),
        ("0", "0", (0, 0)),
        ("2.5", "10", (2_500_000_000, 10_000_000_000)),
        (" 2,5 GB ", "500 MB", (2_500_000_000, 500_000_000)),
        ("0.0", "1tb", (0, 10**12)),
        ("0,125", "1.125", (125_000_000, 1_125_000_000)),
    ],
)
def test_sizes_are_chosen_in_gigabytes(
    open_dialog: OpenDialog, record, memory: str, disk: str, chosen: tuple[int | None, int | None]
) -> None:
    dialog = open_dialog(state_ram_bytes=1, state_disk_bytes=2)
    said = record(limited=dialog.limited)
    dialog.memory.setText(memory)
    dialog.disk.setText(disk)
    dialog.save_button.click()
    assert said == [("limited", *chosen)]
    assert not dialog.isVisible()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("-1", "“-1” is below 0"),
        ("\N{MINUS SIGN}2 GB", "below 0"),
        ("much", "“much” is no size. Write gigabytes, such as 2.5"),
        ("1,234.5", "no size"),
        ("1,500 MB", "“1,500 MB” can be read in two ways. Write 1500 or 1.500"),
        ("1e9", "no size"),
        ("nan", "no size"),
        ("5 apples", "no size"),
        ("٣", "no size"),
        ("99999999", "more than any computer has"),
        ("9" * 300, "no size"),
    ],
)
@pytest.mark.parametrize("field", ["memory", "disk"])
def test_what_makes_no_sense_is_refused_in_words_and_nothing_changes(
    open_dialog: OpenDialog, record, field: str, text: str, words: str
) -> None:
    dialog = open_dialog()
    said = record(limited=dialog.limited)
    edit = getattr(dialog, field)
    edit.setText(text)
    dialog.save_button.click()
    assert (said, dialog.isVisible()) == ([], True)
    assert words in dialog.error.text()
    assert dialog.error.isVisible()
    assert edit.hasFocus() or edit.selectedText() == text
    QTest.keyClicks(edit, "1")
    assert not dialog.error.isVisible(), "it is being mended"


def test_what_was_chosen_comes_back_as_it_was(open_dialog: OpenDialog, record) -> None:
    for num_bytes in (0, 1, 10**9, 1_234_567_890, 10**15):
        dialog = open_dialog(state_ram_bytes=num_bytes, state_disk_bytes=None)
        said = record(limited=dialog.limited)
        dialog.save_button.click()
        assert said == [("limited", num_bytes, None)]


def test_nothing_is_removed_before_it_was_asked(open_dialog: OpenDialog, record) -> None:
    dialog = open_dialog()
    dialog.show_kept(KEPT)
    said = record(removal=dialog.removal_asked)
    for button, expected in (("Cancel", []), ("Remove", [("removal",)])):
        dialog.remove_button.click()
        (box,) = (each for each in dialog.findChildren(QMessageBox) if each.isVisible())
        next(each for each in box.buttons() if each.text().replace("&", "") == button).click()
        assert said == expected


def test_the_window_remembers_what_was_chosen_and_shows_it_again(window: MainWindow, qtbot) -> None:
    window.actions_.toggle_live.trigger()
    window.panel.limits_requested.emit()
    (dialog,) = window.findChildren(KeptStatesDialog)
    with qtbot.waitSignal(window.controller.kept_states.measured):
        pass
    assert dialog.used.text() == "Nothing on disk now"
    dialog.memory.setText("1")
    dialog.disk.setText("0")
    with qtbot.waitSignal(window.controller.kept_states.measured):
        dialog.save_button.click()
    settings = window.controller.settings
    assert (settings.state_ram_bytes, settings.state_disk_bytes) == (10**9, 0)
    qtbot.waitUntil(lambda: window.findChildren(KeptStatesDialog) == [])
    window.actions_.kept_states.trigger()
    (dialog,) = window.findChildren(KeptStatesDialog)
    assert (dialog.memory.text(), dialog.disk.text()) == ("1", "0")


def test_closing_the_window_closes_it(window: MainWindow) -> None:
    window.actions_.kept_states.trigger()
    window.close()
    assert window.closed_cleanly
