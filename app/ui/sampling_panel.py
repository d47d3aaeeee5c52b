"""How one chat draws its tokens: a field for each setting, empty where the model's own value holds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from PySide6.QtCore import Qt, Signal
from PySide6.QtWidgets import QGridLayout, QLabel, QLineEdit, QPlainTextEdit, QVBoxLayout, QWidget

from app.chat_sampling import MAX_STOP_LENGTH, MAX_STOPS, RANGES, SamplingChoice
from app.language import mark, tr
from app.ui.composition import Composition
from app.ui.push_button import PushButton
from app.ui.style_sheet import set_role
from app.ui.text_size import follow_text_size, scaled
from app.ui.theme import SPACE_L, SPACE_M, SPACE_S, SPACE_XS
from app.ui.wrapped_label import WrappedLabel
from engine.generation import SamplingParams

_FIELD_WIDTH = 92
_COLUMNS = 2
_STOP_LINES = 2


@dataclass(frozen=True)
class _Words:
    """In English."""

    name: str
    explanation: str
    allowed: str  # completes "The temperature is …"


_FIELDS: dict[str, _Words] = {
    "temperature": _Words(
        mark("Temperature"),
        mark("How freely words are drawn. 0 always takes the likeliest one; above 1 gets wild."),
        mark("a number from 0 to 10"),
    ),
    "top_p": _Words(
        mark("Top-p"),
        mark("Draws from the likeliest tokens that together have this probability. 1 takes all."),
        mark("a number above 0, at most 1"),
    ),
    "top_k": _Words(
        mark("Top-k"),
        mark("Draws from this many of the likeliest tokens. 0 takes all."),
        mark("a whole number, 0 or more"),
    ),
    "min_p": _Words(
        mark("Min-p"),
        mark(
            "Leaves out tokens that are less likely than this share of the likeliest one. 0 leaves out none."
        ),
        mark("a number from 0, below 1"),
    ),
    "repetition_penalty": _Words(
        mark("Repetition penalty"),
        mark(
            "Makes tokens less likely that occurred before. 1 does nothing; more than 1.2 harms most answers."
        ),
        mark("a number from 0.01 to 100"),
    ),
    "max_tokens": _Words(
        mark("Longest answer"),
        mark("In tokens. An empty field lets the model end by itself, or the context."),
        mark("a whole number of tokens, 1 or more"),
    ),
    "seed": _Words(
        mark("Seed"),
        mark(
            "The same seed, settings and question give the same answer. "
            "An empty field takes another each time."
        ),
        mark("a whole number from 0 to 2147483647"),
    ),
}


class SamplingPanel(QWidget):
    """Signals: edited(), when something was typed or cleared."""

    edited = Signal()

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.fields: dict[str, QLineEdit] = {}
        self.stop = _StopEdit(self)
        self.recommended_button = PushButton(tr("Use the model's recommended"), self)
        self.recommended_button.setToolTip(tr("Empties all fields, so that the model's own values hold"))
        self.error = WrappedLabel("", self)
        set_role(self.error, "danger")
        self.error.hide()
        self._lay_out()
        for field in self.fields.values():
            field.textEdited.connect(self._on_edited)
        self.stop.textChanged.connect(self._on_edited)
        self.recommended_button.clicked.connect(lambda: self.show_choice(SamplingChoice()))

    def show_recommended(self, recommended: SamplingParams) -> None:
        """What holds where a field is empty."""
        for name, field in self.fields.items():
            value = getattr(recommended, name, None)
            field.setPlaceholderText(_written(value) or tr(_EMPTY[name]))

    def show_choice(self, choice: SamplingChoice) -> None:
        for name, field in self.fields.items():
            field.setText(_written(getattr(choice, name)))
        self.stop.setPlainText("\n".join(_escaped(text) for text in choice.stop))
        self._on_edited()

    def choice(self) -> SamplingChoice | None:
        """What the fields say. None: one of them can't be used; which, stands below and has the focus."""
        values: dict[str, Any] = {}
        for name, field in self.fields.items():
            number = _number(field.text())
            if number is None and not field.text().strip():
                continue
            bounds = RANGES[name]
            if number is None or not bounds.holds(number):
                text, allowed = field.text().strip(), tr(_FIELDS[name].allowed)
                self._refuse(
                    field, tr("“{text}” can't be used: write {allowed}.", text=text, allowed=allowed)
                )
                field.selectAll()
                return None
            values[name] = int(number) if bounds.whole else number
        stops = [_unescaped(line) for line in self.stop.toPlainText().split("\n") if line]
        if len(stops) > MAX_STOPS:
            sentence = tr(
                "There are {count} stop strings; {most} are the most.", count=len(stops), most=MAX_STOPS
            )
            self._refuse(self.stop, sentence)
            return None
        if any(len(text) > MAX_STOP_LENGTH for text in stops):
            sentence = tr("A stop string has at most {most} characters.", most=MAX_STOP_LENGTH)
            self._refuse(self.stop, sentence)
            return None
        return SamplingChoice(**values, stop=tuple(dict.fromkeys(stops)))

    def _refuse(self, field: QWidget, sentence: str) -> None:
        self.error.setText(sentence)
        self.error.show()
        field.setFocus()

    def _on_edited(self) -> None:
        self.error.hide()
        is_empty = not any(field.text() for field in self.fields.values()) and not self.stop.toPlainText()
        self.recommended_button.setEnabled(not is_empty)
        self.edited.emit()

    def _lay_out(self) -> None:
        grid = QGridLayout()
        grid.setHorizontalSpacing(SPACE_M)
        grid.setVerticalSpacing(SPACE_S)
        for index, (name, words) in enumerate(_FIELDS.items()):
            field = self.fields[name] = QLineEdit(self)
            follow_text_size(field, lambda field=field: field.setFixedWidth(scaled(_FIELD_WIDTH)))
            field.setAlignment(Qt.AlignmentFlag.AlignRight)
            field.setAccessibleName(tr(words.name))
            field.setAccessibleDescription(tr(words.explanation))
            label = QLabel(tr(words.name), self)
            label.setBuddy(field)
            for part in (label, field):
                part.setToolTip(tr(words.explanation))
            row, column = divmod(index, _COLUMNS)
            grid.addWidget(label, row, 3 * column)
            grid.addWidget(field, row, 3 * column + 1)
        grid.setColumnMinimumWidth(2, SPACE_L)
        grid.setColumnStretch(0, 1)
        grid.setColumnStretch(3, 1)
        label = QLabel(tr("Stop strings, one a line"), self)
        label.setBuddy(self.stop)
        label.setToolTip(self.stop.toolTip())
        column = QVBoxLayout(self)
        column.setContentsMargins(0, 0, 0, 0)
        column.setSpacing(SPACE_M)
        column.addLayout(grid)
        below = QVBoxLayout()
        below.setSpacing(SPACE_XS)
        below.addWidget(label)
        below.addWidget(self.stop)
        column.addLayout(below)
        column.addWidget(self.error)
        column.addWidget(self.recommended_button, 0, Qt.AlignmentFlag.AlignLeft)


class _StopEdit(QPlainTextEdit):
    """A few short lines; Tab leaves it."""

    def __init__(self, parent: QWidget) -> None:
        super().__init__(parent)
        self.setTabChangesFocus(True)
        self.setAccessibleName(tr("Stop strings, one a line"))
        self.setToolTip(tr("An answer ends where one of these would come. \\n stands for the end of a line."))
        self.setPlaceholderText(tr("none"))
        Composition(self)
        set_role(self, "field")
        follow_text_size(self, self._fit)

    def _fit(self) -> None:
        self.setFixedHeight(self.fontMetrics().lineSpacing() * _STOP_LINES + 2 * SPACE_S + SPACE_XS)


_EMPTY = dict.fromkeys(_FIELDS, "") | {"max_tokens": mark("no limit"), "seed": mark("by chance")}
_ESCAPES = (("\\", "\\\\"), ("\n", "\\n"), ("\t", "\\t"))


def _escaped(text: str) -> str:
    for plain, written in _ESCAPES:
        text = text.replace(plain, written)
    return text


def _unescaped(line: str) -> str:
    parts = line.split("\\\\")  # an escaped backslash is none of the others
    for plain, written in _ESCAPES[1:]:
        parts = [part.replace(written, plain) for part in parts]
    return "\\".join(parts)


def _written(value: float | None) -> str:
    return "" if value is None else f"{value:.6g}" if isinstance(value, float) else str(value)


def _number(text: str) -> float | None:
    """A number as people write it; None if it is none."""
    try:
        number = float(text.strip().replace(",", "."))
    except ValueError:
        return None
    return number if number == number and abs(number) != float("inf") else None
