"""What models run on, and how much of the card they may take: for the next load, and remembered.

Signals: device_chosen(DeviceChoice), budget_chosen(bytes or None).
"""

from __future__ import annotations

from PySide6.QtCore import Qt, Signal
from PySide6.QtWidgets import (
    QButtonGroup,
    QFrame,
    QGridLayout,
    QHBoxLayout,
    QLabel,
    QLineEdit,
    QRadioButton,
    QVBoxLayout,
    QWidget,
)

from app.language import mark, tr
from app.ui.disclosure import DisclosureButton
from app.ui.style_sheet import set_role
from app.ui.text_format import format_bytes, parse_bytes
from app.ui.text_size import follow_text_size, scaled
from app.ui.theme import SPACE_L, SPACE_M, SPACE_S, SPACE_XS, theme_manager
from app.ui.wrapped_label import WrappedLabel
from engine.config import DeviceChoice

_FIELD_WIDTH = 96
_DEVICES: dict[DeviceChoice, tuple[str, str]] = {
    "auto": (
        mark("Automatic"),
        mark("On the graphics card where there is one that will do, else on the processor"),
    ),
    "cuda": (mark("Graphics card"), mark("Models are not loaded where no card will do")),
    "cpu": (mark("Processor"), mark("Slower; the card stays free for other programs")),
}
_TITLES: dict[DeviceChoice, str] = {
    "auto": mark("Runs on the graphics card if there is one"),
    "cuda": mark("Runs on the graphics card"),
    "cpu": mark("Runs on the processor"),
}
_LIMITED_TITLES: dict[DeviceChoice, str] = {
    "auto": mark("Runs on the graphics card if there is one, with at most {size} of its memory"),
    "cuda": mark("Runs on the graphics card, with at most {size} of its memory"),
}
_HINT = mark("An empty field lets a model take the whole card.")


class RunOptions(QWidget):
    """One quiet line that says what is chosen, and opens."""

    device_chosen = Signal(str)
    budget_chosen = Signal(object)  # bytes | None: the whole card

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._device: DeviceChoice = "auto"
        self._budget: int | None = None
        self.disclosure = DisclosureButton(self)
        self.box = QFrame(self)
        set_role(self.box, "card")
        self.choices: dict[DeviceChoice, QRadioButton] = {}
        self._group = QButtonGroup(self)
        self.budget = QLineEdit(self.box)
        self.error = WrappedLabel("", self.box)
        self._build()
        self.disclosure.toggled.connect(self.box.setVisible)
        self.budget.editingFinished.connect(self._read_budget)
        self.budget.textEdited.connect(self.error.hide)
        theme_manager().changed.connect(self.disclosure.apply_theme)
        self.show_choice("auto", None)

    @property
    def device(self) -> DeviceChoice:
        return self._device

    def show_choice(self, device: DeviceChoice, budget: int | None) -> None:
        """What is chosen now. budget: bytes of the card."""
        self._device, self._budget = device, budget
        self.choices[device].setChecked(True)
        self.budget.setText("" if budget is None else f"{budget / 1e9:.9f}".rstrip("0").rstrip("."))
        self._show_summary()

    def _show_summary(self) -> None:
        on_card = self._device != "cpu"
        if on_card and self._budget:
            title = tr(_LIMITED_TITLES[self._device], size=format_bytes(self._budget))
        else:
            title = tr(_TITLES[self._device])
        self.disclosure.set_title(title)
        self._budget_row.setEnabled(on_card)

    def _choose(self, device: DeviceChoice) -> None:
        if device != self._device:
            self._device = device
            self._show_summary()
            self.device_chosen.emit(device)

    def _read_budget(self) -> None:
        """When the field is left, or Enter is pressed. What is no size changes nothing."""
        text = self.budget.text().strip()
        try:
            budget = parse_bytes(text, zero="") if text else None
        except ValueError as error:
            self.error.setText(str(error))
            self.error.show()
            return
        if budget != self._budget:
            self._budget = budget
            self._show_summary()
            self.budget_chosen.emit(budget)

    def _build(self) -> None:
        self.box.hide()
        inner = QVBoxLayout(self.box)
        inner.setContentsMargins(SPACE_L, SPACE_M, SPACE_L, SPACE_M)
        inner.setSpacing(SPACE_S)
        grid = QGridLayout()
        grid.setHorizontalSpacing(SPACE_L)
        grid.setVerticalSpacing(SPACE_S)
        grid.setColumnStretch(1, 1)
        for row, (device, (name, explanation)) in enumerate(_DEVICES.items()):
            button = self.choices[device] = QRadioButton(tr(name), self.box)
            button.setAccessibleDescription(tr(explanation))
            button.clicked.connect(lambda _checked=False, device=device: self._choose(device))
            self._group.addButton(button)
            note = WrappedLabel(tr(explanation), self.box)
            note.setFocusPolicy(Qt.FocusPolicy.NoFocus)
            set_role(note, "small")
            grid.addWidget(button, row, 0)
            grid.addWidget(note, row, 1)
        inner.addLayout(grid)
        inner.addSpacing(SPACE_XS)
        inner.addWidget(self._row_of_budget())
        hint = WrappedLabel(tr(_HINT), self.box)
        hint.setFocusPolicy(Qt.FocusPolicy.NoFocus)
        set_role(hint, "small")
        inner.addWidget(hint)
        set_role(self.error, "danger")
        self.error.hide()
        inner.addWidget(self.error)
        column = QVBoxLayout(self)
        column.setContentsMargins(0, 0, 0, 0)
        column.setSpacing(SPACE_S)
        column.addWidget(self.disclosure, 0, Qt.AlignmentFlag.AlignLeft)
        column.addWidget(self.box)

    def _row_of_budget(self) -> QWidget:
        self._budget_row = QWidget(self.box)
        row = QHBoxLayout(self._budget_row)
        row.setContentsMargins(0, 0, 0, 0)
        row.setSpacing(SPACE_S)
        label = QLabel(tr("At most"), self._budget_row)
        label.setBuddy(self.budget)
        self.budget.setAccessibleName(tr("At most of the card's memory, in gigabytes"))
        self.budget.setAccessibleDescription(tr(_HINT))
        self.budget.setPlaceholderText(tr("all"))
        follow_text_size(self.budget, lambda: self.budget.setFixedWidth(scaled(_FIELD_WIDTH)))
        self.budget.setAlignment(Qt.AlignmentFlag.AlignRight)
        row.addWidget(label)
        row.addWidget(self.budget)
        row.addWidget(QLabel(tr("GB of the card"), self._budget_row))
        row.addStretch(1)
        return self._budget_row
