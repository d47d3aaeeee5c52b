"""What the person wrote, verbatim, in a bubble at the right; a long text is folded until it is asked
for.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import ceil

from PySide6.QtCore import QRectF, Qt, Signal
from PySide6.QtGui import QPainter, QPaintEvent, QPen, QTextBlockFormat, QTextCursor
from PySide6.QtWidgets import QWidget

from app.language import tr
from app.ui.disclosure import DisclosureButton
from app.ui.document_view import DocumentView, reading_font, same_frame
from app.ui.sliced_work import SlicedWork
from app.ui.theme import SPACE_L, SPACE_M, SPACE_XS, current_theme

FOLDED_CHARACTERS = 1_500
FOLDED_LINES = 14
_PIECE = 2_000  # characters that are added in one step when a long text is unfolded
_MAX_LINE = 8_000  # Qt lays a line out as a whole, so a longer one is shown in parts
_WIDTH_SHARE = 0.82  # of the column, at most
_RADIUS = 14
_LEADING = 5  # pixels


class UserBubble(QWidget):
    """Copies the text as it was written, folded or not."""

    height_changed = Signal()

    def __init__(self, text: str, work: SlicedWork, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._text = text
        self._work = work
        self._view = _PlainView(self)
        self._marked = False
        self._more: DisclosureButton | None = None
        self._bubble = QRectF()
        preview = folded(text)
        self._view.add(preview)
        if len(preview) < len(text.rstrip()):
            self._more = DisclosureButton(self)
            self._more.set_title(
                tr("Show all {count:,} lines", count=text.count("\n") + 1) if "\n" in text else tr("Show all")
            )
            self._more.toggled.connect(self._on_toggled)

    @property
    def documents(self) -> tuple[DocumentView, ...]:
        return (self._view,)

    @property
    def shown_text(self) -> str:
        return self._view.toPlainText()

    @property
    def more_button(self) -> DisclosureButton | None:
        return self._more

    @property
    def changed(self) -> bool:
        """It is unfolded or marked."""
        return self._marked or (self._more is not None and self._more.isChecked())

    def arrange(self, width: int) -> int:
        widest = int(width * _WIDTH_SHARE) - 2 * SPACE_L
        inner = min(widest, max(self._view.ideal_width(widest), self._more.width() if self._more else 0))
        height = self._view.arrange(inner)
        left = width - inner - 2 * SPACE_L
        self._view.setGeometry(left + SPACE_L, SPACE_M, inner, height)
        bottom = SPACE_M + height
        if self._more is not None:
            self._more.move(left + SPACE_L - 2, bottom + SPACE_XS)
            bottom += SPACE_XS + self._more.height() - SPACE_XS
        # Qt leads a line of text below it, so less room is left there.
        self._bubble = QRectF(
            left, 0, width - left, bottom + SPACE_M - (_LEADING if self._more is None else 4)
        )
        return ceil(self._bubble.bottom())

    def set_marked(self, marked: bool) -> None:
        """Draws a frame around it."""
        self._marked = marked
        self.update()

    def apply_theme(self) -> None:
        self._view.apply_theme()
        if self._more is not None:
            self._more.apply_theme()
        self.update()

    def _on_toggled(self, is_open: bool) -> None:
        self._view.clear()
        if is_open:
            self._work.start(self._unfold())
        else:
            self._view.add(folded(self._text))
        self.height_changed.emit()

    def _unfold(self) -> Iterator[None]:
        for start in range(0, len(self._text), _PIECE):
            if self._more is None or not self._more.isChecked():
                return
            self._view.add(self._text[start : start + _PIECE])
            self.height_changed.emit()
            yield

    # Qt overrides

    def paintEvent(self, event: QPaintEvent) -> None:
        painter = QPainter(self)
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        theme = current_theme()
        painter.setPen(QPen(theme.color("accent"), 2) if self._marked else Qt.PenStyle.NoPen)
        painter.setBrush(theme.color("user_bubble"))
        painter.drawRoundedRect(self._bubble.adjusted(1, 1, -1, -1), _RADIUS, _RADIUS)


def folded(text: str) -> str:
    """The beginning of a long text; the whole of a short one, less the white space at its end."""
    text = text.rstrip() if len(text) <= 4 * FOLDED_CHARACTERS else text
    lines = text[: FOLDED_CHARACTERS + 1].split("\n", FOLDED_LINES)
    if len(text) <= FOLDED_CHARACTERS and len(lines) <= FOLDED_LINES:
        return text
    return "\n".join(lines[:FOLDED_LINES])[:FOLDED_CHARACTERS].rstrip()


class _PlainView(DocumentView):
    """Text with no markup at all."""

    def __init__(self, parent: QWidget) -> None:
        super().__init__(parent)
        self.setAccessibleName(tr("Your message"))
        self._line_length = 0

    def add(self, text: str) -> None:
        cursor = QTextCursor(self.document())
        cursor.movePosition(QTextCursor.MoveOperation.End)
        if self.document().isEmpty():
            block_format = QTextBlockFormat()
            block_format.setLineHeight(132, QTextBlockFormat.LineHeightTypes.ProportionalHeight.value)
            cursor.setBlockFormat(block_format)
            self._line_length = 0
        text = same_frame(text)
        last_break = text.rfind("\n")
        if last_break < 0 and self._line_length > _MAX_LINE:
            cursor.insertBlock()
            self._line_length = 0
        cursor.insertText(text)
        self._line_length = len(text) - last_break - 1 + (self._line_length if last_break < 0 else 0)

    def ideal_width(self, limit: int) -> int:
        """The width of the widest line, up to `limit` pixels."""
        block = self.document().firstBlock()
        widest = 0.0
        metrics = self.fontMetrics()
        for _ in range(60):
            if not block.isValid() or widest >= limit:
                break
            text = block.text()
            widest = limit if len(text) > 200 else max(widest, metrics.horizontalAdvance(text) + 2)
            block = block.next()
        return min(limit, ceil(widest) + 1)

    def apply_theme(self) -> None:
        super().apply_theme()
        self.setFont(reading_font())
        self.document().setDefaultFont(reading_font())
