"""Lines of the settings: a name, a sentence, a control at the right. A search finds them by their words."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from PySide6.QtCore import Qt, Signal
from PySide6.QtWidgets import QHBoxLayout, QLabel, QLineEdit, QVBoxLayout, QWidget

from app.language import tr
from app.ui.choice_box import ChoiceBox
from app.ui.elided_label import ElidedLabel
from app.ui.push_button import PushButton
from app.ui.style_sheet import set_role
from app.ui.text_size import follow_text_size, scaled
from app.ui.theme import SPACE_L, SPACE_S, SPACE_XS
from app.ui.wrapped_label import WrappedLabel

_FIELD_WIDTH = 110
_CHOICE_WIDTH = 140  # at least, so that short ones stand in one column


class SettingRow(QWidget):
    """`words` are found by a search as well, beside the name and the sentence."""

    def __init__(self, name: str, sentence: str, *, words: str = "", parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.name = name
        self._searched = f"{name} {sentence} {words}".casefold()
        self.title = QLabel(name, self)
        self.sentence = WrappedLabel(sentence, self)
        self.sentence.setFocusPolicy(Qt.FocusPolicy.NoFocus)
        set_role(self.sentence, "small")
        self.error = WrappedLabel("", self)
        set_role(self.error, "danger")
        self.error.hide()
        self.text = QVBoxLayout()
        self.text.setSpacing(2)
        self.text.addWidget(self.title)
        self.text.addWidget(self.sentence)
        self.text.addWidget(self.error)
        self.row = QHBoxLayout(self)
        self.row.setContentsMargins(0, SPACE_S, 0, SPACE_S)
        self.row.setSpacing(SPACE_L)
        self.row.addLayout(self.text, 1)

    def matches(self, query: str) -> bool:
        """All words of the query occur."""
        return all(_occurs(word, self._searched) for word in query.casefold().split())

    def add_control(self, control: QWidget) -> None:
        self.title.setBuddy(control)
        self.setFocusProxy(control)
        control.setAccessibleName(self.name)
        control.setAccessibleDescription(self.sentence.text())
        control.setToolTip(self.sentence.text())
        self.row.addWidget(control, 0, Qt.AlignmentFlag.AlignVCenter)


def _occurs(word: str, text: str) -> bool:
    """As it stands; or, as some scripts write words without spaces, in pieces of two signs and more."""
    if word in text or word.isascii():
        return word in text
    ends = {0}  # up to which the word has been found
    for end in range(2, len(word) + 1):
        if any(end - start >= 2 and word[start:end] in text for start in ends):
            ends.add(end)
    return len(word) in ends


class ChoiceRow(SettingRow):
    """One of several. Signals: chosen(value)."""

    chosen = Signal(object)

    def __init__(
        self,
        name: str,
        sentence: str,
        *,
        options: Sequence[tuple[Any, str]],
        words: str = "",
        parent: QWidget | None = None,
    ) -> None:
        """options: values, and what they are called."""
        said = " ".join(option for _, option in options)
        super().__init__(name, sentence, words=f"{words} {said}", parent=parent)
        self._values = [value for value, _ in options]
        self.box = ChoiceBox(self)
        follow_text_size(self.box, lambda: self.box.setMinimumWidth(scaled(_CHOICE_WIDTH)))
        self.box.addItems([option for _, option in options])
        self.add_control(self.box)
        self.box.activated.connect(lambda index: self.chosen.emit(self._values[index]))

    def show_value(self, value: Any) -> None:
        self.box.setCurrentIndex(self._values.index(value))


class NumberRow(SettingRow):
    """A number that may be left empty. What can't be used is told and changes nothing. Signals:
    chosen(number or None).
    """

    chosen = Signal(object)

    def __init__(
        self,
        name: str,
        sentence: str,
        *,
        read: Callable[[str], int],
        write: Callable[[int], str],
        unit: str,
        empty: str,
        words: str = "",
        parent: QWidget | None = None,
    ) -> None:
        """read: raises ValueError with a sentence. empty: what an empty field stands for, in a word."""
        super().__init__(name, sentence, words=words, parent=parent)
        self._read, self._write = read, write
        self._value: int | None = None
        self.field = QLineEdit(self)
        follow_text_size(self.field, lambda: self.field.setFixedWidth(scaled(_FIELD_WIDTH)))
        self.field.setAlignment(Qt.AlignmentFlag.AlignRight)
        self.field.setPlaceholderText(empty)
        self.add_control(self.field)
        unit_label = QLabel(unit, self)
        follow_text_size(unit_label, lambda: unit_label.setMinimumWidth(self._widest_unit()))
        self.row.addWidget(unit_label)
        self.field.textEdited.connect(self.error.hide)
        self.field.editingFinished.connect(self._on_finished)

    def show_value(self, value: int | None) -> None:
        self._value = value
        self.error.hide()
        self.field.setText("" if value is None else self._write(value))

    def _widest_unit(self) -> int:
        """Pixels, so that fields stand in one column."""
        return self.fontMetrics().horizontalAdvance(tr("tokens")) + 2

    def _on_finished(self) -> None:
        """When the field is left, or Enter is pressed."""
        text = self.field.text().strip()
        try:
            value = self._read(text) if text else None
        except ValueError as error:
            self.error.setText(str(error))
            self.error.show()
            return
        if value != self._value:
            self._value = value
            self.chosen.emit(value)


class ButtonRow(SettingRow):
    """Signals: pressed()."""

    pressed = Signal()

    def __init__(
        self,
        name: str,
        sentence: str,
        *,
        button: str,
        danger: bool = False,
        words: str = "",
        parent: QWidget | None = None,
    ) -> None:
        super().__init__(name, sentence, words=words, parent=parent)
        self.button = PushButton(button, self)
        set_role(self.button, "danger" if danger else "")
        self.row.addWidget(self.button, 0, Qt.AlignmentFlag.AlignVCenter)
        self.button.setAccessibleName(tr("{name}: {action}", name=name, action=button))
        self.button.setToolTip(sentence)
        self.button.clicked.connect(self.pressed)


class FolderRow(SettingRow):
    """Where something lies. Signals: reveal_asked(), change_asked(), default_asked()."""

    reveal_asked = Signal()
    change_asked = Signal()
    default_asked = Signal()

    def __init__(
        self, name: str, sentence: str, *, changes: bool, words: str = "", parent: QWidget | None = None
    ) -> None:
        """changes: whether another one can be chosen."""
        super().__init__(name, sentence, words=f"{tr('folder place')} {words}", parent=parent)
        self.path = ElidedLabel("", self, mode=Qt.TextElideMode.ElideMiddle)
        self.reveal_button = self._button(tr("Show in file manager"), self.reveal_asked)
        self.change_button = self._button(tr("Change…"), self.change_asked)
        self.default_button = self._button(tr("Use the default"), self.default_asked)
        self.change_button.setVisible(changes)
        self._changes = changes
        buttons = QHBoxLayout()
        buttons.setContentsMargins(0, SPACE_XS, 0, 0)
        buttons.setSpacing(SPACE_S)
        for button in (self.reveal_button, self.change_button, self.default_button):
            buttons.addWidget(button)
        buttons.addStretch(1)
        self.text.addWidget(self.path)
        self.text.addLayout(buttons)

    def show_folder(self, path: Path, *, is_default: bool) -> None:
        self.path.setText(str(path))
        self.default_button.setVisible(self._changes and not is_default)

    def _button(self, words: str, signal: Any) -> PushButton:
        button = PushButton(words, self)
        button.setAccessibleName(tr("{name}: {action}", name=self.name, action=words))
        button.setToolTip(tr("{name}: {action}", name=self.name, action=words))
        button.clicked.connect(signal)
        return button
