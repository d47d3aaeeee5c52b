"""A bar of coloured parts, drawn by the share of each, and the square that says which colour is whose."""

from __future__ import annotations

from dataclasses import dataclass

from PySide6.QtCore import QRectF, Qt
from PySide6.QtGui import QColor, QPainter, QPainterPath, QPaintEvent, QPen
from PySide6.QtWidgets import QWidget

from app.language import tr
from app.ui.text_format import format_bytes
from app.ui.theme import Theme, current_theme, mixed

_BAR_HEIGHT = 10  # pixels
_LEAST_PART = 3  # of something that is there
_SWATCH = 9
FREE = "Free"  # the bar itself, which has an edge


@dataclass(frozen=True)
class Share:
    """A part of some memory. kind: one of those that have a colour, in English."""

    kind: str
    num_bytes: int


def share_colors(theme: Theme) -> dict[str, str]:
    """By kind. What belongs to the model has a colour, what doesn't has none."""
    return {
        "Weights": theme.accent,
        "This chat": theme.success,
        "Writing": theme.accent,
        "Reading": theme.success,
        "Conversations": theme.success,
        "Workspace": mixed(theme.accent, theme.window, 0.7),
        "Other programs": theme.text_muted,
        "Loaded model": mixed(theme.text_muted, theme.window, 0.75),
        "Missing": theme.danger,
        FREE: theme.border,
    }


def amount_words(name: str, num_bytes: int) -> str:
    """ "weights 93 MB"."""
    return tr("{name} {amount}", name=name, amount=format_bytes(num_bytes))


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


class ShareBar(QWidget):
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
        colors = share_colors(theme)
        for share, width in zip(self._shares, widths(self._shares, whole.width()), strict=True):
            part = QRectF(left, whole.top(), max(0.0, width - 1), whole.height())  # a line between two
            painter.fillRect(part, QColor(colors[share.kind]))
            if width and share.kind != FREE:
                edge = QRectF(part.right(), whole.top(), 1, whole.height())
                painter.fillRect(edge, theme.color("window"))
            left += width
        painter.setClipping(False)
        painter.setPen(QPen(theme.color("text_muted"), 1))
        painter.setBrush(Qt.BrushStyle.NoBrush)
        radius = whole.height() / 2
        painter.drawRoundedRect(whole.adjusted(0.5, 0.5, -0.5, -0.5), radius, radius)
        painter.end()


class Swatch(QWidget):
    def __init__(self, kind: str, parent: QWidget) -> None:
        super().__init__(parent)
        self._kind = kind
        self.setFixedSize(_SWATCH, _SWATCH)

    # Qt overrides

    def paintEvent(self, _event: QPaintEvent) -> None:
        painter = QPainter(self)
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        theme = current_theme()
        painter.setPen(QPen(theme.color("text_muted"), 1) if self._kind == FREE else Qt.PenStyle.NoPen)
        painter.setBrush(QColor(share_colors(theme)[self._kind]))
        inset = 0.5 if self._kind == FREE else 0.0
        painter.drawRoundedRect(QRectF(self.rect()).adjusted(inset, inset, -inset, -inset), 2, 2)
        painter.end()
