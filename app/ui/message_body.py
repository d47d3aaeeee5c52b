"""The words of a message: prose, code and tables, one under the other, growing at the end.

What is settled is never laid out again; the tail is taken back and written anew. A long text that is
there from the start is written in slices, so no message ever holds the window up.
"""

from __future__ import annotations

from collections.abc import Iterator

import shiboken6
from PySide6.QtCore import QRectF, QUrl, Signal
from PySide6.QtGui import QPainter, QPaintEvent
from PySide6.QtWidgets import QWidget

from app.ui.code_view import CodeView
from app.ui.document_view import DocumentView
from app.ui.markdown import Code, Leaf, TableRow
from app.ui.markdown_stream import MarkdownStream
from app.ui.prose_view import MAX_SHOWN_DEPTH, ProseView, indent_of
from app.ui.sliced_work import SlicedWork
from app.ui.table_view import TableView
from app.ui.theme import current_theme

_PIECE = 800  # characters, and
_PIECE_LINES = 30  # lines, that are parsed and written in one step
_GAP = 12  # pixels between pieces of different kinds
_LIST_GAP = 8
_HEADING_GAP = 22

Piece = ProseView | CodeView | TableView


class MessageBody(QWidget):
    """Grows by `append`, ends with `finish`; `set_text` begins anew.

    Signals: height_changed() when it must be arranged again; link_activated(QUrl);
    document_added(DocumentView) for each new part that can be selected.
    """

    height_changed = Signal()
    link_activated = Signal(QUrl)
    document_added = Signal(DocumentView)

    def __init__(self, work: SlicedWork, parent: QWidget | None = None, *, muted: bool = False) -> None:
        super().__init__(parent)
        self._work = work
        self._muted = muted
        self._pieces: list[Piece] = []
        self._changing: list[Piece] = []  # pieces that the change under way has touched
        self._heights: list[int | None] = []  # by piece, at self._width; None where it waits to be arranged
        self._num_standing = 0  # pieces from the first on that are where they belong
        self._width = 0
        self._begin()

    def _begin(self) -> None:
        self._stream = MarkdownStream()
        self._text: list[str] = []
        self._queue: list[str] = []
        self._queued = 0  # characters
        self._ending = False
        self._finished = False
        self._tail_from = 0  # the first piece that the tail touched

    @property
    def text(self) -> str:
        """All that was given, shown already or not."""
        self._text = ["".join(self._text)]
        return self._text[0]

    @property
    def pieces(self) -> tuple[Piece, ...]:
        return tuple(self._pieces)

    @property
    def changed(self) -> bool:
        """A person has something shown in another way."""
        return any(isinstance(piece, CodeView) and piece.wrap_button.isChecked() for piece in self._pieces)

    @property
    def documents(self) -> tuple[DocumentView, ...]:
        """The selectable parts, from top to bottom."""
        found: list[DocumentView] = []
        for piece in self._pieces:
            found += piece.documents if isinstance(piece, CodeView) else (piece,)
        return tuple(found)

    def set_text(self, text: str) -> None:
        """Shows a text that is complete."""
        for piece in self._pieces:
            piece.hide()
            piece.deleteLater()
        self._pieces.clear()
        self._forget_heights()
        self._begin()
        self.append(text)
        self.finish()

    def append(self, text: str) -> None:
        assert not self._ending, "the text has ended"
        if not text:
            return
        self._text.append(text)
        if self._queued or _step_end(text) < len(text):
            self._enqueue(text)
        else:
            self._show(self._stream.push(text))

    def finish(self) -> None:
        if self._ending:
            return
        self._ending = True
        if not self._queued:
            self._show_end()

    def arrange(self, width: int) -> int:
        """Places the pieces for a width in pixels; gives the height. What stands above the first change costs
        nothing.
        """
        if width != self._width:
            self._width = width
            self._forget_heights()
        self._heights += [None] * (len(self._pieces) - len(self._heights))
        top = self._bottom(self._num_standing)
        for index in range(self._num_standing, len(self._pieces)):
            piece = self._pieces[index]
            if index:
                top += _gap(self._pieces[index - 1], piece)
            left = 0 if isinstance(piece, ProseView) else indent_of(piece.place.path)
            inner = max(80, width - left)
            height = self._heights[index]
            if height is None:
                height = self._heights[index] = piece.arrange(inner)
            piece.setGeometry(left, top, inner, height)
            top += height
        self._num_standing = len(self._pieces)
        return top

    def apply_theme(self) -> None:
        for piece in self._pieces:
            piece.apply_theme()
        self._forget_heights()

    def _enqueue(self, text: str) -> None:
        waiting = bool(self._queued)
        self._queue.append(text)
        self._queued += len(text)
        if not waiting:
            self._work.start(self._drain(self._stream), first=True)

    def _drain(self, stream: MarkdownStream) -> Iterator[None]:
        """Steps that show what is queued; ends when `set_text` has begun another stream, or the message was
        taken away.
        """
        while shiboken6.isValid(self) and stream is self._stream and self._queued:
            text = "".join(self._queue)
            end = _step_end(text)
            self._queue = [text[end:]]
            self._queued = len(text) - end
            self._show(stream.push(text[:end]))
            yield
        if shiboken6.isValid(self) and stream is self._stream and self._ending:
            self._show_end()

    def _show_end(self) -> None:
        if self._finished:
            return
        self._finished = True
        self._show(self._stream.finish(), with_tail=False)

    def _show(self, settled: tuple[Leaf, ...], *, with_tail: bool = True) -> None:
        for piece in self._pieces[self._tail_from :]:
            self._begin_changes(piece)
            piece.drop_tail()
        first_changed = self._tail_from
        for leaf in settled:
            self._writable(leaf).append(leaf, settled=True)
        # Pieces that only the tail had made are empty now; the one before them may take it on.
        num_settled = sum(not piece.is_empty for piece in self._pieces[first_changed:])
        self._tail_from = max(0, first_changed + num_settled - 1)
        if with_tail and not self._queued:
            for leaf in self._stream.tail():
                self._writable(leaf).append(leaf, settled=False)
        self._drop_empty()
        for piece in self._changing:
            piece.end_changes()
        self._changing.clear()
        del self._heights[first_changed:]
        self._num_standing = min(self._num_standing, first_changed)
        self.height_changed.emit()

    def _writable(self, leaf: Leaf) -> Piece:
        """The last piece if it takes the leaf, else a new one."""
        self._drop_empty(keep_for=leaf)
        last = self._pieces[-1] if self._pieces else None
        if last is not None and _takes(last, leaf):
            return last
        piece: Piece
        if isinstance(leaf, Code):
            piece = CodeView(leaf, self._work, self)
        elif isinstance(leaf, TableRow):
            piece = TableView(leaf, self)
        else:
            piece = ProseView(self, muted=self._muted)
            if self._width:
                piece.arrange(self._width)  # before there is anything to lay out, or it would be done twice
        for document in piece.documents if isinstance(piece, CodeView) else (piece,):
            document.anchorClicked.connect(self.link_activated)
            document.reflowed.connect(lambda: self._on_reflowed(piece))
            self.document_added.emit(document)
        self._pieces.append(piece)
        self._begin_changes(piece)
        piece.show()
        return piece

    def _on_reflowed(self, piece: Piece) -> None:
        if piece not in self._pieces:
            return
        index = self._pieces.index(piece)
        if index < len(self._heights):
            self._heights[index] = None
        self._num_standing = min(self._num_standing, index)
        self.height_changed.emit()

    def _forget_heights(self) -> None:
        self._heights.clear()
        self._num_standing = 0

    def _bottom(self, num_pieces: int) -> int:
        """Of so many pieces from the first on, which stand where they belong."""
        return self._pieces[num_pieces - 1].geometry().bottom() + 1 if num_pieces else 0

    def _begin_changes(self, piece: Piece) -> None:
        piece.begin_changes()
        self._changing.append(piece)

    def _drop_empty(self, keep_for: Leaf | None = None) -> None:
        """Takes away a last piece that held nothing but a tail, which has turned into something else."""
        while self._pieces and self._pieces[-1].is_empty:
            if keep_for is not None and _takes(self._pieces[-1], keep_for):
                return
            piece = self._pieces.pop()
            self._changing.remove(piece)
            piece.end_changes()
            piece.hide()
            piece.deleteLater()

    # Qt overrides

    def paintEvent(self, event: QPaintEvent) -> None:
        """The bars of quotes that hold code or a table; prose paints its own."""
        painter = QPainter(self)
        color = current_theme().color("border")
        for piece in self._pieces:
            if isinstance(piece, ProseView):
                continue
            for left in _quote_bars(piece.place.path[:MAX_SHOWN_DEPTH]):
                painter.fillRect(
                    QRectF(left, piece.y() - 2 * _GAP + 4, 3, piece.height() + 2 * _GAP - 4), color
                )


def _quote_bars(path: str) -> Iterator[float]:
    """Where the bars of the quotes around a piece stand, in pixels from the left."""
    for depth, kind in enumerate(path):
        if kind == "q":
            yield indent_of(path[:depth])


def _step_end(text: str) -> int:
    """Where the piece of a text ends that is shown in one step."""
    end = -1
    for _ in range(_PIECE_LINES):
        end = text.find("\n", end + 1, _PIECE)
        if end < 0:
            return min(len(text), _PIECE)
    return end + 1


def _takes(piece: Piece, leaf: Leaf) -> bool:
    if isinstance(leaf, Code):
        return isinstance(piece, CodeView) and piece.is_empty == leaf.first
    if isinstance(leaf, TableRow):
        if not isinstance(piece, TableView) or piece.place.path != leaf.place.path:
            return False
        return piece.is_empty if leaf.header else piece.has_room
    return isinstance(piece, ProseView) and piece.has_room


def _gap(above: Piece, below: Piece) -> int:
    if isinstance(below, ProseView) and below.begins_with_heading:
        return _HEADING_GAP
    in_list = any(not isinstance(piece, ProseView) and "l" in piece.place.path for piece in (above, below))
    return _LIST_GAP if in_list else _GAP
