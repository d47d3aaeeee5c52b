"""Above the message that is being written: the files that go with it, those that can't, and whether there is
room for all of it.
"""

from __future__ import annotations

from collections.abc import Sequence

from PySide6.QtCore import Signal
from PySide6.QtWidgets import QVBoxLayout, QWidget

from app.attachment_draft import DraftItem, DraftState
from app.attachments import Fit
from app.language import tr
from app.ui.attachment_chip import AttachmentChip, RefusedFile
from app.ui.flow_layout import FlowLayout
from app.ui.style_sheet import set_role
from app.ui.text_format import format_tokens
from app.ui.theme import SPACE_S, SPACE_XS
from app.ui.wrapped_label import WrappedLabel


class AttachmentBar(QWidget):
    """Hidden while there is nothing to show. Signals: removed(id of a DraftItem)."""

    removed = Signal(int)

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.chips: dict[int, AttachmentChip] = {}
        self.refused: dict[int, RefusedFile] = {}
        self.warning = WrappedLabel("", self)
        set_role(self.warning, "warning-small")
        self.warning.hide()
        self._flow_holder = QWidget(self)
        self._flow = FlowLayout(self._flow_holder, gap=SPACE_XS)
        self._problems = QVBoxLayout()
        self._problems.setSpacing(SPACE_XS)
        column = QVBoxLayout(self)
        column.setContentsMargins(SPACE_S, SPACE_XS, SPACE_S, SPACE_XS)
        column.setSpacing(SPACE_S)
        column.addLayout(self._problems)
        column.addWidget(self._flow_holder)
        column.addWidget(self.warning)
        self._show_parts()

    def show_items(self, items: Sequence[DraftItem]) -> None:
        ids = {item.id for item in items}
        for shown in (self.chips, self.refused):
            for item_id in shown.keys() - ids:
                self._take_away(shown.pop(item_id))
        for item in items:
            if item.state is DraftState.REFUSED:
                self._show_refused(item)
            elif (chip := self.chips.get(item.id)) is not None:
                chip.show_item(item)
            else:
                chip = self.chips[item.id] = AttachmentChip(item, self._flow_holder)
                chip.removed.connect(lambda item_id=item.id: self.removed.emit(item_id))
                self._flow.addWidget(chip)
                chip.show()
        self._flow.invalidate()
        self._show_parts()

    def show_fit(self, fit: Fit | None) -> None:
        """None: it isn't known, or there is nothing to say."""
        self.warning.setText(fit_words(fit) if fit is not None and not fit.fits else "")
        self._show_parts()

    def apply_theme(self) -> None:
        for part in (*self.chips.values(), *self.refused.values()):
            part.apply_theme()

    def _show_refused(self, item: DraftItem) -> None:
        if item.id in self.chips:  # it was being read
            self._take_away(self.chips.pop(item.id))
        if item.id not in self.refused and item.problem is not None:
            line = self.refused[item.id] = RefusedFile(item.problem, self)
            line.removed.connect(lambda item_id=item.id: self.removed.emit(item_id))
            self._problems.addWidget(line)
            line.show()

    def _take_away(self, widget: QWidget) -> None:
        widget.hide()
        self._flow.removeWidget(widget)
        self._problems.removeWidget(widget)
        widget.deleteLater()

    def _show_parts(self) -> None:
        self._flow_holder.setVisible(bool(self.chips))
        self.warning.setVisible(bool(self.warning.text()))
        self.setVisible(bool(self.chips or self.refused or self.warning.text()))


def fit_words(fit: Fit) -> str:
    """What is wrong with a message that has no room, and what would help."""
    needed = format_tokens(fit.needed)
    if fit.room == 0:
        return tr(
            "This message has {needed}, and the context is full."
            " Begin a new chat, or load the model with a longer context.",
            needed=needed,
        )
    return tr(
        "This message has {needed}, and the context has room for {room:,}."
        " Attach less, begin a new chat, or load the model with a longer context.",
        needed=needed,
        room=fit.room,
    )
