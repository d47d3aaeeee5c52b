"""Where a person says how much may be kept of conversations, sees how much it is, and removes it.

Signals: limited(memory, disk) in bytes or None, removal_asked, measure_asked.
"""

from __future__ import annotations

from PySide6.QtCore import Qt, Signal, Slot
from PySide6.QtWidgets import (
    QDialog,
    QDialogButtonBox,
    QFrame,
    QGridLayout,
    QHBoxLayout,
    QLabel,
    QLineEdit,
    QSizePolicy,
    QVBoxLayout,
    QWidget,
)

from app.kept_states import KeptStates
from app.language import mark, tr
from app.settings import Settings
from app.ui import dialogs
from app.ui.elided_label import ElidedLabel
from app.ui.push_button import PushButton
from app.ui.style_sheet import set_role
from app.ui.tab_order import ReadingOrder
from app.ui.text_format import format_bytes, format_folder, parse_bytes
from app.ui.text_size import follow_text_size, scaled
from app.ui.theme import SPACE_L, SPACE_M, SPACE_S, SPACE_XL
from app.ui.wrapped_label import WrappedLabel

_WIDTH = 480
_FIELD_WIDTH = 120
_EXPLANATION = mark(
    "What the model has read of a chat is kept, so that it need not be read again when the chat goes on, not "
    "even after the next start. This only saves time: messages are kept in any case."
)
_HINT = mark("0 keeps nothing. An empty field lets Kestrel choose.")


class KeptStatesDialog(ReadingOrder, QDialog):
    """Says what is wrong with a size beside it, and then changes nothing."""

    limited = Signal(object, object)  # bytes of memory, bytes of disk; None: chosen by itself
    removal_asked = Signal()
    measure_asked = Signal()

    def __init__(self, settings: Settings, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.setWindowTitle(tr("What is kept of conversations"))
        self.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
        self._build()
        self.memory.setText(_shown(settings.state_ram_bytes))
        self.disk.setText(_shown(settings.state_disk_bytes))
        self._connect_signals()

    def show_kept(self, kept: KeptStates) -> None:
        """What was measured."""
        self.memory.setPlaceholderText(_gigabytes(kept.default_ram_bytes))
        self.disk.setPlaceholderText(_gigabytes(kept.default_disk_bytes))
        if kept.num_bytes:
            self.used.setText(tr("{size} on disk now", size=format_bytes(kept.num_bytes)))
        else:
            self.used.setText(tr("Nothing on disk now"))
        self.folder.setText(format_folder(kept.folder))
        self.remove_button.setEnabled(True)

    @Slot()
    def refresh(self) -> None:
        """What is kept may have changed."""
        self.measure_asked.emit()

    def _save(self) -> None:
        sizes = []
        for field in (self.memory, self.disk):
            try:
                blank = not field.text().strip()
                sizes.append(None if blank else parse_bytes(field.text(), zero=tr("keep nothing")))
            except ValueError as error:
                self.error.setText(str(error))
                self.error.show()
                field.setFocus()
                field.selectAll()
                return
        self.limited.emit(*sizes)
        self.accept()

    def _ask_to_remove(self) -> None:
        dialogs.ask(
            self,
            tr("Remove everything that is kept of conversations?"),
            tr("Their messages stay. A chat that goes on is read again from its beginning, once."),
            accept=tr("Remove"),
            on_accept=self.removal_asked.emit,
            destructive=True,
        )

    def _connect_signals(self) -> None:
        for field in (self.memory, self.disk):
            field.textEdited.connect(self.error.hide)
        self.remove_button.clicked.connect(self._ask_to_remove)
        self.buttons.accepted.connect(self._save)
        self.buttons.rejected.connect(self.reject)

    def _build(self) -> None:
        title = QLabel(self.windowTitle(), self)
        set_role(title, "title")
        explanation = WrappedLabel(tr(_EXPLANATION), self)
        set_role(explanation, "muted")
        self.memory = _field(tr("Memory for conversations, in gigabytes"), self)
        self.disk = _field(tr("Disk for conversations, in gigabytes"), self)
        hint = WrappedLabel(tr(_HINT), self)
        set_role(hint, "small")
        self.error = WrappedLabel("", self)
        set_role(self.error, "danger")
        self.error.hide()
        self.used = QLabel("", self)
        self.folder = ElidedLabel("", self, mode=Qt.TextElideMode.ElideMiddle)
        set_role(self.folder, "small")
        self.folder.setSizePolicy(QSizePolicy.Policy.Ignored, QSizePolicy.Policy.Preferred)
        self.remove_button = PushButton(tr("Remove all…"), self)
        set_role(self.remove_button, "danger")
        self.remove_button.setEnabled(False)
        self.buttons = QDialogButtonBox(self)
        self.save_button = self.buttons.addButton(tr("Save"), QDialogButtonBox.ButtonRole.AcceptRole)
        self.buttons.addButton(QDialogButtonBox.StandardButton.Cancel)
        set_role(self.save_button, "primary")
        self.save_button.setDefault(True)
        self._lay_out(title, explanation, hint)

    def _lay_out(self, title: QLabel, explanation: QLabel, hint: QLabel) -> None:
        grid = QGridLayout()
        grid.setHorizontalSpacing(SPACE_M)
        grid.setVerticalSpacing(SPACE_S)
        grid.setColumnStretch(2, 1)
        for row, (words, field) in enumerate(
            ((tr("At most in memory"), self.memory), (tr("At most on disk"), self.disk))
        ):
            label = QLabel(words, self)
            label.setBuddy(field)
            grid.addWidget(label, row, 0)
            grid.addWidget(field, row, 1)
            grid.addWidget(QLabel("GB", self), row, 2)
        grid.addWidget(hint, 2, 0, 1, 3)
        card = QFrame(self)
        set_role(card, "card")
        use = QVBoxLayout()
        use.addWidget(self.used)
        use.addWidget(self.folder)
        on_disk = QHBoxLayout(card)
        on_disk.setContentsMargins(SPACE_L, SPACE_M, SPACE_M, SPACE_M)
        on_disk.addLayout(use, 1)
        on_disk.addWidget(self.remove_button)
        column = QVBoxLayout(self)
        column.setContentsMargins(SPACE_XL, SPACE_L, SPACE_XL, SPACE_L)
        column.setSpacing(SPACE_M)
        column.addWidget(title)
        column.addWidget(explanation)
        column.addLayout(grid)
        column.addWidget(self.error)
        column.addWidget(card)
        column.addWidget(self.buttons)
        column.setSizeConstraint(QVBoxLayout.SizeConstraint.SetFixedSize)  # as high as what it says now
        for sentences in (explanation, hint):
            follow_text_size(
                sentences, lambda part=sentences: part.setFixedWidth(scaled(_WIDTH - 2 * SPACE_XL))
            )


def _field(name: str, parent: QWidget) -> QLineEdit:
    field = QLineEdit(parent)
    field.setAccessibleName(name)
    follow_text_size(field, lambda: field.setFixedWidth(scaled(_FIELD_WIDTH)))
    field.setAlignment(Qt.AlignmentFlag.AlignRight)
    return field


def _shown(num_bytes: int | None) -> str:
    return "" if num_bytes is None else f"{num_bytes / 1e9:.9f}".rstrip("0").rstrip(".")


def _gigabytes(num_bytes: int) -> str:
    return f"{num_bytes / 1e9:.1f}" if num_bytes >= 10**8 else f"{num_bytes / 1e9:.2g}"
