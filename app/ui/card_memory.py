"""The card's memory, by what it is for: a bar, and the same in words."""

from __future__ import annotations

from typing import TYPE_CHECKING

from PySide6.QtWidgets import QGridLayout, QHBoxLayout, QLabel, QVBoxLayout, QWidget

from app.language import mark, tr
from app.ui.elided_label import ElidedLabel
from app.ui.share_bar import Share, ShareBar, Swatch, amount_words
from app.ui.style_sheet import set_role
from app.ui.text_format import format_bytes
from app.ui.theme import SPACE_L, SPACE_S, SPACE_XS, theme_manager

if TYPE_CHECKING:
    from engine.metrics import MemoryUse

_KINDS = {
    mark("Weights"): mark("The model itself"),
    mark("Conversations"): mark("What the model has read of chats, and room that is held ready for more"),
    mark("Workspace"): mark("What stands between two layers while a token is computed"),
    mark("Other programs"): mark("What others use of this card, and what its driver takes for every program"),
    mark("Free"): mark("What no program uses now"),
}


def shares_of(memory: MemoryUse) -> tuple[Share, ...]:
    """In the order of the bar. Nothing where there is no card."""
    if memory.card is None:
        return ()
    amounts = (
        memory.weight_bytes,
        memory.cache_bytes,
        memory.workspace_bytes,
        memory.other_bytes,
        memory.card.free_bytes,
    )
    return tuple(Share(kind, num_bytes) for kind, num_bytes in zip(_KINDS, amounts, strict=True))


class CardMemory(QWidget):
    """Whoever shows it hides it while the model isn't on a card."""

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.shares: tuple[Share, ...] = ()
        self._bar = ShareBar(self)
        self._amounts: dict[str, ElidedLabel] = {}
        column = QVBoxLayout(self)
        column.setContentsMargins(0, 0, 0, 0)
        column.setSpacing(SPACE_S)
        heading = QHBoxLayout()
        self.card_name = ElidedLabel("", self)
        self.card_name.explain(tr("The card that computes"))
        self.total = QLabel(self)
        self.total.setToolTip(tr("All of its memory"))
        for label in (self.card_name, self.total):
            set_role(label, "small")
        heading.addWidget(self.card_name, 1)
        heading.addWidget(self.total)
        column.addLayout(heading)
        column.addWidget(self._bar)
        column.addLayout(self._legend())
        theme_manager().changed.connect(self.update)

    def amount(self, kind: str) -> str:
        """What stands beside it."""
        return self._amounts[kind].text()

    def show_memory(self, memory: MemoryUse | None) -> None:
        """Of a model on a card; else there is nothing to show, and what was shown stays."""
        self.shares = shares_of(memory) if memory is not None else ()
        if memory is None or memory.card is None:
            return
        for share in self.shares:
            words = format_bytes(share.num_bytes)
            self._amounts[share.kind].setText(words)
            self._amounts[share.kind].setAccessibleName(
                tr("{name}: {value}", name=tr(share.kind), value=words)
            )
        listed = tr(", ").join(amount_words(tr(share.kind).lower(), share.num_bytes) for share in self.shares)
        total = format_bytes(memory.card.total_bytes)
        self._bar.set_shares(self.shares)
        self._bar.setAccessibleName(
            tr(
                "Memory of the card {name}, {total}: {listed}",
                name=memory.card.name,
                total=total,
                listed=listed,
            )
        )
        self.card_name.setText(memory.card.name)
        self.total.setText(total)

    def _legend(self) -> QGridLayout:
        grid = QGridLayout()
        grid.setHorizontalSpacing(SPACE_S)
        grid.setVerticalSpacing(SPACE_XS)
        grid.setColumnStretch(2, 1)
        for row, (kind, explanation) in enumerate(_KINDS.items()):
            name = QLabel(tr(kind), self)
            set_role(name, "small")
            name.setContentsMargins(0, 0, SPACE_L - SPACE_S, 0)
            amount = self._amounts[kind] = ElidedLabel("", self)
            amount.explain(tr(explanation))
            for column, widget in enumerate((Swatch(kind, self), name, amount)):
                if widget is not amount:
                    widget.setToolTip(tr(explanation))
                grid.addWidget(widget, row, column)
        return grid
