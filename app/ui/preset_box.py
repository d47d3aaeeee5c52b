"""What a model is told before a conversation: written here, or taken from presets that are kept by name."""

from __future__ import annotations

from collections.abc import Sequence

from PySide6.QtCore import Qt, Signal
from PySide6.QtGui import QKeyEvent
from PySide6.QtWidgets import QHBoxLayout, QLabel, QLineEdit, QPlainTextEdit, QVBoxLayout, QWidget

from app.chat_settings import MAX_INSTRUCTIONS
from app.language import mark, tr, translated
from app.presets import Preset, named, preset_of, renamed, with_preset, without
from app.ui import dialogs
from app.ui.choice_box import ChoiceBox
from app.ui.composition import Composition
from app.ui.push_button import PushButton
from app.ui.style_sheet import set_role
from app.ui.text_size import follow_text_size, scaled
from app.ui.theme import SPACE_S, SPACE_XS
from app.ui.wrapped_label import WrappedLabel

_LINES = 6
_CHOOSER_WIDTH = 200  # pixels, at least
NONE = mark("No instructions")
OWN = mark("Own words")


class PresetBox(QWidget):
    """Signals: presets_changed(tuple of Presets), to be kept at once; edited(), when the words have."""

    presets_changed = Signal(object)
    edited = Signal()

    def __init__(self, presets: Sequence[Preset], parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._presets = tuple(presets)
        self._naming = ""  # the preset that gets another name now; "": what is written gets its first
        self.chooser = ChoiceBox(self)
        self.chooser.setAccessibleName(tr("Preset of instructions"))
        self.chooser.setToolTip(tr("Instructions that you keep for any chat"))
        self.text = QPlainTextEdit(self)
        Composition(self.text)
        self.text.setTabChangesFocus(True)
        self.text.setAccessibleName(tr("Instructions"))
        self.text.setToolTip(tr("The model reads this before the conversation (its system prompt)"))
        self.text.setPlaceholderText(tr("For example: Answer briefly, and in British English."))
        set_role(self.text, "field")
        follow_text_size(self, self._fit)
        self.save_button = PushButton(tr("Save as preset…"), self)
        self.rename_button = PushButton(tr("Rename…"), self)
        self.delete_button = PushButton(tr("Delete…"), self)
        self.name = _NameEdit(self)
        self.name.setAccessibleName(tr("Name of the preset"))
        self.name.setPlaceholderText(tr("Name of the preset"))
        self.keep_button = PushButton(tr("Save"), self)
        self.cancel_button = PushButton(tr("Cancel"), self)
        self.error = WrappedLabel("", self)
        set_role(self.error, "danger")
        self._explain()
        self._lay_out()
        self._connect_signals()
        self._end_naming()
        self._fill()

    def _fit(self) -> None:
        line = self.text.fontMetrics().lineSpacing()
        self.text.setFixedHeight(line * _LINES + 2 * SPACE_S + SPACE_XS)
        self.chooser.setMinimumWidth(scaled(_CHOOSER_WIDTH))

    @property
    def instructions(self) -> str:
        return self.text.toPlainText().strip()

    @property
    def presets(self) -> tuple[Preset, ...]:
        return self._presets

    def show_instructions(self, text: str) -> None:
        self.text.setPlainText(text)

    def is_usable(self) -> bool:
        """Says below what is wrong if not."""
        if len(self.instructions) <= MAX_INSTRUCTIONS:
            return True
        self._refuse(
            tr("Instructions have at most {most:,} characters; these have more.", most=MAX_INSTRUCTIONS),
            self.text,
        )
        return False

    # What the person does

    def _choose(self, index: int) -> None:
        chosen = self.chooser.itemData(index)
        if isinstance(chosen, Preset):
            self.text.setPlainText(chosen.text)
        elif index == 0:
            self.text.clear()

    def _begin_naming(self, old: str) -> None:
        """Asks for a name: another one for the preset `old`, or one for what is written."""
        self._naming = old
        self.keep_button.setText(tr("Rename") if old else tr("Save"))
        self.name.setText(old)
        self._show_naming(True)
        self.name.selectAll()
        self.name.setFocus()

    def _keep(self) -> None:
        try:
            if self._naming:
                presets = renamed(self._presets, self._naming, self.name.text())
            else:
                presets = with_preset(self._presets, self.name.text(), self.instructions)
        except ValueError as error:
            self._refuse(translated(str(error)), self.name)
            return
        if not self._naming and (old := named(self._presets, self.name.text())) is not None:
            dialogs.ask(
                self,
                tr("Replace the preset “{name}”?", name=old.name),
                tr("Chats that were begun with it keep the old words."),
                accept=tr("Replace"),
                on_accept=lambda: self._take(presets),
            )
            return
        self._take(presets)

    def _delete(self) -> None:
        preset = self._chosen()
        if preset is None:
            return
        dialogs.ask(
            self,
            tr("Delete the preset “{name}”?", name=preset.name),
            tr("Chats that were begun with it keep its words."),
            accept=tr("Delete"),
            on_accept=lambda: self._take(without(self._presets, preset.name)),
            destructive=True,
        )

    def _take(self, presets: tuple[Preset, ...]) -> None:
        self._presets = presets
        self.presets_changed.emit(presets)
        self._end_naming()
        self._fill()

    # What is shown

    def _chosen(self) -> Preset | None:
        return preset_of(self._presets, self.instructions)

    def _fill(self) -> None:
        self.chooser.blockSignals(True)  # nobody chooses here
        self.chooser.clear()
        self.chooser.addItem(tr(NONE))
        for preset in self._presets:
            self.chooser.addItem(preset.name, preset)
        self.chooser.blockSignals(False)
        self._follow_text()

    def _follow_text(self) -> None:
        """The chooser names what is written."""
        chosen = self._chosen()
        own = len(self._presets) + 1  # by its place: a preset may have the same name
        is_own = bool(self.instructions) and chosen is None
        self.chooser.blockSignals(True)
        if is_own and self.chooser.count() == own:
            self.chooser.addItem(tr(OWN))
        elif not is_own and self.chooser.count() > own:
            self.chooser.removeItem(own)
        if is_own:
            self.chooser.setCurrentIndex(self.chooser.count() - 1)
        else:
            self.chooser.setCurrentIndex(self._presets.index(chosen) + 1 if chosen is not None else 0)
        self.chooser.blockSignals(False)
        self.save_button.setEnabled(is_own)
        self.rename_button.setEnabled(chosen is not None)
        self.delete_button.setEnabled(chosen is not None)
        self.edited.emit()

    def _end_naming(self) -> None:
        self._show_naming(False)
        self.error.hide()

    def _show_naming(self, naming: bool) -> None:
        self._naming_row.setVisible(naming)
        self._buttons_row.setVisible(not naming)

    def _refuse(self, sentence: str, field: QWidget) -> None:
        self.error.setText(sentence)
        self.error.show()
        field.setFocus()

    def _connect_signals(self) -> None:
        self.chooser.currentIndexChanged.connect(self._choose)
        self.text.textChanged.connect(self.error.hide)
        self.text.textChanged.connect(self._follow_text)
        self.name.textEdited.connect(self.error.hide)
        self.name.returnPressed.connect(self._keep)
        self.save_button.clicked.connect(lambda: self._begin_naming(""))
        self.rename_button.clicked.connect(lambda: self._begin_naming(self.chooser.currentText()))
        self.delete_button.clicked.connect(self._delete)
        self.keep_button.clicked.connect(self._keep)
        self.cancel_button.clicked.connect(self._end_naming)

    def _explain(self) -> None:
        self.save_button.setToolTip(tr("Keep these instructions under a name, for other chats"))
        self.rename_button.setToolTip(tr("Give the chosen preset another name"))
        self.delete_button.setToolTip(tr("Delete the chosen preset"))
        self.name.setToolTip(tr("What the preset is called in the list"))

    def _lay_out(self) -> None:
        label = QLabel(tr("Instructions"), self)
        label.setBuddy(self.text)
        set_role(label, "header-title")
        head = QHBoxLayout()
        head.setSpacing(SPACE_S)
        head.addWidget(label)
        head.addStretch(1)
        self.chooser.setSizeAdjustPolicy(ChoiceBox.SizeAdjustPolicy.AdjustToContents)
        head.addWidget(self.chooser)
        self._buttons_row = _row(self, self.save_button, self.rename_button, self.delete_button)
        self._naming_row = _row(self, self.name, self.keep_button, self.cancel_button)
        column = QVBoxLayout(self)
        column.setContentsMargins(0, 0, 0, 0)
        column.setSpacing(SPACE_S)
        column.addLayout(head)
        column.addWidget(self.text)
        column.addWidget(self._buttons_row, 0, Qt.AlignmentFlag.AlignLeft)
        column.addWidget(self._naming_row)
        column.addWidget(self.error)


class _NameEdit(QLineEdit):
    """Enter keeps the name, and the dialog around it stays open."""

    # Qt overrides

    def keyPressEvent(self, event: QKeyEvent) -> None:
        super().keyPressEvent(event)
        if event.key() in (Qt.Key.Key_Return, Qt.Key.Key_Enter):
            event.accept()


def _row(parent: QWidget, *parts: QWidget) -> QWidget:
    holder = QWidget(parent)
    row = QHBoxLayout(holder)
    row.setContentsMargins(0, 0, 0, 0)
    row.setSpacing(SPACE_S)
    for part in parts:
        row.addWidget(part)
    return holder
