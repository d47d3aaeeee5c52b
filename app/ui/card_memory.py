"""The card's memory, by what it is for: a bar, and the same in words."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from PySide6.QtCore import QRectF, Qt
from PySide6.QtGui import QColor, QPainter, QPainterPath, QPaintEvent
from PySide6.QtWidgets import QGridLayout, QHBoxLayout, QLabel, QVBoxLayout, QWidget

from app.ui.elided_label import ElidedLabel
from app.ui.style_sheet import set_role
from app.ui.text_format import format_bytes
from app.ui.theme import SPACE_L, SPACE_S, SPACE_XS, Theme, current_theme, mixed, theme_manager

if TYPE_CHECKING:
    from engine.metrics import MemoryUse

_BAR_HEIGHT = 10  # pixels
_LEAST_PART = 3  # of something that is there
_SWATCH = 9
_KINDS = {
    "Weights": "The model itself",
    "Conversations": "What the model has read of chats, and room that is held ready for more",
    "Workspace": "What stands between two layers while a token is computed",
    "Other programs": "What others use of this card, and what its driver takes for every program",
    "Free": "What no program uses now",
}


@dataclass(frozen=True)
class Share:
    """A part of the card's memory. kind: one of those that have an explanation."""

    kind: str
    num_bytes: int


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


def color_of(kind: str, theme: Theme) -> str:
    """What belongs to the model has a colour, what doesn't has none."""
    return {
        "Weights": theme.accent,
        "Conversations": theme.success,
        "Workspace": mixed(theme.accent, theme.window, 0.5),
        "Other programs": theme.text_muted,
        "Free": theme.border,
    }[kind]


def widths(shares: tuple[Share, ...], whole: float) -> list[float]:
    """Pixels of each part, together `whole`. What is there at all can be seen; the widest give way for it."""
    total = sum(share.num_bytes for share in shares)
    if not total:
        return [0.0] * len(shares)
    wanted = [whole * share.num_bytes / total for share in shares]
    least = [_LEAST_PART if share.num_bytes else 0.0 for share in shares]
    found = [max(pair) for pair in zip(wanted, least, strict=True)]
    spare = [each - at_least for each, at_least in zip(found, least, strict=True)]
    too_much = sum(found) - whole
    share_given = too_much / sum(spare) if sum(spare) > too_much else 1.0
    return [each - share_given * more for each, more in zip(found, spare, strict=True)]


class CardMemory(QWidget):
    """Hidden while the model isn't on a card."""

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.shares: tuple[Share, ...] = ()
        self._bar = _Bar(self)
        self._amounts: dict[str, ElidedLabel] = {}
        column = QVBoxLayout(self)
        column.setContentsMargins(0, 0, 0, 0)
        column.setSpacing(SPACE_S)
        heading = QHBoxLayout()
        title = QLabel("Memory of the card", self)
        set_role(title, "section")
        self.total = QLabel(self)
        set_role(self.total, "small")
        heading.addWidget(title, 1)
        heading.addWidget(self.total)
        column.addLayout(heading)
        column.addWidget(self._bar)
        column.addLayout(self._legend())
        theme_manager().changed.connect(self.update)
        self.hide()

    def amount(self, kind: str) -> str:
        """What stands beside it."""
        return self._amounts[kind].text()

    def show_memory(self, memory: MemoryUse | None) -> None:
        self.shares = shares_of(memory) if memory is not None else ()
        self.setVisible(bool(self.shares))
        if memory is None or memory.card is None:
            return
        for share in self.shares:
            words = format_bytes(share.num_bytes)
            self._amounts[share.kind].setText(words)
            self._amounts[share.kind].setAccessibleName(f"{share.kind}: {words}")
        listed = ", ".join(f"{share.kind.lower()} {self.amount(share.kind)}" for share in self.shares)
        total = format_bytes(memory.card.total_bytes)
        self._bar.set_shares(self.shares)
        self._bar.setAccessibleName(f"Memory of the card {memory.card.name}, {total}: {listed}")
        self.total.setText(total)

    def _legend(self) -> QGridLayout:
        grid = QGridLayout()
        grid.setHorizontalSpacing(SPACE_S)
        grid.setVerticalSpacing(SPACE_XS)
        grid.setColumnStretch(2, 1)
        for row, (kind, explanation) in enumerate(_KINDS.items()):
            name = QLabel(kind, self)
            set_role(name, "small")
            name.setContentsMargins(0, 0, SPACE_L - SPACE_S, 0)
            amount = self._amounts[kind] = ElidedLabel("", self)
            amount.setAccessibleDescription(explanation)
            for column, widget in enumerate((_Swatch(kind, self), name, amount)):
                if widget is not amount:
                    widget.setToolTip(explanation)
                grid.addWidget(widget, row, column)
        return grid


class _Bar(QWidget):
    def __init__(self, parent: QWidget) -> None:
        super().__init__(parent)
        self._shares: tuple[Share, ...] = ()
        self.setFixedHeight(_BAR_HEIGHT)

    def set_shares(self, shares: tuple[Share, ...]) -> None:
        self._shares = shares
        self.update()

    # Qt overrides

    def paintEvent(self, _event: QPaintEvent) -> None:
        theme = current_theme()
        painter = QPainter(self)
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        whole = QRectF(self.rect())
        outline = QPainterPath()
        outline.addRoundedRect(whole, whole.height() / 2, whole.height() / 2)
        painter.setClipPath(outline)
        painter.fillRect(whole, theme.color("border"))
        left = whole.left()
        for share, width in zip(self._shares, widths(self._shares, whole.width()), strict=True):
            part = QRectF(left, whole.top(), max(0.0, width - 1), whole.height())  # a line between two
            painter.fillRect(part, QColor(color_of(share.kind, theme)))
            if width and share.kind != "Free":
                edge = QRectF(part.right(), whole.top(), 1, whole.height())
                painter.fillRect(edge, theme.color("window"))
            left += width
        painter.end()


class _Swatch(QWidget):
    def __init__(self, kind: str, parent: QWidget) -> None:
        super().__init__(parent)
        self._kind = kind
        self.setFixedSize(_SWATCH, _SWATCH)

    # Qt overrides

    def paintEvent(self, _event: QPaintEvent) -> None:
        painter = QPainter(self)
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        painter.setPen(Qt.PenStyle.NoPen)
        painter.setBrush(QColor(color_of(self._kind, current_theme())))
        painter.drawRoundedRect(QRectF(self.rect()), 2, 2)
        painter.end()
