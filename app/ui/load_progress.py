"""Progress of a load: the stages with the one that runs now, a bar, what it does in words, and Cancel.

Signals: cancel_requested.
"""

from __future__ import annotations

from PySide6.QtCore import Signal
from PySide6.QtWidgets import QHBoxLayout, QLabel, QProgressBar, QVBoxLayout, QWidget

from app.language import mark, tr
from app.ui.flow_layout import FlowLayout
from app.ui.icon_label import IconLabel
from app.ui.push_button import PushButton
from app.ui.style_sheet import set_role
from app.ui.text_format import format_bytes
from app.ui.theme import SPACE_L, SPACE_S, SPACE_XS
from app.ui.wrapped_label import WrappedLabel
from engine.progress import LoadProgress, LoadStage

_STEPS = 1000  # of the bar; bytes of large models don't fit its 32 bits
_MARK = 14
_LABELS = {
    LoadStage.OPEN: mark("Files"),
    LoadStage.RUNTIME: mark("Engine"),
    LoadStage.WEIGHTS: mark("Weights"),
    LoadStage.UPLOAD: mark("Card"),
    LoadStage.CHECK: mark("Test"),
}
_SENTENCES = {
    LoadStage.OPEN: mark("Checking the files"),
    LoadStage.RUNTIME: mark("Starting the engine"),
    LoadStage.WEIGHTS: mark("Reading the weights"),
    LoadStage.UPLOAD: mark("Filling the card's memory"),
    LoadStage.CHECK: mark("Trying a few words"),
}
_AMOUNTS = {
    LoadStage.WEIGHTS: mark("Reading the weights, {done} of {total}"),
    LoadStage.UPLOAD: mark("Filling the card's memory, {done} of {total}"),
}


def progress_sentence(progress: LoadProgress | None) -> str:
    """One line for the stage that runs: "Reading the weights, 45 of 93 MB"."""
    if progress is None:
        return tr("Waiting for the engine")
    if progress.stage in _AMOUNTS and progress.total:
        done, total = format_bytes(progress.done), format_bytes(progress.total)
        return tr(_AMOUNTS[progress.stage], done=done, total=total)
    return tr(_SENTENCES[progress.stage])


class LoadProgressView(QWidget):
    """Shows one LoadProgress at a time."""

    cancel_requested = Signal()

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._stage: LoadStage | None = None
        self._build()
        self.cancel_button.clicked.connect(self._cancel)
        self.show_progress(None)

    def restart(self) -> None:
        """For a new load: Cancel can be pressed again."""
        self.cancel_button.setEnabled(True)
        self.cancel_button.setText(tr("Cancel"))
        self.show_progress(None)

    def show_progress(self, progress: LoadProgress | None) -> None:
        """None: the load waits for the engine's thread."""
        self.sentence.setText(progress_sentence(progress))
        fraction = progress.fraction if progress is not None else None
        if fraction is None:
            self.bar.setRange(0, 0)  # moves without an end
        else:
            self.bar.setRange(0, _STEPS)
            self.bar.setValue(round(min(max(fraction, 0.0), 1.0) * _STEPS))
        stage = progress.stage if progress is not None else None
        if stage is not self._stage:
            self._stage = stage
            if stage in (None, LoadStage.UPLOAD):  # of loads without a card it is no part
                self._show_stage(LoadStage.UPLOAD, stage is not None)
            self._set_marks()

    def _show_stage(self, stage: LoadStage, shown: bool) -> None:
        self._marks[stage][1].parentWidget().setVisible(shown)

    def _cancel(self) -> None:
        self.cancel_button.setEnabled(False)
        self.cancel_button.setText(tr("Cancelling…"))
        self.cancel_requested.emit()

    def _build(self) -> None:
        self._marks: dict[LoadStage, tuple[IconLabel, QLabel]] = {}
        stages = FlowLayout(gap=SPACE_L)
        for stage in LoadStage:
            holder = QWidget(self)
            sign, label = IconLabel("ring", holder, size=_MARK), QLabel(tr(_LABELS[stage]), holder)
            self._marks[stage] = (sign, label)
            pair = QHBoxLayout(holder)
            pair.setContentsMargins(0, 0, 0, 0)
            pair.setSpacing(SPACE_XS + 2)
            pair.addWidget(sign)
            pair.addWidget(label)
            stages.addWidget(holder)
        self._show_stage(LoadStage.UPLOAD, False)
        self.bar = QProgressBar(self)
        self.bar.setTextVisible(False)
        self.bar.setAccessibleName(tr("Progress of loading the model"))
        self.sentence = WrappedLabel(parent=self)
        self.sentence.setProperty("role", "muted")
        self.cancel_button = PushButton(tr("Cancel"), self)
        self.cancel_button.setAccessibleName(tr("Cancel loading"))
        self.cancel_button.setToolTip(tr("Stop loading; nothing changes"))
        bottom = QHBoxLayout()
        bottom.addWidget(self.sentence, 1)
        bottom.addWidget(self.cancel_button)
        layout = QVBoxLayout(self)
        layout.setContentsMargins(0, 0, 0, 0)
        layout.setSpacing(SPACE_S + 2)
        layout.addLayout(stages)
        layout.addWidget(self.bar)
        layout.addLayout(bottom)

    def _set_marks(self) -> None:
        order = list(LoadStage)
        now = order.index(self._stage) if self._stage is not None else -1
        for place, (sign, label) in enumerate(self._marks.values()):
            name = "check" if place < now else "dot" if place == now else "ring"
            sign.set_icon(name, "accent" if place <= now else "border")
            set_role(label, "current" if place == now else "muted")
