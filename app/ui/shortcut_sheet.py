"""The sheet of all shortcuts: groups in two columns, keys drawn as caps, found by typing."""

from __future__ import annotations

from collections.abc import Sequence

from PySide6.QtCore import QSize, Qt
from PySide6.QtGui import QKeyEvent
from PySide6.QtWidgets import (
    QDialog,
    QFrame,
    QHBoxLayout,
    QLabel,
    QScrollArea,
    QVBoxLayout,
    QWidget,
)

from app.language import tr
from app.ui.composition import Composition
from app.ui.key_caps import KeyCaps
from app.ui.push_button import PushButton
from app.ui.search_field import SearchField
from app.ui.shortcut_list import Shortcut, ShortcutGroup
from app.ui.style_sheet import set_role
from app.ui.tab_order import ReadingOrder
from app.ui.text_size import follow_text_size, resize_with_text, scaled
from app.ui.theme import SPACE_L, SPACE_M, SPACE_S, SPACE_XL, SPACE_XS

_SIZE = QSize(860, 620)
_MIN_SIZE = QSize(620, 400)
_SEARCH_WIDTH = 260
_SCROLLED_BY = {Qt.Key.Key_Up: -1, Qt.Key.Key_Down: 1}  # lines


class ShortcutRow(QWidget):
    """What is done on the left, its keys on the right."""

    def __init__(self, shortcut: Shortcut, parent: QWidget) -> None:
        super().__init__(parent)
        self.shortcut = shortcut
        self.setAccessibleName(tr("{what}: {keys}", what=shortcut.words, keys=shortcut.spoken))
        words = QLabel(shortcut.words, self)
        words.setTextFormat(Qt.TextFormat.PlainText)
        words.setWordWrap(True)
        caps = KeyCaps(shortcut.ways, self)
        caps.setAccessibleName(shortcut.spoken)
        row = QHBoxLayout(self)
        row.setContentsMargins(0, SPACE_XS + 1, 0, SPACE_XS + 1)
        row.setSpacing(SPACE_M)
        row.addWidget(words, 1)
        row.addWidget(caps, 0, Qt.AlignmentFlag.AlignVCenter)

    def matches(self, words: Sequence[str]) -> bool:
        """Each of these, in lower case, stands in what it does, in its group, or in its keys."""
        text = f"{self.shortcut.words} {tr(self.shortcut.group.value)} {self.shortcut.spoken}".casefold()
        return all(word in text for word in words)


class ShortcutSheet(ReadingOrder, QDialog):
    """Shows what it is given; Esc ends the search first, then the dialog."""

    def __init__(self, shortcuts: Sequence[Shortcut], parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.setWindowTitle(tr("Keyboard shortcuts"))
        self.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
        self.setMinimumSize(_MIN_SIZE)
        resize_with_text(self, _SIZE)
        self.search = SearchField(self)
        self.nothing = QLabel(tr("No shortcut is called that. Try another word, or a key."), self)
        self.close_button = PushButton(tr("Close"), self)
        self.rows: list[ShortcutRow] = []
        self._groups: list[tuple[QWidget, list[ShortcutRow]]] = []
        self._scroll = QScrollArea(self)
        self._build(shortcuts)
        self._composition = Composition(self.search)
        self.search.textChanged.connect(self._filter)
        self.close_button.clicked.connect(self.accept)
        self.search.setFocus()

    def shown(self) -> list[Shortcut]:
        """Those that the search found."""
        return [row.shortcut for row in self.rows if row.isVisibleTo(self)]

    def _filter(self, query: str) -> None:
        words = query.casefold().split()
        for holder, rows in self._groups:
            for row in rows:
                row.setVisible(row.matches(words))
            holder.setVisible(any(not row.isHidden() for row in rows))
        self.nothing.setVisible(not self.shown())
        self._scroll.verticalScrollBar().setValue(0)

    def _build(self, shortcuts: Sequence[Shortcut]) -> None:
        title = QLabel(self.windowTitle(), self)
        set_role(title, "title")
        self.search.setPlaceholderText(tr("Search by name or key"))
        self.search.setAccessibleName(tr("Search shortcuts"))
        self.search.setToolTip(tr("Finds shortcuts by what they do and by their keys"))
        follow_text_size(self.search, lambda: self.search.setFixedWidth(scaled(_SEARCH_WIDTH)))
        self.close_button.setToolTip(tr("Close this sheet (Esc)"))
        self.close_button.setAutoDefault(False)
        self.nothing.setAlignment(Qt.AlignmentFlag.AlignHCenter)
        set_role(self.nothing, "muted")
        self.nothing.hide()
        heading = QHBoxLayout()
        heading.setContentsMargins(1, 0, SPACE_XL, 0)  # where the cards begin and end
        heading.addWidget(title, 1)
        heading.addWidget(self.search)
        column = QVBoxLayout(self)
        column.setContentsMargins(SPACE_XL - 1, SPACE_L, 0, SPACE_L)
        column.setSpacing(SPACE_L)
        column.addLayout(heading)
        column.addWidget(self._page(shortcuts), 1)
        end = QHBoxLayout()
        end.setContentsMargins(0, 0, SPACE_XL, 0)
        end.addWidget(self.close_button, 0, Qt.AlignmentFlag.AlignRight)
        column.addLayout(end)

    def _page(self, shortcuts: Sequence[Shortcut]) -> QScrollArea:
        page = QWidget(self)
        columns = [QVBoxLayout(), QVBoxLayout()]
        side_by_side = QHBoxLayout()
        side_by_side.setSpacing(SPACE_L)
        for column in columns:
            column.setSpacing(SPACE_L)
            side_by_side.addLayout(column, 1)
        groups = {group: [one for one in shortcuts if one.group is group] for group in ShortcutGroup}
        half, placed = len(shortcuts) / 2, 0
        for group, members in groups.items():
            if members:
                columns[0 if placed < half else 1].addWidget(self._holder(group, members, page))
                placed += len(members)
        for column in columns:
            column.addStretch(1)
        whole = QVBoxLayout(page)
        whole.setContentsMargins(0, 0, SPACE_M, 0)
        whole.addWidget(self.nothing)
        whole.addLayout(side_by_side, 1)
        self._scroll.setWidgetResizable(True)
        self._scroll.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        self._scroll.setAccessibleName(self.windowTitle())
        set_role(self._scroll, "focusable")
        self._scroll.setWidget(page)
        page.setAutoFillBackground(False)
        self._scroll.viewport().setAutoFillBackground(False)
        return self._scroll

    def _holder(self, group: ShortcutGroup, shortcuts: Sequence[Shortcut], parent: QWidget) -> QWidget:
        """The heading of a group above a card with its rows."""
        holder = QWidget(parent)
        title = QLabel(tr(group.value), holder)
        set_role(title, "section")
        card = QFrame(holder)
        set_role(card, "card")
        inside = QVBoxLayout(card)
        inside.setContentsMargins(SPACE_L, SPACE_S, SPACE_L, SPACE_S)
        inside.setSpacing(0)
        rows = [ShortcutRow(shortcut, card) for shortcut in shortcuts]
        for row in rows:
            inside.addWidget(row)
        below = QVBoxLayout(holder)
        below.setContentsMargins(0, 0, 0, 0)
        below.setSpacing(SPACE_S)
        below.addWidget(title)
        below.addWidget(card)
        self.rows += rows
        self._groups.append((holder, rows))
        return holder

    # Qt overrides

    def keyPressEvent(self, event: QKeyEvent) -> None:
        if event.key() in (Qt.Key.Key_Return, Qt.Key.Key_Enter):
            event.accept()  # a search is done while it is typed
        elif event.key() == Qt.Key.Key_Escape and self._composition.owns_keys:
            event.accept()  # it gives up a word
        elif event.key() == Qt.Key.Key_Escape and self.search.text():
            self.search.clear()
        elif (lines := _SCROLLED_BY.get(event.key())) is not None:
            bar = self._scroll.verticalScrollBar()
            bar.setValue(bar.value() + lines * bar.singleStep())
        else:
            super().keyPressEvent(event)
