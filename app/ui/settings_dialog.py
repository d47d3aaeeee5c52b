"""All settings in one dialog: sections on the left, a search above them. A change counts at once.

Signals: changed(field of Settings, value); folder_chosen(field, Path or None for the default);
reveal_asked(Path), limits_asked(), reset_asked().
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from PySide6.QtCore import QSize, Qt, Signal
from PySide6.QtGui import QKeyEvent
from PySide6.QtWidgets import (
    QDialog,
    QFileDialog,
    QFrame,
    QHBoxLayout,
    QLabel,
    QListWidget,
    QScrollArea,
    QVBoxLayout,
    QWidget,
)

from app.language import mark, tr
from app.paths import Folders
from app.settings import Settings
from app.ui import dialogs
from app.ui.push_button import PushButton
from app.ui.search_field import SearchField
from app.ui.setting_rows import FolderRow, SettingRow
from app.ui.settings_sections import FOLDER_FIELDS, Section, SettingsSections
from app.ui.style_sheet import set_role
from app.ui.tab_order import ReadingOrder
from app.ui.text_size import follow_text_size, resize_with_text, scaled
from app.ui.theme import SPACE_L, SPACE_M, SPACE_S, SPACE_XL

_SIZE = QSize(760, 560)
_LIST_WIDTH = 170
_MAX_QUERY = 200  # characters
_NOTHING = mark("No setting is called that. Try another word.")


class SettingsDialog(ReadingOrder, QDialog):
    """Shows what it is told by `show_settings`; asks for changes by signals."""

    changed = Signal(str, object)
    folder_chosen = Signal(str, object)
    reveal_asked = Signal(object)
    limits_asked = Signal()
    reset_asked = Signal()

    def __init__(self, settings: Settings, folders: Folders, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.setWindowTitle(tr("Settings"))
        self.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
        self._folders = folders
        self.sections = SettingsSections(self)
        self.search = SearchField(self)
        self.list = QListWidget(self)
        self.nothing = QLabel(tr(_NOTHING), self)
        self._holders: list[tuple[QWidget, Section]] = []
        self._build()
        self._connect_signals()
        self.show_settings(settings, folders)
        self.list.setCurrentRow(0)
        resize_with_text(self, _SIZE)
        self.search.setFocus()

    def show_settings(self, settings: Settings, folders: Folders) -> None:
        self._folders = folders
        self.sections.show_settings(settings, folders)

    def show_row(self, field: str) -> None:
        """Its section, with the focus on it. field: of Settings."""
        row = self.sections.by_field[field]
        place = next(i for i, section in enumerate(self.sections.all) if row in section.rows)
        self.list.setCurrentRow(place)
        row.setFocus()

    def shown_rows(self) -> list[SettingRow]:
        """Those of the section that is chosen, or that the search found."""
        return [row for section in self.sections.all for row in section.rows if row.isVisibleTo(self)]

    def _show(self) -> None:
        """What the search finds in all sections, or else the section that is chosen."""
        query = self.search.text().strip()
        chosen = self.list.currentRow()
        found = False
        for index, (holder, section) in enumerate(self._holders):
            matching = [row for row in section.rows if not query or self._finds(query, section, row)]
            for row in section.rows:
                row.setVisible(row in matching)
            shown = bool(matching) if query else index == chosen
            holder.setVisible(shown)
            found = found or shown
        self.nothing.setVisible(bool(query) and not found)
        self.list.setEnabled(not query)
        self._scroll.verticalScrollBar().setValue(0)

    def _finds(self, query: str, section: Section, row: SettingRow) -> bool:
        return row.matches(query) or query.casefold() in section.name.casefold()

    def _choose_folder(self, field: str, row: FolderRow) -> None:
        dialog = QFileDialog(self, row.name, row.path.text())
        dialog.setFileMode(QFileDialog.FileMode.Directory)
        dialog.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
        dialog.fileSelected.connect(lambda name: self.folder_chosen.emit(field, Path(name)))
        dialog.open()

    def _ask_to_reset(self) -> None:
        dialogs.ask(
            self,
            tr("Reset all settings?"),
            tr("Conversations, presets and models stay, and so does the folder of the conversations."),
            accept=tr("Reset"),
            on_accept=self.reset_asked.emit,
            destructive=True,
        )

    def _connect_signals(self) -> None:
        sections = self.sections
        self.search.textChanged.connect(self._show)
        self.list.currentRowChanged.connect(self._show)
        for field, row in sections.by_field.items():
            row.chosen.connect(lambda value, field=field: self.changed.emit(field, value))
        for name, folder in sections.folders.items():
            folder.reveal_asked.connect(
                lambda name=name: self.reveal_asked.emit(getattr(self._folders, name))
            )
            if (field := FOLDER_FIELDS.get(name)) is not None:
                folder.change_asked.connect(
                    lambda field=field, folder=folder: self._choose_folder(field, folder)
                )
                folder.default_asked.connect(lambda field=field: self.folder_chosen.emit(field, None))
        sections.limits.pressed.connect(self.limits_asked)
        sections.reset.pressed.connect(self._ask_to_reset)
        self.close_button.clicked.connect(self.accept)

    def _build(self) -> None:
        self.search.setPlaceholderText(tr("Search settings"))
        self.search.setAccessibleName(tr("Search settings"))
        self.search.setToolTip(tr("Finds settings by their names and by what they do"))
        self.search.setMaxLength(_MAX_QUERY)
        self.list.setAccessibleName(tr("Sections of the settings"))
        self.list.setToolTip(tr("Sections of the settings"))
        follow_text_size(self.list, lambda: self.list.setFixedWidth(scaled(_LIST_WIDTH)))
        set_role(self.list, "sections")
        self.list.addItems([section.name for section in self.sections.all])
        self.nothing.setAlignment(Qt.AlignmentFlag.AlignHCenter)
        set_role(self.nothing, "muted")
        self.close_button = PushButton(tr("Close"), self)
        self.close_button.setAutoDefault(False)  # Enter in a field ends the field, not the dialog
        left = QVBoxLayout()
        left.setSpacing(SPACE_M)
        follow_text_size(self.search, lambda: self.search.setFixedWidth(scaled(_LIST_WIDTH)))
        left.addWidget(self.search)
        left.addWidget(self.list, 1)
        columns = QHBoxLayout()
        columns.setSpacing(SPACE_XL)
        columns.addLayout(left)
        columns.addWidget(self._page(), 1)
        column = QVBoxLayout(self)
        column.setContentsMargins(SPACE_L, SPACE_L, SPACE_L - SPACE_M, SPACE_L)  # beside the scroll bar
        column.setSpacing(SPACE_L)
        column.addLayout(columns, 1)
        end = QHBoxLayout()
        end.setContentsMargins(0, 0, SPACE_M, 0)
        end.addWidget(self.close_button, 0, Qt.AlignmentFlag.AlignRight)
        column.addLayout(end)

    def _page(self) -> QScrollArea:
        page = QWidget(self)
        column = QVBoxLayout(page)
        column.setContentsMargins(0, 0, SPACE_M, 0)
        column.setSpacing(SPACE_L)
        for section in self.sections.all:
            holder = _holder(section, page)
            column.addWidget(holder)
            self._holders.append((holder, section))
        column.addWidget(self.nothing)
        column.addStretch(1)
        self._scroll = QScrollArea(self)
        self._scroll.setWidgetResizable(True)
        self._scroll.setFocusPolicy(Qt.FocusPolicy.NoFocus)
        self._scroll.setWidget(page)
        page.setAutoFillBackground(False)
        self._scroll.viewport().setAutoFillBackground(False)
        return self._scroll

    # Qt overrides

    def keyPressEvent(self, event: QKeyEvent) -> None:
        if event.key() in (Qt.Key.Key_Return, Qt.Key.Key_Enter):
            event.accept()  # it ended a field
        elif event.key() == Qt.Key.Key_Escape and self.search.text():
            self.search.clear()
        else:
            super().keyPressEvent(event)


def _holder(section: Section, parent: QWidget) -> QWidget:
    """Its name above a card with its rows."""
    holder = QWidget(parent)
    title = QLabel(section.name, holder)
    set_role(title, "title")
    below = QVBoxLayout(holder)
    below.setContentsMargins(0, 0, 0, 0)
    below.setSpacing(SPACE_S)
    below.addWidget(title)
    below.addWidget(_card(section.rows, holder))
    return holder


def _card(rows: Sequence[SettingRow], parent: QWidget) -> QFrame:
    card = QFrame(parent)
    set_role(card, "card")
    column = QVBoxLayout(card)
    column.setContentsMargins(SPACE_L, SPACE_S, SPACE_L, SPACE_S)
    column.setSpacing(0)
    for row in rows:
        column.addWidget(row)
    return card
