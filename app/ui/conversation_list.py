"""The list on the left: new chat, and all conversations by day.

Attributes: model (ConversationModel).
Signals: new_requested, open_requested(id), rename_requested(id, title), delete_requested(summary).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from PySide6.QtCore import (
    QEvent,
    QItemSelectionModel,
    QModelIndex,
    QObject,
    QPoint,
    Qt,
    QTimer,
    Signal,
)
from PySide6.QtGui import QKeyEvent, QKeySequence
from PySide6.QtWidgets import (
    QAbstractItemView,
    QFrame,
    QHBoxLayout,
    QLabel,
    QListView,
    QMenu,
    QVBoxLayout,
    QWidget,
)

from app.conversations import ConversationSummary
from app.ui.conversation_delegate import ConversationDelegate
from app.ui.conversation_model import ConversationModel
from app.ui.icons import icon
from app.ui.push_button import PushButton
from app.ui.style_sheet import set_label
from app.ui.theme import SPACE_M, SPACE_S, Theme, current_theme, theme_manager

_PULSE_MS = 60  # how often the dot of the conversation being answered is drawn anew


class ConversationList(QWidget):
    """Shows what the controller lists and asks for changes; changes nothing itself."""

    new_requested = Signal()
    open_requested = Signal(str)
    rename_requested = Signal(str, str)
    delete_requested = Signal(object)  # ConversationSummary

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.model = ConversationModel()
        self._current: str | None = None
        self._waiting: tuple[ConversationSummary, ...] | None = None  # came while a title was being edited
        self._build()
        self._pulse = QTimer(self)
        self._pulse.setInterval(_PULSE_MS)
        self._connect_signals()
        self._paint_icons(current_theme())

    @property
    def current_id(self) -> str | None:
        """The conversation that is marked as open."""
        return self._current

    def set_summaries(self, summaries: Sequence[ConversationSummary]) -> None:
        if self._editing():
            self._waiting = tuple(summaries)  # moving rows now would throw away what is being typed
            return
        self._waiting = None
        self.model.set_summaries(summaries)
        self._empty.setVisible(not summaries)
        self.view.setVisible(bool(summaries))
        self.set_current(self._current)

    def set_current(self, conversation_id: str | None) -> None:
        """Marks the open conversation; None for a new chat that isn't in the list yet."""
        self._current = conversation_id
        index = self.model.index_of(conversation_id)
        selection = self.view.selectionModel()
        if not index.isValid():
            selection.clear()
        elif selection.currentIndex() != index or not selection.isSelected(index):
            selection.setCurrentIndex(index, QItemSelectionModel.SelectionFlag.ClearAndSelect)
            self.view.scrollTo(index)

    def set_answering(self, conversation_id: str | None, waiting: Collection[str] = ()) -> None:
        """Lets the dot move beside the conversation in which an answer is being written; a ring stands beside
        those in which one waits.
        """
        self.model.set_answering(conversation_id, waiting)
        if conversation_id is None:
            self._pulse.stop()
        elif not self._pulse.isActive():
            self._pulse.start()

    def rename_current(self) -> None:
        """Edits the chosen title in place."""
        index = self.view.currentIndex()
        if self.model.summary_at(index) is not None:
            self.view.setFocus()
            self.view.edit(index)

    def delete_current(self) -> None:
        summary = self.model.summary_at(self.view.currentIndex())
        if summary is not None:
            self.delete_requested.emit(summary)

    def _build(self) -> None:
        self.setAccessibleName("Conversations")
        self.new_button = PushButton(parent=self)
        set_label(self.new_button, "New chat")
        self.new_button.setAccessibleName("New chat")
        keys = QKeySequence(QKeySequence.StandardKey.New).toString(QKeySequence.SequenceFormat.NativeText)
        self.new_button.setToolTip(f"Start a new chat ({keys})")
        self.view = QListView(self)
        self.view.setModel(self.model)
        self.delegate = ConversationDelegate(self.view)
        self.view.setItemDelegate(self.delegate)
        self.view.setAccessibleName("List of conversations")
        self.view.setFrameShape(QFrame.Shape.NoFrame)
        self.view.setMouseTracking(True)
        self.view.setVerticalScrollMode(QAbstractItemView.ScrollMode.ScrollPerPixel)
        self.view.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        self.view.setEditTriggers(
            QAbstractItemView.EditTrigger.DoubleClicked | QAbstractItemView.EditTrigger.EditKeyPressed
        )
        self.view.setContextMenuPolicy(Qt.ContextMenuPolicy.CustomContextMenu)
        self._empty = QLabel("Your conversations will be listed here.", self)
        self._empty.setProperty("role", "small")
        self._empty.setWordWrap(True)
        self._empty.setAlignment(Qt.AlignmentFlag.AlignTop)

        top = QHBoxLayout()
        top.setContentsMargins(SPACE_M, SPACE_M, SPACE_M, SPACE_S)
        top.addWidget(self.new_button)
        middle = QVBoxLayout()
        middle.setContentsMargins(SPACE_M + 2, SPACE_S, SPACE_M, 0)
        middle.addWidget(self._empty)
        layout = QVBoxLayout(self)
        layout.setContentsMargins(0, 0, 0, 0)
        layout.setSpacing(0)
        layout.addLayout(top)
        layout.addLayout(middle)
        layout.addWidget(self.view, 1)
        layout.addStretch(0)
        self.view.hide()

    def _connect_signals(self) -> None:
        self.new_button.clicked.connect(self.new_requested)
        self.model.rename_requested.connect(self.rename_requested)
        self.view.clicked.connect(self._open)
        self.view.activated.connect(self._open)
        self.view.customContextMenuRequested.connect(self._show_menu)
        self.view.installEventFilter(self)
        # Queued: the view leaves its editing state only after this signal.
        self.delegate.closeEditor.connect(self._take_waiting, Qt.ConnectionType.QueuedConnection)
        self._pulse.timeout.connect(self._draw_dot)
        theme_manager().changed.connect(self._paint_icons)

    def _open(self, index: QModelIndex) -> None:
        summary = self.model.summary_at(index)
        if summary is not None and summary.id != self._current:
            self.open_requested.emit(summary.id)

    def _show_menu(self, position: QPoint) -> None:
        index = self.view.indexAt(position)
        if self.model.summary_at(index) is None:
            return
        self.view.selectionModel().setCurrentIndex(index, QItemSelectionModel.SelectionFlag.ClearAndSelect)
        menu = self.context_menu()
        menu.popup(self.view.viewport().mapToGlobal(position))

    def context_menu(self) -> QMenu:
        """What can be done with the chosen conversation. Deletes itself when it closes."""
        theme = current_theme()
        menu = QMenu(self)
        menu.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
        open_action = menu.addAction(icon("chat", theme.text_muted), "Open")
        open_action.triggered.connect(lambda: self._open(self.view.currentIndex()))
        rename = menu.addAction(icon("pencil", theme.text_muted), "Rename\tF2")
        rename.triggered.connect(self.rename_current)
        menu.addSeparator()
        delete = menu.addAction(icon("trash", theme.danger), "Delete…\tDel")
        delete.triggered.connect(self.delete_current)
        # A menu that was closed without a choice leaves the mark on the conversation that is open.
        menu.aboutToHide.connect(lambda: QTimer.singleShot(0, self, self._mark_again))
        return menu

    def _mark_again(self) -> None:
        if not self._editing():
            self.set_current(self._current)

    def _editing(self) -> bool:
        return self.view.state() == QAbstractItemView.State.EditingState

    def _take_waiting(self) -> None:
        if self._waiting is not None:
            self.set_summaries(self._waiting)

    def _draw_dot(self) -> None:
        self.delegate.advance()
        index = self.model.index_of(self.model.answering)
        if index.isValid():
            self.view.update(index)

    def _paint_icons(self, theme: Theme) -> None:
        self.new_button.setIcon(icon("plus", theme.text))
        self.view.viewport().update()

    # Qt overrides

    def eventFilter(self, watched: QObject, event: QEvent) -> bool:
        if watched is self.view and isinstance(event, QKeyEvent) and event.type() == QEvent.Type.KeyPress:
            if self._editing():
                return False
            if event.key() == Qt.Key.Key_Delete:
                self.delete_current()
                return True
            if event.key() in (Qt.Key.Key_Return, Qt.Key.Key_Enter):
                # Not every platform's style activates an item by Return.
                self._open(self.view.currentIndex())
                return True
        return super().eventFilter(watched, event)
