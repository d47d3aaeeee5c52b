"""Formulas of the program: typeset once each on a thread of their own, then drawn in any colour and size.

A formula that was never seen is asked for with `want`, which returns at once; who waits is called on the GUI
thread when it is known. What is known is kept by text, what was painted by text, colour and size.
"""

from __future__ import annotations

import logging
import queue
import time
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass

import shiboken6
from PySide6.QtCore import QByteArray, QObject, QPointF, QRectF, QSizeF, Qt
from PySide6.QtGui import QColor, QFont, QFontMetricsF, QPainter, QPixmap
from PySide6.QtSvg import QSvgRenderer

from app.threads import LoopThread, Mailbox
from app.ui.formula_typesetter import INK, Drawing, PlacedText, typeset
from app.ui.sliced_work import SlicedWork

MAX_KNOWN = 4_000  # drawings are about 10 KB each
MAX_PAINTED_BYTES = 32 << 20
JOIN_TIMEOUT_MS = 5_000
_PAUSE_SECONDS = 0.004
_IDLE_SECONDS = 0.5  # without a formula until the thread ends; the next one begins another

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class FormulaKey:
    """`display`: meant for a line of its own, with large operators and limits above and below them."""

    tex: str
    display: bool


_Reference = weakref.WeakMethod[Callable[[Sequence[FormulaKey]], None]]
_FIRST = FormulaKey("x", display=False)  # what is laid out to have the library loaded


class FormulaStore(QObject):
    """Lives on the GUI thread."""

    def __init__(self, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self._known: OrderedDict[FormulaKey, Drawing | None] = OrderedDict()
        self._waiting: dict[FormulaKey, list[_Reference]] = {}
        self._arrived: list[FormulaKey] = []  # known, and nobody was told
        self._telling = SlicedWork(self)
        self._painted: OrderedDict[tuple[FormulaKey, str, int, float], QPixmap] = OrderedDict()
        self._painted_bytes = 0
        self._work: queue.SimpleQueue[FormulaKey | None] = queue.SimpleQueue()  # None ends the thread
        self._mailbox = Mailbox(self)
        self._thread: LoopThread | None = None

    @property
    def busy(self) -> bool:
        """Something that was asked for is not known yet."""
        return bool(self._waiting)

    def is_known(self, key: FormulaKey) -> bool:
        return key in self._known

    def drawing(self, key: FormulaKey) -> Drawing | None:
        """None for a formula that isn't known yet, or that can't be read."""
        drawing = self._known.get(key)
        if drawing is not None:
            self._known.move_to_end(key)
        return drawing

    def want(self, key: FormulaKey, then: Callable[[Sequence[FormulaKey]], None]) -> None:
        """Have it typeset. `then`, a method, is called once it is known, with all that came in the
        same turn of the event loop, unless its object is gone.
        """
        waiting = self._waiting.get(key)
        if waiting is not None:
            reference = weakref.WeakMethod(then)
            if reference not in waiting:  # a paragraph that grows asks anew with every delta
                waiting.append(reference)
            return
        self._waiting[key] = [weakref.WeakMethod(then)]
        self._work.put(key)
        if self._thread is None or not self._thread.isRunning():
            self._begin_thread()

    def prepare(self) -> None:
        """Loads what typesets formulas, where there is time for it: an answer is about to begin."""
        if not self.is_known(_FIRST):
            self.want(_FIRST, self._on_prepared)

    def paint(self, painter: QPainter, key: FormulaKey, area: QRectF, color: QColor) -> None:
        """Draws a formula that is known into an area of its proportions."""
        drawing = self.drawing(key)
        if drawing is None or area.isEmpty():
            return
        ratio = painter.device().devicePixelRatioF()
        painter.drawPixmap(area.topLeft(), self._pixmap(key, drawing, area.size(), color, ratio))

    def shutdown(self) -> bool:
        """Ends the thread; what still waits is forgotten. False: it did not end in time."""
        thread, self._thread = self._thread, None
        self._waiting.clear()
        self._arrived.clear()
        self._telling.cancel_all()
        if thread is None:
            return True
        with suppress(queue.Empty):
            while True:
                self._work.get_nowait()
        self._work.put(None)
        ended = thread.join(JOIN_TIMEOUT_MS)
        self._work = queue.SimpleQueue()
        return ended

    def _on_prepared(self, _keys: Sequence[FormulaKey]) -> None:
        """Nobody waits for it."""

    def _begin_thread(self) -> None:
        if self._thread is not None:
            self._thread.join(JOIN_TIMEOUT_MS)
        self._thread = LoopThread("formulas", self._loop)
        self._thread.begin()

    def _loop(self) -> None:
        """On the thread. Ends when there is nothing to do, so that no one has to end it."""
        work = self._work
        while True:
            try:
                key = work.get(timeout=_IDLE_SECONDS)
            except queue.Empty:
                return
            if key is None:
                return
            drawing = typeset(key.tex, display=key.display)
            self._mailbox.post(lambda key=key, drawing=drawing: self._on_typeset(key, drawing))
            # Both threads are Python; without a pause each turn of the GUI's would take twice as long.
            time.sleep(_PAUSE_SECONDS)

    def _on_typeset(self, key: FormulaKey, drawing: Drawing | None) -> None:
        self._known[key] = drawing
        if len(self._known) > MAX_KNOWN:
            self._known.popitem(last=False)
        self._arrived.append(key)
        if not self._telling.busy:
            self._telling.start(self._tell())
        if not self._work.empty() and self._thread is not None and not self._thread.isRunning():
            self._begin_thread()  # it ended just as this was asked for

    def _tell(self) -> Iterator[None]:
        """Steps that tell those who wait, each of them once: a document lays itself out anew for it."""
        while self._arrived:
            keys, self._arrived = self._arrived, []
            known: dict[_Reference, list[FormulaKey]] = {}
            for key in keys:
                for reference in self._waiting.get(key, ()):
                    if reference() is not None:  # a reference to nothing has no hash
                        known.setdefault(reference, []).append(key)
            for reference, theirs in known.items():
                method = reference()
                if method is not None and shiboken6.isValid(method.__self__):
                    method(theirs)
                    yield
            for key in keys:
                self._waiting.pop(key, None)

    def _pixmap(
        self, key: FormulaKey, drawing: Drawing, size: QSizeF, color: QColor, ratio: float
    ) -> QPixmap:
        name = color.name()
        known = (key, name, round(size.height() * 16), ratio)
        pixmap = self._painted.get(known)
        if pixmap is not None:
            self._painted.move_to_end(known)
            return pixmap
        pixels = (size * ratio).expandedTo(QSizeF(1, 1)).toSize()
        pixmap = QPixmap(pixels)
        pixmap.fill(Qt.GlobalColor.transparent)
        pixmap.setDevicePixelRatio(ratio)
        renderer = QSvgRenderer(QByteArray(drawing.svg.replace(INK, name).encode()))
        painter = QPainter(pixmap)
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        renderer.render(painter, QRectF(0, 0, size.width(), size.height()))
        painter.setPen(color)
        for place in drawing.texts:
            _write(painter, place, size.width() / drawing.width)
        painter.end()
        self._painted[known] = pixmap
        self._painted_bytes += _bytes(pixmap)
        while self._painted_bytes > MAX_PAINTED_BYTES and len(self._painted) > 1:
            self._painted_bytes -= _bytes(self._painted.popitem(last=False)[1])
        return pixmap


_store: FormulaStore | None = None


def formula_store() -> FormulaStore:
    """The one store of the program; made when it is first asked for."""
    global _store
    if _store is None:
        _store = FormulaStore()
    return _store


def end_formulas() -> bool:
    """At the end of the program: ends the thread, if there ever was a formula. False: it did not end."""
    return _store is None or _store.shutdown()


def _write(painter: QPainter, place: PlacedText, em: float) -> None:
    """In the program's own font, which finds one for every script. em: pixels."""
    font = QFont(painter.font())
    font.setPixelSize(max(1, round(place.height * em)))
    wanted = max(1.0, QFontMetricsF(font).horizontalAdvance(place.text))
    painter.save()
    painter.setFont(font)
    painter.translate(place.left * em, place.baseline * em)
    painter.scale(place.width * em / wanted, place.width * em / wanted)
    painter.drawText(QPointF(0, 0), place.text)
    painter.restore()


def _bytes(pixmap: QPixmap) -> int:
    return 4 * pixmap.width() * pixmap.height()
