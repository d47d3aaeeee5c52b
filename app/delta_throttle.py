"""Text that comes in token by token, passed on about once a frame: a layout for every token would starve
the window.
"""

from __future__ import annotations

from PySide6.QtCore import QObject, QTimer, Signal, Slot

from app.engine_commands import AnswerDelta

INTERVAL_MS = 30


class DeltaThrottle(QObject):
    """Passes the first piece on at once and joins those of the next 30 ms, and so on. `flush` leaves
    nothing behind.
    """

    ready = Signal(int, object)  # request id, AnswerDelta

    def __init__(self, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self._request_id = 0
        self._waiting: list[AnswerDelta] = []
        self._timer = QTimer(self)
        self._timer.setSingleShot(True)
        self._timer.setInterval(INTERVAL_MS)
        self._timer.timeout.connect(self._on_timeout)

    def push(self, request_id: int, delta: AnswerDelta) -> None:
        if request_id != self._request_id:
            self.flush()
            self._request_id = request_id
        self._waiting.append(delta)
        if not self._timer.isActive():
            self._emit()
            self._timer.start()

    def flush(self) -> None:
        self._timer.stop()
        self._emit()

    @Slot()
    def _on_timeout(self) -> None:
        if self._waiting:
            self._emit()
            self._timer.start()

    def _emit(self) -> None:
        if not self._waiting:
            return
        delta = AnswerDelta(
            thinking="".join(delta.thinking for delta in self._waiting),
            text="".join(delta.text for delta in self._waiting),
            num_tokens=sum(delta.num_tokens for delta in self._waiting),
        )
        self._waiting.clear()
        self.ready.emit(self._request_id, delta)
