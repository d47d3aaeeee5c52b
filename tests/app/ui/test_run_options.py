"""What models run on: chosen in one place, remembered, and seen in what the card of a model says."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from PySide6.QtCore import Qt
from PySide6.QtTest import QTest

from app.ui.main_window import MainWindow
from app.ui.run_options import RunOptions


@pytest.fixture
def options(qtbot) -> RunOptions:
    options = RunOptions()
    qtbot.addWidget(options)
    options.show()
    return options


def title(options: RunOptions) -> str:
    return options.disclosure.text().replace("\u202f", " ")


def write(options: RunOptions, text: str) -> None:
    options.budget.selectAll()
    QTest.keyClicks(options.budget, text)
    QTest.keyClick(options.budget, Qt.Key.Key_Return)


def test_one_line_says_what_is_chosen_and_opens_with_the_keyboard(options: RunOptions) -> None:
    assert title(options) == "Runs on the graphics card if there is one"
    assert not options.box.isVisible()
    options.disclosure.setFocus()
    QTest.keyClick(options.disclosure, Qt.Key.Key_Return)
    assert options.box.isVisible()
    assert options.choices["auto"].isChecked()


@pytest.mark.parametrize(
    ("device", "budget", "words"),
    [
        ("auto", None, "Runs on the graphics card if there is one"),
        ("cuda", 8 * 10**9, "Runs on the graphics card, with at most 8 GB of its memory"),
        ("cuda", 500_000_000, "Runs on the graphics card, with at most 500 MB of its memory"),
        ("cpu", 8 * 10**9, "Runs on the processor"),
    ],
)
def test_what_is_remembered_is_shown_and_said_to_nobody(
    options: RunOptions, record, device: str, budget: int | None, words: str
) -> None:
    said = record(device=options.device_chosen, budget=options.budget_chosen)
    options.show_choice(device, budget)
    assert title(options) == words
    assert options.choices[device].isChecked()
    assert options.budget.text() == ("" if budget is None else f"{budget / 1e9:g}")
    assert options.budget.isEnabled() == (device != "cpu")
    QTest.keyClick(options.budget, Qt.Key.Key_Return)
    assert said == []


def test_a_device_is_chosen_once(options: RunOptions, record) -> None:
    said = record(device=options.device_chosen)
    for device in ("cpu", "cpu", "cuda", "auto"):
        options.choices[device].click()
    assert said == [("device", "cpu"), ("device", "cuda"), ("device", "auto")]
    assert options.device == "auto"


def test_a_budget_is_taken_in_gigabytes_and_an_empty_field_means_the_whole_card(
    options: RunOptions, record
) -> None:
    options.disclosure.setChecked(True)
    said = record(budget=options.budget_chosen)
    write(options, "2.5")
    write(options, "2.50")
    write(options, "500 MB")
    options.budget.clear()
    QTest.keyClick(options.budget, Qt.Key.Key_Return)
    assert said == [("budget", 2_500_000_000), ("budget", 500_000_000), ("budget", None)]
    assert title(options) == "Runs on the graphics card if there is one"


@pytest.mark.parametrize("text", ["0", "-3", "much", "1,500"])
def test_what_is_no_size_is_said_and_changes_nothing(options: RunOptions, record, text: str) -> None:
    options.disclosure.setChecked(True)
    options.show_choice("auto", 10**9)
    said = record(budget=options.budget_chosen)
    write(options, text)
    assert said == []
    assert options.error.isVisible()
    assert text in options.error.text()
    write(options, "1")
    assert not options.error.isVisible(), "it was corrected"
    assert said == [], "to what it was"


# In the window


def test_the_choice_is_kept_for_the_next_start_and_is_what_the_next_load_gets(
    open_window: Callable[..., MainWindow], qtbot, script, model_folder: Path
) -> None:
    window = open_window()
    options = window.loader.options
    options.disclosure.setChecked(True)
    options.choices["cuda"].click()
    write(options, "12")
    with qtbot.waitSignal(window.controller.slots_changed):
        window.controller.load_model(model_folder)
    assert (script.configs[-1].device, script.configs[-1].vram_budget) == ("cuda", 12 * 10**9)
    window.close()
    again = open_window().loader.options
    assert (again.device, again.budget.text()) == ("cuda", "12")


def test_another_choice_has_the_model_looked_at_again_and_takes_nothing_from_the_person(
    window: MainWindow, qtbot, model_folder: Path
) -> None:
    loader = window.loader
    with qtbot.waitSignal(window.controller.model_inspected):
        loader.pick(model_folder)
    assert "card" not in [notice.code for notice in loader.card.shown_notices]
    loader.options.disclosure.setChecked(True)
    window.activateWindow()
    loader.options.budget.setFocus()
    with qtbot.waitSignal(window.controller.model_inspected):
        loader.options.choices["cuda"].click()
    [problem] = [notice for notice in loader.card.shown_notices if notice.code.startswith("card-")]
    assert "is to run on a card" in problem.message
    assert not loader.card.load_button.isEnabled()
    with qtbot.waitSignal(window.controller.model_inspected):
        loader.options.choices["cpu"].click()
    assert not [notice for notice in loader.card.shown_notices if notice.code.startswith("card-")]
    assert loader.card.load_button.isEnabled()
    assert not loader.card.load_button.hasFocus(), "who chooses a device isn't led elsewhere"


def test_nothing_is_looked_at_where_no_model_was_picked(window: MainWindow, record) -> None:
    asked = record(asked=window.loader.inspect_requested)
    window.loader.options.choices["cpu"].click()
    assert asked == []
