"""A code block: its language, a button that copies it, and lines that scroll sideways where they are
long.
"""

from __future__ import annotations

from math import ceil

from PySide6.QtCore import QRectF
from PySide6.QtGui import QPainter, QPaintEvent, QPen, QTextBlockFormat, QTextCursor
from PySide6.QtWidgets import QWidget

from app.language import tr
from app.ui.code_colors import CodeColors
from app.ui.code_highlight import MAX_COLOURED, language_title
from app.ui.copy_button import CopyButton
from app.ui.document_view import DocumentView, code_font, same_frame
from app.ui.elided_label import ElidedLabel
from app.ui.lexers import lexer_store
from app.ui.markdown import Code
from app.ui.shy_button import ShyButton
from app.ui.sliced_work import SlicedWork
from app.ui.style_sheet import set_role
from app.ui.theme import RADIUS, SPACE_L, SPACE_M, SPACE_XS, current_theme

_HEADER = 34  # pixels, at least
_LINE = QTextBlockFormat()
_LINE.setLineHeight(126, QTextBlockFormat.LineHeightTypes.ProportionalHeight.value)


class CodeView(QWidget):
    """Takes a block's pieces as they come. `text` is what the copy button copies."""

    def __init__(self, leaf: Code, work: SlicedWork, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.place = leaf.place
        self._work = work
        self._pieces: list[str] = []
        self._num_characters = 0  # in the pieces
        self._settled_end = 0  # characters of the document that are final
        self._has_tail = False
        self._opened = False
        self._closed = False
        self._fresh = False  # there is code that has no colours yet
        self._title = ElidedLabel("", self)  # a model wrote it, so it may be of any length
        set_role(self._title, "small")
        self._copy = CopyButton(lambda: self.text, tr("Copy code"), self)
        self._wrap = ShyButton("wrap", tr("Wrap long lines"), self)
        self._wrap.setCheckable(True)
        self._wrap.toggled.connect(self._on_wrap_toggled)
        self._code = DocumentView(self, wraps=False)
        self._set_language(leaf)
        self.apply_theme()

    @property
    def documents(self) -> tuple[DocumentView, ...]:
        return (self._code,)

    @property
    def wrap_button(self) -> ShyButton:
        return self._wrap

    @property
    def text(self) -> str:
        return self._joined().removesuffix("\n")

    @property
    def is_empty(self) -> bool:
        """Nothing is settled: what it shows, if anything, may still turn out to be something else."""
        return not self._opened

    def begin_changes(self) -> None:
        self._code.begin_changes()

    def end_changes(self) -> None:
        """Colours what was added, now that the lines of the document are final."""
        self._code.end_changes()
        if self._fresh and self._num_characters <= MAX_COLOURED:
            code = self._joined()
            self._colors.follow(code)
            if self._closed:
                self._work.start(self._colors.finish(code))
        self._fresh = False

    def append(self, leaf: Code, *, settled: bool) -> None:
        if leaf.first:
            self._set_language(leaf)
        cursor = QTextCursor(self._code.document())
        cursor.movePosition(QTextCursor.MoveOperation.End)
        # A line feed stands before each piece but the first: at the end it would show as an empty line.
        if not self._num_characters:
            cursor.setBlockFormat(_LINE)  # the lines after it take it over
        lead = "\n" if self._num_characters and leaf.text else ""
        cursor.insertText(lead + same_frame(leaf.text.removesuffix("\n")))
        if not settled:
            self._has_tail = True
            return
        self._opened = True
        self._pieces.append(leaf.text)
        self._num_characters += len(leaf.text)
        self._settled_end = self._code.document().characterCount() - 1
        self._fresh = True
        self._closed = leaf.last

    def drop_tail(self) -> None:
        if not self._has_tail:
            return
        self._has_tail = False
        cursor = QTextCursor(self._code.document())
        cursor.setPosition(self._settled_end)
        cursor.movePosition(QTextCursor.MoveOperation.End, QTextCursor.MoveMode.KeepAnchor)
        cursor.removeSelectedText()

    def apply_theme(self) -> None:
        self._code.apply_theme()
        self._code.document().setDefaultFont(code_font())
        self._colors.apply_theme()
        self._copy.apply_theme()
        self._wrap.apply_theme()
        self.update()

    def arrange(self, width: int) -> int:
        """Places the parts for a width in pixels; gives the height."""
        inner = max(1, width - 2 * SPACE_L)
        wraps = self._code.wraps
        height = self._code.arrange(inner) if wraps else ceil(self._code.document().size().height())
        too_wide = ceil(self._code.document().size().width()) > inner
        height += self._code.horizontalScrollBar().sizeHint().height() if too_wide and not wraps else 0
        self._wrap.setVisible(too_wide or wraps)
        title = self._title.sizeHint()
        header = max(_HEADER, title.height() + SPACE_M)
        self._copy.move(width - self._copy.width() - SPACE_XS, (header - self._copy.height()) // 2 + 1)
        self._wrap.move(self._copy.x() - self._wrap.width(), self._copy.y())
        room = min(title.width(), self._wrap.x() - SPACE_L)
        self._title.setGeometry(SPACE_L, (header - title.height()) // 2 + 1, room, title.height())
        self._code.setGeometry(SPACE_L, header, inner, height)
        return header + height + SPACE_M

    def _on_wrap_toggled(self, wraps: bool) -> None:
        self._wrap.set_name(tr("Don't wrap long lines") if wraps else tr("Wrap long lines"))
        self._code.set_wraps(wraps)

    def _set_language(self, leaf: Code) -> None:
        self.place = leaf.place
        language = language_title(leaf.language)
        self._title.setText(language or tr("Code"))
        self._code.setAccessibleName(tr("{language} code", language=language) if language else tr("Code"))
        self._colors = CodeColors(self._code.document(), leaf.language)
        lexer_store().want(leaf.language, self._on_lexer_loaded)

    def _on_lexer_loaded(self) -> None:
        """What has come by now gets its colours."""
        if not self._num_characters or self._num_characters > MAX_COLOURED:
            return
        code = self._joined()
        if self._closed:
            self._work.start(self._colors.whole(code))
        else:
            self._colors.follow(code)

    def _joined(self) -> str:
        self._pieces = ["".join(self._pieces)]
        return self._pieces[0]

    # Qt overrides

    def paintEvent(self, event: QPaintEvent) -> None:
        theme = current_theme()
        painter = QPainter(self)
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        painter.setPen(QPen(theme.color("border"), 1))
        painter.setBrush(theme.color("code_background"))
        painter.drawRoundedRect(QRectF(self.rect()).adjusted(0.5, 0.5, -0.5, -0.5), RADIUS, RADIUS)
