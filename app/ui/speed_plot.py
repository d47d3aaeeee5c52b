"""A moving plot of how fast tokens are read and written. What is drawn costs next to nothing: two lines."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from PySide6.QtCore import QPointF, QRectF, QSize, Qt
from PySide6.QtGui import QColor, QPainter, QPaintEvent, QPen, QPolygonF
from PySide6.QtWidgets import QGridLayout, QSizePolicy, QVBoxLayout, QWidget

from app.language import mark, tr
from app.ui.elided_label import ElidedLabel
from app.ui.share_bar import Swatch
from app.ui.speed_history import SPAN_SECONDS, STEPS, SpeedHistory, rounded_up
from app.ui.style_sheet import set_role
from app.ui.theme import SPACE_S, SPACE_XS, current_theme, theme_manager

_HEIGHT = 64  # pixels
_FILL = 0.18  # opacity below a line
_LINE_WIDTH = 1.5
_LINES = 3  # across, with the ground
WRITTEN, READ = mark("Writing"), mark("Reading")
_EXPLANATIONS = {
    WRITTEN: mark("Tokens of the answer a second now, and the most in the last minute"),
    READ: mark(
        "Tokens of the last prompt a second that were new and had to be read, and the most of a minute"
    ),
}


class SpeedPlot(QWidget):
    """The two have scales of their own: a prompt is read many times faster than an answer is written."""

    def __init__(self, history: SpeedHistory, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._canvas = _Canvas(history, self)
        self._words: dict[str, ElidedLabel] = {}
        legend = QGridLayout()
        legend.setHorizontalSpacing(SPACE_S)
        legend.setVerticalSpacing(SPACE_XS)
        legend.setColumnStretch(1, 1)
        for row, (kind, explanation) in enumerate(_EXPLANATIONS.items()):
            swatch, words = Swatch(kind, self), ElidedLabel("", self)
            set_role(words, "small")
            self._words[kind] = words
            swatch.setToolTip(tr(explanation))
            words.explain(tr(explanation))
            legend.addWidget(swatch, row, 0)
            legend.addWidget(words, row, 1)
        column = QVBoxLayout(self)
        column.setContentsMargins(0, 0, 0, 0)
        column.setSpacing(SPACE_S)
        column.addWidget(self._canvas)
        column.addLayout(legend)
        explained = [
            tr("{name}: {explanation}.", name=tr(kind), explanation=tr(explanation))
            for kind, explanation in _EXPLANATIONS.items()
        ]
        self.setToolTip("\n".join(explained))
        theme_manager().changed.connect(self._canvas.update)
        self.refresh()

    def words(self, kind: str) -> str:
        return self._words[kind].text()

    def refresh(self) -> None:
        """The history has gone on."""
        history = self._canvas.history
        now = history.written[-1]
        last_read = next((rate for rate in reversed(history.read) if rate), 0.0)
        self._say(WRITTEN, now, max(history.written))
        self._say(READ, last_read, max(history.read))
        self._canvas.setAccessibleName(
            tr(
                "Speed over the last {seconds:.0f} seconds: {writing}; {reading}",
                seconds=SPAN_SECONDS,
                writing=self.words(WRITTEN),
                reading=self.words(READ),
            )
        )
        self._canvas.update()

    def _say(self, kind: str, rate: float, peak: float) -> None:
        if peak:
            words = tr("{name} {rate:,.0f} tok/s, peak {peak:,.0f}", name=tr(kind), rate=rate, peak=peak)
        else:
            words = f"{tr(kind)} \N{EM DASH}"
        if self._words[kind].text() != words:
            self._words[kind].setText(words)


class _Canvas(QWidget):
    def __init__(self, history: SpeedHistory, parent: QWidget) -> None:
        super().__init__(parent)
        self.history = history
        self.setSizePolicy(QSizePolicy.Policy.Expanding, QSizePolicy.Policy.Fixed)

    def _draw(self, painter: QPainter, values: Sequence[float], color: QColor, area: QRectF) -> None:
        """Nothing where nothing was done."""
        left, bottom = area.left(), area.bottom()
        step, scale = area.width() / (STEPS - 1), area.height() / rounded_up(max(values))
        below = QColor(color)
        below.setAlphaF(_FILL)
        end = 0
        for is_something, run in itertools.groupby(values, key=bool):
            begin, heights = end, list(run)
            end += len(heights)
            if not is_something:
                continue
            line = [
                QPointF(left + at * step, bottom - scale * value) for at, value in enumerate(heights, begin)
            ]
            ground = [QPointF(each.x(), bottom) for each in (line[0], line[-1])]
            painter.setPen(Qt.PenStyle.NoPen)
            painter.setBrush(below)
            painter.drawPolygon(QPolygonF([ground[0], *line, ground[1]]))
            painter.setPen(QPen(color, _LINE_WIDTH))
            painter.setBrush(Qt.BrushStyle.NoBrush)
            painter.drawPolyline(QPolygonF(line if len(line) > 1 else [ground[0], *line]))

    # Qt overrides

    def sizeHint(self) -> QSize:
        return QSize(160, _HEIGHT)

    def minimumSizeHint(self) -> QSize:
        return QSize(60, _HEIGHT)

    def paintEvent(self, _event: QPaintEvent) -> None:
        theme = current_theme()
        painter = QPainter(self)
        area = QRectF(self.rect()).adjusted(0, 2, 0, -1)
        painter.setPen(QPen(theme.color("border"), 1))
        for number in range(_LINES):
            height = area.bottom() - area.height() * number / (_LINES - 1)
            painter.drawLine(QPointF(area.left(), height), QPointF(area.right(), height))
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        self._draw(painter, self.history.read, theme.color("success"), area)
        self._draw(painter, self.history.written, theme.color("accent"), area)
        painter.end()
