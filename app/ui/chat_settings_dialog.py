"""What is chosen for one chat: its instructions, how it draws, and whether new chats begin so, too.

Signals: chosen(ChatSettings), remembered(SamplingChoice) for new chats with the model that is loaded,
presets_changed(tuple of Presets).
"""

from __future__ import annotations

from collections.abc import Sequence

from PySide6.QtCore import Qt, Signal
from PySide6.QtWidgets import QDialog, QDialogButtonBox, QFrame, QHBoxLayout, QLabel, QVBoxLayout, QWidget

from app.chat_sampling import SamplingChoice, chat_sampling
from app.chat_settings import ChatSettings
from app.language import mark, tr
from app.presets import Preset
from app.ui.choice_box import TickBox
from app.ui.elided_label import ElidedLabel
from app.ui.fitted_scroll import FittedScroll
from app.ui.preset_box import PresetBox
from app.ui.sampling_panel import SamplingPanel
from app.ui.style_sheet import set_role
from app.ui.tab_order import ReadingOrder
from app.ui.text_size import follow_text_size, scaled
from app.ui.theme import SPACE_L, SPACE_M, SPACE_XL
from engine.generation import SamplingParams

_WIDTH = 560
_EXPLANATION = mark("Counts from the next answer on. Empty fields follow what the model recommends.")


class ChatSettingsDialog(ReadingOrder, QDialog):
    """Nothing is chosen until it is saved; presets are kept at once."""

    chosen = Signal(object)
    remembered = Signal(object)
    presets_changed = Signal(object)

    def __init__(
        self,
        settings: ChatSettings,
        presets: Sequence[Preset],
        *,
        recommended: SamplingParams | None,
        remembered: SamplingChoice,
        model: str,
        parent: QWidget | None = None,
    ) -> None:
        """recommended and remembered: of the model that is loaded; None and "" where none is."""
        super().__init__(parent)
        self.setWindowTitle(tr("This chat"))
        self.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
        self._was_ticked = remembered != SamplingChoice() and remembered == settings.sampling
        self.presets = PresetBox(presets, self)
        self.sampling = SamplingPanel(self)
        self.remember = TickBox(tr("New chats with this model begin with this sampling"), self)
        self.remember.setToolTip(tr("Instructions are not among it: keep those as a preset"))
        self._build(_about_grey(model, recommended))
        self.sampling.show_recommended(chat_sampling(recommended or SamplingParams()))
        self.sampling.show_choice(settings.sampling)
        self.presets.show_instructions(settings.instructions)
        self.remember.setVisible(bool(model))
        self.remember.setChecked(self._was_ticked)
        self.presets.presets_changed.connect(self.presets_changed)
        self.buttons.accepted.connect(self._save)
        self.buttons.rejected.connect(self.reject)

    def _save(self) -> None:
        sampling = self.sampling.choice()
        if sampling is None or not self.presets.is_usable():
            return
        if not self.remember.isHidden():
            self._remember(sampling)
        self.chosen.emit(ChatSettings(self.presets.instructions, sampling))
        self.accept()

    def _remember(self, sampling: SamplingChoice) -> None:
        """What is remembered stays, unless it is replaced here, or the tick was there and was taken away."""
        if self.remember.isChecked():
            self.remembered.emit(sampling)
        elif self._was_ticked:
            self.remembered.emit(SamplingChoice())

    def _build(self, about_grey: str) -> None:
        title = QLabel(self.windowTitle(), self)
        set_role(title, "title")
        explanation = QLabel(tr(_EXPLANATION), self)
        explanation.setWordWrap(True)
        set_role(explanation, "muted")
        sampling_title = QLabel(tr("Sampling"), self)
        set_role(sampling_title, "header-title")
        self.about_grey = ElidedLabel(about_grey, self)
        set_role(self.about_grey, "small")
        line = QFrame(self)
        set_role(line, "line")
        line.setFixedHeight(1)
        self.buttons = QDialogButtonBox(self)
        self.save_button = self.buttons.addButton(tr("Save"), QDialogButtonBox.ButtonRole.AcceptRole)
        self.buttons.addButton(QDialogButtonBox.StandardButton.Cancel)
        set_role(self.save_button, "primary")
        self.save_button.setDefault(True)
        content = QWidget(self)
        column = QVBoxLayout(content)
        column.setContentsMargins(SPACE_XL, SPACE_L, SPACE_XL, 0)
        column.setSpacing(SPACE_M)
        column.addWidget(title)
        column.addWidget(explanation)
        column.addWidget(self.presets)
        column.addWidget(line)
        column.addWidget(sampling_title)
        column.addWidget(self.about_grey)
        column.addWidget(self.sampling)
        column.addWidget(self.remember)
        whole = QVBoxLayout(self)
        whole.setContentsMargins(0, 0, 0, SPACE_L)
        whole.setSpacing(SPACE_M)
        whole.addWidget(FittedScroll(content, self, as_wide=True))
        bottom = QHBoxLayout()
        bottom.setContentsMargins(SPACE_XL, 0, SPACE_XL, 0)
        bottom.addWidget(self.buttons)
        whole.addLayout(bottom)
        whole.setSizeConstraint(QVBoxLayout.SizeConstraint.SetFixedSize)  # as high as what it says now
        follow_text_size(self, lambda: explanation.setFixedWidth(scaled(_WIDTH - 2 * SPACE_XL)))


def _about_grey(model: str, recommended: SamplingParams | None) -> str:
    """Where the values come from that hold where a field is empty."""
    if not model:
        return tr("No model is loaded; grey values are for models that recommend nothing.")
    if recommended is None or recommended == SamplingParams():
        return tr("{model} recommends nothing; grey values suit most models.", model=model)
    return tr("Grey values are recommended by {model}.", model=model)
