"""Above the list of conversations: the field of the search, and which tag is listed.

Signals: search_changed(text) a moment after it was typed; entered() by Return; left_downwards() by the arrow
key; tag_chosen(name), "" for all.
"""

from __future__ import annotations

from collections.abc import Mapping

from PySide6.QtCore import QEvent, QObject, Qt, QTimer, Signal
from PySide6.QtGui import QActionGroup, QKeyEvent
from PySide6.QtWidgets import QHBoxLayout, QMenu, QToolButton, QVBoxLayout, QWidget

from app.language import tr
from app.search_text import terms_of
from app.ui.composition import Composition
from app.ui.icons import icon
from app.ui.push_button import PushButton
from app.ui.search_field import SearchField
from app.ui.style_sheet import set_label
from app.ui.text_size import set_icon_size
from app.ui.theme import SPACE_M, SPACE_XS, Theme, current_theme, theme_manager

_PAUSE_MS = 80  # in typing, before what was typed is looked for


class FilterBar(QWidget):
    search_changed = Signal(str)
    entered = Signal()
    left_downwards = Signal()
    tag_chosen = Signal(str)

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._tag = ""
        self._asked = ""
        self.field = SearchField(self)
        self.field.setPlaceholderText(tr("Search all chats"))
        self.field.setAccessibleName(tr("Search all chats"))
        self.field.setToolTip(
            tr('Search everything that was said (Ctrl+F). "Words in quotes" stay together.')
        )
        self.field.setMaxLength(1_000)
        self.tag_button = QToolButton(self)
        self.tag_button.setAccessibleName(tr("List one tag"))
        self.tag_button.setToolTip(tr("List only chats with a tag"))
        self.tag_button.setPopupMode(QToolButton.ToolButtonPopupMode.InstantPopup)
        set_icon_size(self.tag_button, 18)
        self.tag_menu = QMenu(self)
        self.tag_button.setMenu(self.tag_menu)
        self.tag_button.hide()
        self.chip = PushButton(parent=self)
        self.chip.setProperty("role", "chip")
        self.chip.setToolTip(tr("List all chats again"))
        self.chip.hide()
        row = QHBoxLayout()
        row.setSpacing(SPACE_XS)
        row.addWidget(self.field, 1)
        row.addWidget(self.tag_button)
        column = QVBoxLayout(self)
        column.setContentsMargins(SPACE_M, 0, SPACE_M, SPACE_XS)
        column.setSpacing(SPACE_XS)
        column.addLayout(row)
        column.addWidget(self.chip, 0, Qt.AlignmentFlag.AlignLeft)
        self._timer = QTimer(self, interval=_PAUSE_MS, singleShot=True)
        self._timer.timeout.connect(self._ask)
        self.field.textChanged.connect(self._on_text_changed)
        self.chip.clicked.connect(lambda: self.tag_chosen.emit(""))
        self._composition = Composition(self.field)
        self.field.installEventFilter(self)
        theme_manager().changed.connect(self._paint_icons)
        self._paint_icons(current_theme())

    @property
    def query(self) -> str:
        """What is searched for; "" for nothing."""
        text = self.field.text()
        return text if terms_of(text) else ""

    def set_tags(self, tags: Mapping[str, int], chosen: str) -> None:
        """All tags with the number of conversations that have them, and the one that is listed ("": all)."""
        self._tag = chosen
        self.tag_button.setVisible(bool(tags))
        self.chip.setVisible(bool(chosen))
        set_label(self.chip, f"#{chosen}")
        self.chip.setAccessibleName(
            tr("Only chats with the tag {tag} are listed. List all again", tag=chosen)
        )
        self.tag_menu.clear()
        group = QActionGroup(self.tag_menu)
        for name, words in {
            "": tr("All chats"),
            **{tag: tr("{tag}  ({count:,})", tag=tag, count=count) for tag, count in tags.items()},
        }.items():
            action = self.tag_menu.addAction(words.replace("&", "&&"))
            action.setCheckable(True)
            action.setChecked(name == chosen)
            group.addAction(action)
            action.triggered.connect(lambda _checked=False, name=name: self.tag_chosen.emit(name))

    def _on_text_changed(self, text: str) -> None:
        if not text:
            self._timer.stop()
            self._ask()
        else:
            self._timer.start()

    def _ask(self) -> None:
        if self.query != self._asked:
            self._asked = self.query
            self.search_changed.emit(self._asked)

    def _paint_icons(self, theme: Theme) -> None:
        self.tag_button.setIcon(icon("tag", theme.text_muted))
        self.chip.setIcon(icon("close", theme.text_muted))

    # Qt overrides

    def eventFilter(self, watched: QObject, event: QEvent) -> bool:
        if watched is self.field and isinstance(event, QKeyEvent) and event.type() == QEvent.Type.KeyPress:
            if self._composition.owns_keys:
                return False  # it chooses or ends a word
            match event.key():
                case Qt.Key.Key_Escape if self.field.text():
                    self.field.clear()
                    return True
                case Qt.Key.Key_Down:
                    self.left_downwards.emit()
                    return True
                case Qt.Key.Key_Return | Qt.Key.Key_Enter:
                    self.entered.emit()
                    return True
        return super().eventFilter(watched, event)
