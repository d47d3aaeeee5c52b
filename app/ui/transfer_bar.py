"""How far an export or an import is, as long as it takes.

Signals: cancel_requested.
"""

from __future__ import annotations

from PySide6.QtCore import Signal
from PySide6.QtWidgets import QFrame, QHBoxLayout, QProgressBar, QVBoxLayout, QWidget

from app.language import tr
from app.transfer_job import TransferProgress, TransferStage
from app.ui.push_button import PushButton
from app.ui.theme import SPACE_M, SPACE_S, SPACE_XS
from app.ui.wrapped_label import WrappedLabel

_STEPS = 1000  # of the bar


class TransferBar(QFrame):
    cancel_requested = Signal()

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.setProperty("role", "card")
        self._words = WrappedLabel(parent=self)
        self.bar = QProgressBar(self)
        self.bar.setTextVisible(False)
        self.bar.setAccessibleName(tr("Progress of the export or import"))
        self.cancel_button = PushButton(tr("Cancel"), self)
        self.cancel_button.setProperty("role", "quiet")
        self.cancel_button.setAccessibleName(tr("Cancel the export or import"))
        self.cancel_button.setToolTip(tr("Stop; a file that isn't done leaves nothing behind"))
        self.cancel_button.clicked.connect(self._cancel)
        row = QHBoxLayout()
        row.setSpacing(SPACE_S)
        row.addWidget(self.bar, 1)
        row.addWidget(self.cancel_button)
        column = QVBoxLayout(self)
        column.setContentsMargins(SPACE_M, SPACE_S, SPACE_XS, SPACE_XS)
        column.setSpacing(SPACE_XS)
        column.addWidget(self._words)
        column.addLayout(row)
        self.hide()

    @property
    def words(self) -> str:
        return self._words.text()

    def show_progress(self, progress: TransferProgress | None) -> None:
        """None: nothing is under way any more."""
        if progress is None:
            self.hide()
            self.cancel_button.setEnabled(True)
            return
        words = _sentence(progress)
        self._words.setText(words)
        self.setAccessibleName(words)
        if progress.total:
            self.bar.setRange(0, _STEPS)
            self.bar.setValue(_STEPS * progress.done // progress.total)
        else:
            self.bar.setRange(0, 0)  # moves without an end
        self.show()

    def _cancel(self) -> None:
        self.cancel_button.setEnabled(False)
        self.cancel_requested.emit()


def _sentence(progress: TransferProgress) -> str:
    name, done, total = progress.name, progress.done, progress.total or 0
    match progress.stage:
        case TransferStage.READING:
            return tr("Reading {name}: {done:,} chats so far", name=name, done=done)
        case TransferStage.ADDING:
            return tr("Adding chat {done:,} of {total:,} from {name}", name=name, done=done, total=total)
        case TransferStage.WRITING:
            return tr("Writing chat {done:,} of {total:,} to {name}", name=name, done=done, total=total)
