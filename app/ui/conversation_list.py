"""The list on the left: new chat, a search over everything, and all conversations by day.

While something is searched for, what was found stands in the place of the list.
Attributes: model (ConversationModel), actions_ (what is asked for of those that are chosen).
Signals: new_requested, open_requested(id), rename_requested(id, title), search_changed(text),
message_requested(message id, text that was searched for).
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
from app.language import tr
from app.search import SearchResult
from app.ui.conversation_delegate import ConversationDelegate
from app.ui.conversation_menu import ConversationActions, conversation_menu
from app.ui.conversation_model import ConversationModel
from app.ui.filter_bar import FilterBar
from app.ui.icons import icon
from app.ui.push_button import PushButton
from app.ui.search_results import SearchResults, found_words
from app.ui.style_sheet import set_label
from app.ui.text_size import set_icon_size
from app.ui.theme import SPACE_M, SPACE_S, Theme, current_theme, theme_manager
from app.ui.transfer_bar import TransferBar
from app.ui.undo_bar import UndoBar

_ICON = 16
_PULSE_MS = 60  # how often the dot of the conversation being answered is drawn anew


class ConversationList(QWidget):
    """Shows what the controller lists and asks for changes; changes nothing itself."""

    new_requested = Signal()
    open_requested = Signal(str)
    rename_requested = Signal(str, str)
    search_changed = Signal(str)  # "": nothing is searched for
    message_requested = Signal(str, str)

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.model = ConversationModel()
        self._current: str | None = None
        self._waiting: tuple[ConversationSummary, ...] | None = None  # came while a title was being edited
        self.actions_ = ConversationActions(self)
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
        chosen = [summary.id for summary in self.chosen]
        self.model.set_summaries(summaries)
        self._show_page()
        self.filter_bar.set_tags(self.model.tags, self.model.tag)
        if len(chosen) > 1:
            self._choose(chosen)
        else:
            self.set_current(self._current)

    def take_over(self, other: ConversationList) -> None:
        """What is listed there, and what is searched for."""
        self.set_summaries(other.model.summaries)
        self._choose_tag(other.model.tag)
        self.filter_bar.field.setText(other.filter_bar.field.text())

    @property
    def chosen(self) -> list[ConversationSummary]:
        """Those that are selected, in the order of the list."""
        indexes = sorted(self.view.selectionModel().selectedIndexes(), key=QModelIndex.row)
        summaries = (self.model.summary_at(index) for index in indexes)
        return [summary for summary in summaries if summary is not None]

    def show_result(self, result: SearchResult) -> None:
        """What was found of what is searched for now."""
        if result.query == self.filter_bar.query:
            self.results.show_result(result)
            self._found_words.setText(found_words(result))
            self._show_page()

    def focus_search(self) -> None:
        self.filter_bar.field.setFocus()
        self.filter_bar.field.selectAll()

    def show_deleted(self, count: int) -> None:
        """So many conversations can be brought back."""
        self.undo_bar.show_deleted(count)

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

    def delete_chosen(self) -> None:
        if chosen := self.chosen:
            self.actions_.delete_requested.emit([summary.id for summary in chosen])

    def _build(self) -> None:
        self.setAccessibleName(tr("Conversations"))
        self.new_button = PushButton(parent=self)
        set_label(self.new_button, tr("New chat"))
        set_icon_size(self.new_button, _ICON)
        self.new_button.setAccessibleName(tr("New chat"))
        keys = QKeySequence(QKeySequence.StandardKey.New).toString(QKeySequence.SequenceFormat.NativeText)
        self.new_button.setToolTip(tr("Start a new chat ({keys})", keys=keys))
        self.filter_bar = FilterBar(self)
        self.results = SearchResults(self)
        self.transfer_bar = TransferBar(self)
        self.undo_bar = UndoBar(self)
        self._found_words = QLabel(self)
        self._found_words.setProperty("role", "small")
        self._found_words.setTextFormat(Qt.TextFormat.PlainText)
        self._found_words.setWordWrap(True)
        self._found_words.setMinimumWidth(1)
        self.view = QListView(self)
        self.view.setSelectionMode(QAbstractItemView.SelectionMode.ExtendedSelection)
        self.view.setModel(self.model)
        self.delegate = ConversationDelegate(self.view)
        self.view.setItemDelegate(self.delegate)
        self.view.setAccessibleName(tr("List of conversations"))
        self.view.setFrameShape(QFrame.Shape.NoFrame)
        self.view.setMouseTracking(True)
        self.view.setVerticalScrollMode(QAbstractItemView.ScrollMode.ScrollPerPixel)
        self.view.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        self.view.setEditTriggers(
            QAbstractItemView.EditTrigger.DoubleClicked | QAbstractItemView.EditTrigger.EditKeyPressed
        )
        self.view.setContextMenuPolicy(Qt.ContextMenuPolicy.CustomContextMenu)
        self._empty = QLabel(tr("Your conversations will be listed here."), self)
        self._empty.setProperty("role", "small")
        self._empty.setWordWrap(True)
        self._empty.setAlignment(Qt.AlignmentFlag.AlignTop)

        top = QHBoxLayout()
        top.setContentsMargins(SPACE_M, SPACE_M, SPACE_M, SPACE_S)
        top.addWidget(self.new_button)
        middle = QVBoxLayout()
        middle.setContentsMargins(SPACE_M + 2, SPACE_S, SPACE_M, 0)
        middle.addWidget(self._empty)
        middle.addWidget(self._found_words)
        layout = QVBoxLayout(self)
        layout.setContentsMargins(0, 0, 0, 0)
        layout.setSpacing(0)
        layout.addLayout(top)
        layout.addWidget(self.filter_bar)
        layout.addLayout(middle)
        layout.addWidget(self.view, 1)
        layout.addWidget(self.results, 1)
        layout.addStretch(0)
        below = QVBoxLayout()
        below.setContentsMargins(SPACE_S, 0, SPACE_S, SPACE_S)
        below.setSpacing(SPACE_S)
        below.addWidget(self.transfer_bar)
        below.addWidget(self.undo_bar)
        layout.addLayout(below)
        self._show_page()

    def _connect_signals(self) -> None:
        self.new_button.clicked.connect(self.new_requested)
        self.model.rename_requested.connect(self.rename_requested)
        self.view.clicked.connect(self._open)
        self.view.activated.connect(self._open)
        self.view.customContextMenuRequested.connect(self._show_menu)
        self.view.installEventFilter(self)
        self.filter_bar.search_changed.connect(self._on_search_changed)
        self.filter_bar.entered.connect(self.results.choose_first)
        self.filter_bar.left_downwards.connect(self._enter_results)
        self.filter_bar.tag_chosen.connect(self._choose_tag)
        self.results.conversation_chosen.connect(self.open_requested)
        self.results.message_chosen.connect(
            lambda message_id: self.message_requested.emit(message_id, self.filter_bar.query)
        )
        self.actions_.rename_requested.connect(self.rename_current)
        # Queued: the view leaves its editing state only after this signal.
        self.delegate.closeEditor.connect(self._take_waiting, Qt.ConnectionType.QueuedConnection)
        self._pulse.timeout.connect(self._draw_dot)
        theme_manager().changed.connect(self._paint_icons)

    def _open(self, index: QModelIndex) -> None:
        """One that is chosen with others is not opened."""
        summary = self.model.summary_at(index)
        if summary is not None and summary.id != self._current and len(self.chosen) <= 1:
            self.open_requested.emit(summary.id)

    def _show_page(self) -> None:
        searching = bool(self.filter_bar.query)
        has_any = bool(self.model.summaries)
        self._empty.setVisible(not has_any and not searching)
        self._found_words.setVisible(searching)
        self.results.setVisible(searching)
        self.view.setVisible(has_any and not searching)

    def _on_search_changed(self, query: str) -> None:
        if not query:
            self.results.show_result(None)
            self._found_words.setText("")
        elif not self.results.isVisible():
            self._found_words.setText(tr("Searching…"))
        self._show_page()
        self.search_changed.emit(query)

    def _enter_results(self) -> None:
        view = self.results if self.filter_bar.query else self.view
        view.setFocus()
        if view is self.results and not view.currentIndex().isValid() and view.model().rowCount():
            view.setCurrentIndex(view.model().index(0, 0))

    def _choose_tag(self, tag: str) -> None:
        self.model.set_tag(tag)
        self.filter_bar.set_tags(self.model.tags, self.model.tag)
        self.set_current(self._current)

    def _choose(self, conversation_ids: Sequence[str]) -> None:
        selection = self.view.selectionModel()
        selection.clear()
        for index in map(self.model.index_of, conversation_ids):
            if index.isValid():
                selection.select(index, QItemSelectionModel.SelectionFlag.Select)

    def _show_menu(self, position: QPoint) -> None:
        index = self.view.indexAt(position)
        if self.model.summary_at(index) is None:
            return
        if not self.view.selectionModel().isSelected(index):  # else it is for all that are chosen
            self.view.selectionModel().setCurrentIndex(
                index, QItemSelectionModel.SelectionFlag.ClearAndSelect
            )
        menu = self.context_menu()
        menu.popup(self.view.viewport().mapToGlobal(position))

    def context_menu(self) -> QMenu:
        """What can be done with the chosen conversations. Deletes itself when it closes."""
        menu = conversation_menu(self, self.actions_, self.chosen, tags=self.model.tags)
        # A menu that was closed without a choice leaves the mark on the conversation that is open.
        menu.aboutToHide.connect(lambda: QTimer.singleShot(0, self, self._mark_again))
        return menu

    def _mark_again(self) -> None:
        if not self._editing() and len(self.chosen) <= 1:
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
                self.delete_chosen()
                return True
            if event.key() in (Qt.Key.Key_Return, Qt.Key.Key_Enter):
                # Not every platform's style activates an item by Return.
                self._open(self.view.currentIndex())
                return True
        return super().eventFilter(watched, event)
