"""Names on the left, values on the right."""

from __future__ import annotations

from PySide6.QtWidgets import QGridLayout, QLabel, QWidget

from app.language import tr
from app.ui.elided_label import ElidedLabel
from app.ui.style_sheet import set_role
from app.ui.theme import SPACE_L, SPACE_XS

NOTHING = "\N{EM DASH}"


class Facts(QWidget):
    """Rows are known by their names in English. Some may be left out for a while, and keep their places."""

    def __init__(self, names: tuple[str, ...], parent: QWidget) -> None:
        super().__init__(parent)
        self._names: dict[str, QLabel] = {}
        self._values: dict[str, ElidedLabel] = {}
        grid = QGridLayout(self)
        grid.setContentsMargins(0, 0, 0, 0)
        grid.setHorizontalSpacing(SPACE_L)
        grid.setVerticalSpacing(SPACE_XS)
        grid.setColumnStretch(1, 1)
        for row, name in enumerate(names):
            label = self._names[name] = QLabel(tr(name), self)
            set_role(label, "small")
            value = self._values[name] = ElidedLabel(NOTHING, self)
            grid.addWidget(label, row, 0)
            grid.addWidget(value, row, 1)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._names)

    def value_tooltip(self, name: str) -> str:
        return self._values[name].toolTip()

    def fact(self, name: str) -> str:
        return self._values[name].text()

    def show_fact(self, name: str, value: str) -> None:
        if self._values[name].text() != value:
            self._values[name].setText(value)

    def explanation(self, name: str) -> str:
        return self._names[name].toolTip()

    def explain(self, name: str, explanation: str) -> None:
        """In a tooltip on name and value; behind the whole value while that is shortened."""
        self._names[name].setToolTip(explanation)
        self._values[name].explain(explanation)

    def is_left_out(self, name: str) -> bool:
        return self._names[name].isHidden()

    def leave_out(self, name: str, left_out: bool) -> None:
        self._names[name].setHidden(left_out)
        self._values[name].setHidden(left_out)
