"""Instructions, presets and sampling of one chat, as a person chooses them."""

from __future__ import annotations

import pytest
from PySide6.QtCore import Qt
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QAbstractButton, QLineEdit, QMessageBox, QPlainTextEdit

from app.chat_sampling import CHAT_SAMPLING, SamplingChoice
from app.chat_settings import ChatSettings
from app.presets import Preset
from app.ui.chat_settings_dialog import ChatSettingsDialog
from app.ui.preset_box import NONE, OWN
from app.ui.sampling_panel import _escaped, _unescaped
from engine.generation import SamplingParams

POET, TUTOR = Preset("Poet", "Write in verse."), Preset("Tutor", "Explain step by step.")
OFFERED = SamplingParams(temperature=0.7, top_k=20)


@pytest.fixture
def open_dialog(qtbot):
    def open_one(
        settings: ChatSettings = ChatSettings(),  # noqa: B008
        *,
        remembered: SamplingChoice = SamplingChoice(),  # noqa: B008
        recommended: SamplingParams | None = OFFERED,
        model: str = "Qwen",
    ) -> ChatSettingsDialog:
        dialog = ChatSettingsDialog(
            settings, (POET, TUTOR), recommended=recommended, remembered=remembered, model=model
        )
        dialog.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose, False)
        qtbot.addWidget(dialog)
        dialog.show()
        return dialog

    return open_one


def chosen(dialog: ChatSettingsDialog, record) -> list[tuple]:
    return record(chosen=dialog.chosen, remembered=dialog.remembered, presets=dialog.presets_changed)


def press_box(dialog: ChatSettingsDialog, words: str) -> None:
    """In the question that stands open."""
    box = dialog.presets.findChild(QMessageBox)
    next(button for button in box.buttons() if button.text() == words).click()


def test_what_is_chosen_is_shown_and_saved_as_it_was(open_dialog, record) -> None:
    settings = ChatSettings(
        "Be brief.", SamplingChoice(0.9, 0.95, 40, 0.1, 1.1, 7, 500, ("END", "\n\n", "back\\slash"))
    )
    dialog = open_dialog(settings)
    events = chosen(dialog, record)
    dialog.save_button.click()
    assert events == [("chosen", settings)]


def test_an_empty_field_shows_what_the_model_recommends(open_dialog, record) -> None:
    dialog = open_dialog()
    shown = {name: field.placeholderText() for name, field in dialog.sampling.fields.items()}
    assert (shown["temperature"], shown["top_k"], shown["top_p"]) == ("0.7", "20", "1")
    assert dialog.about_grey.text() == "Grey values are recommended by Qwen."
    other = open_dialog(recommended=SamplingParams())
    assert other.sampling.fields["min_p"].placeholderText() == str(CHAT_SAMPLING.min_p)
    assert "recommends nothing" in other.about_grey.text()
    assert "No model is loaded" in open_dialog(recommended=None, model="").about_grey.text()


def test_the_model_s_recommended_empties_every_field(open_dialog, record) -> None:
    dialog = open_dialog(ChatSettings("Be brief.", SamplingChoice(temperature=0.9, stop=("END",))))
    events = chosen(dialog, record)
    dialog.sampling.recommended_button.click()
    assert not dialog.sampling.recommended_button.isEnabled()
    dialog.save_button.click()
    assert events == [("chosen", ChatSettings("Be brief."))]


@pytest.mark.parametrize(
    ("name", "text", "allowed"),
    [
        ("temperature", "hot", "a number from 0 to 10"),
        ("temperature", "-1", "a number from 0 to 10"),
        ("temperature", "nan", "a number from 0 to 10"),
        ("top_p", "0", "a number above 0, at most 1"),
        ("top_p", "inf", "a number above 0, at most 1"),
        ("top_k", "2.5", "a whole number, 0 or more"),
        ("min_p", "1", "a number from 0, below 1"),
        ("repetition_penalty", "0", "a number from 0.01 to 100"),
        ("seed", str(2**31), "a whole number from 0 to 2147483647"),
        ("max_tokens", "0", "a whole number of tokens, 1 or more"),
    ],
)
def test_a_number_that_can_not_be_used_is_told_and_nothing_is_saved(
    open_dialog, record, name: str, text: str, allowed: str
) -> None:
    dialog = open_dialog()
    events = chosen(dialog, record)
    dialog.sampling.fields[name].setText(text)
    dialog.save_button.click()
    assert events == []
    assert dialog.isVisible()
    assert dialog.sampling.error.text() == f"“{text}” can't be used: write {allowed}."
    QTest.keyClicks(dialog.sampling.fields[name], "1")
    assert dialog.sampling.error.isHidden()


def test_a_decimal_comma_is_a_decimal_point(open_dialog, record) -> None:
    dialog = open_dialog()
    events = chosen(dialog, record)
    dialog.sampling.fields["temperature"].setText(" 0,5 ")
    dialog.save_button.click()
    assert events == [("chosen", ChatSettings(sampling=SamplingChoice(temperature=0.5)))]


def test_stop_strings_are_one_a_line_each_once(open_dialog, record) -> None:
    dialog = open_dialog()
    events = chosen(dialog, record)
    dialog.sampling.stop.setPlainText("END\n\n\\n\\nUser:\nEND")
    dialog.save_button.click()
    assert events[0][1].sampling.stop == ("END", "\n\nUser:")
    dialog = open_dialog()
    for text, sentence in (
        ("x" * 201, "at most 200 characters"),
        ("\n".join("abcdefghijklmnopq"), "16 are the most"),
    ):
        dialog.sampling.stop.setPlainText(text)
        assert dialog.sampling.choice() is None
        assert sentence in dialog.sampling.error.text()


@pytest.mark.parametrize("text", ["\n", "\\n", "\\\n\\", "\\\\n", "a\tb", "\\"])
def test_a_stop_string_is_written_on_one_line_and_read_again(text: str) -> None:
    assert "\n" not in _escaped(text)
    assert _unescaped(_escaped(text)) == text


def test_new_chats_with_the_model_begin_so_when_that_is_ticked(open_dialog, record) -> None:
    warm = SamplingChoice(temperature=0.9)
    dialog = open_dialog(ChatSettings(sampling=warm))
    events = chosen(dialog, record)
    assert not dialog.remember.isChecked()
    dialog.remember.click()
    dialog.save_button.click()
    assert events == [("remembered", warm), ("chosen", ChatSettings(sampling=warm))]


def test_a_tick_that_is_taken_away_is_forgotten_and_one_that_never_was_changes_nothing(
    open_dialog, record
) -> None:
    warm = SamplingChoice(temperature=0.9)
    dialog = open_dialog(ChatSettings(sampling=warm), remembered=warm)
    events = chosen(dialog, record)
    assert dialog.remember.isChecked()
    dialog.remember.click()
    dialog.save_button.click()
    assert events[0] == ("remembered", SamplingChoice())
    other = open_dialog(remembered=warm)
    events = chosen(other, record)
    other.save_button.click()
    assert [name for name, _ in events] == ["chosen"]


def test_without_a_model_nothing_can_be_remembered_of_it(open_dialog) -> None:
    assert open_dialog(recommended=None, model="").remember.isHidden()


# Presets


def test_a_preset_is_chosen_and_the_list_names_what_is_written(open_dialog, record) -> None:
    dialog = open_dialog()
    box = dialog.presets
    assert box.chooser.currentText() == NONE
    box.chooser.setCurrentText("Tutor")
    assert box.instructions == TUTOR.text
    box.text.setPlainText("My own.")
    assert box.chooser.currentText() == OWN
    assert box.save_button.isEnabled()
    assert not box.delete_button.isEnabled()
    box.text.setPlainText(f"{POET.text}\n")
    assert box.chooser.currentText() == "Poet"
    assert box.chooser.findText(OWN) < 0
    box.chooser.setCurrentIndex(0)
    assert box.instructions == ""
    events = chosen(dialog, record)
    box.chooser.setCurrentText("Poet")
    dialog.save_button.click()
    assert events == [("chosen", ChatSettings(POET.text))]


@pytest.mark.parametrize("name", [OWN, NONE])
def test_a_preset_that_is_called_as_an_entry_of_the_list_is_told_from_it(open_dialog, name: str) -> None:
    dialog = open_dialog(ChatSettings("My own."))
    box = dialog.presets
    box.save_button.click()
    box.name.setText(name)
    box.keep_button.click()
    box.text.setPlainText("Other words.")
    assert box.chooser.currentIndex() == box.chooser.count() - 1 == 4
    assert box.chooser.currentText() == OWN
    assert not box.delete_button.isEnabled()
    box.text.setPlainText("My own.")
    assert box.chooser.count() == 4
    assert box.chooser.currentText() == name
    assert box.delete_button.isEnabled()


def test_own_words_become_a_preset(open_dialog, record, qtbot) -> None:
    dialog = open_dialog(ChatSettings("Answer like a pirate."))
    events = chosen(dialog, record)
    dialog.presets.save_button.click()
    QTest.keyClicks(dialog.presets.name, "Pirate")
    dialog.presets.keep_button.click()
    assert events == [("presets", (Preset("Pirate", "Answer like a pirate."), POET, TUTOR))]
    assert dialog.presets.chooser.currentText() == "Pirate"
    assert dialog.isVisible()


def test_enter_in_the_name_keeps_the_preset_and_closes_nothing(open_dialog, record) -> None:
    dialog = open_dialog(ChatSettings("Answer like a pirate."))
    events = chosen(dialog, record)
    dialog.presets.save_button.click()
    QTest.keyClicks(dialog.presets.name, "Pirate")
    QTest.keyClick(dialog.presets.name, Qt.Key.Key_Return)
    assert [name for name, _ in events] == ["presets"]
    assert dialog.isVisible()


def test_a_preset_is_replaced_only_after_a_question(open_dialog, record) -> None:
    dialog = open_dialog(ChatSettings("Rhyme."))
    events = chosen(dialog, record)
    dialog.presets.save_button.click()
    dialog.presets.name.setText("poet")
    dialog.presets.keep_button.click()
    assert events == []
    press_box(dialog, "Replace")
    assert events == [("presets", (Preset("poet", "Rhyme."), TUTOR))]


def test_a_preset_is_renamed(open_dialog, record) -> None:
    dialog = open_dialog(ChatSettings(POET.text))
    events = chosen(dialog, record)
    dialog.presets.rename_button.click()
    assert dialog.presets.name.text() == "Poet"
    dialog.presets.name.setText("tutor")
    dialog.presets.keep_button.click()
    assert dialog.presets.error.text() == "There is a preset “tutor” already. Choose another name."
    dialog.presets.name.setText("Zen poet")
    dialog.presets.keep_button.click()
    assert events == [("presets", (TUTOR, Preset("Zen poet", POET.text)))]
    assert dialog.presets.chooser.currentText() == "Zen poet"


def test_a_preset_is_deleted_after_a_question_and_the_words_stay(open_dialog, record) -> None:
    dialog = open_dialog(ChatSettings(POET.text))
    events = chosen(dialog, record)
    dialog.presets.delete_button.click()
    assert events == []
    press_box(dialog, "Delete")
    assert events == [("presets", (TUTOR,))]
    assert dialog.presets.instructions == POET.text
    assert dialog.presets.chooser.currentText() == OWN


def test_every_control_has_a_name(open_dialog) -> None:
    dialog = open_dialog()
    parts = [
        part
        for kind in (QAbstractButton, QLineEdit, QPlainTextEdit)
        for part in dialog.findChildren(kind)
        if part.objectName() != "qt_spinbox_lineedit"
    ]
    assert len(parts) >= 15
    for part in parts:
        name = part.accessibleName() or (part.text() if isinstance(part, QAbstractButton) else "")
        assert name, part
