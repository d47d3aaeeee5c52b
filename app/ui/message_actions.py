"""What can be done with a message: the row of buttons beneath it, and its menu."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum, auto
from typing import Literal

from PySide6.QtCore import QSize, Qt, Signal
from PySide6.QtGui import QGuiApplication
from PySide6.QtWidgets import QHBoxLayout, QMenu, QWidget

from app.conversations import Message
from app.language import mark, tr
from app.ui.copy_button import CopyButton
from app.ui.icons import icon
from app.ui.shy_button import ShyButton
from app.ui.theme import current_theme
from app.ui.version_pager import VersionPager


class MessageAction(Enum):
    EDIT = auto()  # questions
    REGENERATE = auto()  # answers
    FORK = auto()  # answers
    OLDER = auto()
    NEWER = auto()
    QUOTE = auto()
    DELETE = auto()


Kind = Literal["message", "answer"]
# Icon, words and keys of what each kind of message offers.
_Offers = tuple[tuple[MessageAction, str, str, str], ...]
_OFFERS: dict[Kind, _Offers] = {
    "message": (
        (MessageAction.EDIT, "pencil", mark("Edit message"), "Ctrl+E"),
        (MessageAction.QUOTE, "quote", mark("Quote message"), "Ctrl+Shift+R"),
        (MessageAction.DELETE, "trash", mark("Delete message and what follows…"), ""),
    ),
    "answer": (
        (MessageAction.REGENERATE, "refresh", mark("Answer anew"), "Ctrl+R"),
        (MessageAction.FORK, "branch", mark("Branch into a new chat from here"), "Ctrl+Shift+B"),
        (MessageAction.QUOTE, "quote", mark("Quote answer"), "Ctrl+Shift+R"),
        (MessageAction.DELETE, "trash", mark("Delete answer and what follows…"), ""),
    ),
}
_COPIES: dict[Kind, str] = {"message": mark("Copy message"), "answer": mark("Copy answer as Markdown")}
_ALWAYS = (MessageAction.QUOTE,)  # also while an answer is being written


class MessageActions(QWidget):
    """Signals: asked(MessageAction). Copying it does by itself."""

    asked = Signal(MessageAction)

    def __init__(
        self, kind: Kind, text: Callable[[], str], parent: QWidget | None = None, *, shy_copy: bool
    ) -> None:
        super().__init__(parent)
        self._kind: Kind = kind
        self._text = text
        self._versions = (1, 1)
        self._busy = False
        self.pager = VersionPager(kind, self)
        self.buttons: dict[MessageAction, ShyButton] = {}
        for action, image, name, keys in _OFFERS[kind]:
            self.buttons[action] = ShyButton(image, tr(name), self, shy=True, keys=keys)
            self.buttons[action].clicked.connect(lambda _=False, action=action: self.asked.emit(action))
        self.copy = CopyButton(text, tr(_COPIES[kind]), self, shy=shy_copy)
        row = QHBoxLayout(self)
        row.setContentsMargins(0, 0, 0, 0)
        row.setSpacing(0)
        # What is always seen stands at the right end, so that nothing that is hidden leaves a hole.
        shy = [*self.buttons.values(), self.copy] if shy_copy else [*self.buttons.values()]
        for button in shy:
            row.addWidget(button)
        row.addWidget(self.pager)
        if not shy_copy:
            row.addWidget(self.copy)
        self.pager.paged.connect(self._on_paged)

    def show_message(self, message: Message) -> None:
        self._versions = (message.version, message.versions)
        self.pager.show_version(*self._versions)

    def offers(self, action: MessageAction) -> bool:
        """Whether it can be asked for now."""
        version, versions = self._versions
        if action is MessageAction.OLDER:
            return version > 1
        if action is MessageAction.NEWER:
            return version < versions
        return action in self.buttons and (not self._busy or action in _ALWAYS)

    def set_busy(self, busy: bool) -> None:
        """While an answer is being written nothing can be asked for but paging, copying and quoting."""
        self._busy = busy
        for action, button in self.buttons.items():
            button.setEnabled(not busy or action in _ALWAYS)

    def reveal(self, near: bool) -> None:
        for button in (*self.buttons.values(), self.copy):
            button.reveal(near)

    def apply_theme(self) -> None:
        self.pager.apply_theme()
        for button in (*self.buttons.values(), self.copy):
            button.apply_theme()

    def fill_menu(self, menu: QMenu) -> None:
        """Adds everything that can be done with the message."""
        color = current_theme().text_muted
        copy = menu.addAction(icon("copy", color), tr(_COPIES[self._kind]))
        copy.triggered.connect(lambda: QGuiApplication.clipboard().setText(self._text()))
        menu.addSeparator()
        for action, image, name, keys in _OFFERS[self._kind]:
            if action is MessageAction.DELETE:
                menu.addSeparator()
            entry = menu.addAction(icon(image, color), f"{tr(name)}\t{keys}" if keys else tr(name))
            entry.setEnabled(self.offers(action))
            entry.triggered.connect(lambda _=False, action=action: self.asked.emit(action))
        version, versions = self._versions
        if versions > 1:
            menu.addSeparator()
            for delta, name, keys in (
                (-1, tr("Earlier version"), "Alt+PgUp"),
                (1, tr("Later version"), "Alt+PgDown"),
            ):
                entry = menu.addAction(f"{name}\t{keys}")
                entry.setEnabled(1 <= version + delta <= versions)
                entry.triggered.connect(lambda _=False, delta=delta: self._on_paged(delta))

    def _on_paged(self, delta: int) -> None:
        self.asked.emit(MessageAction.NEWER if delta > 0 else MessageAction.OLDER)

    # Qt overrides

    def sizeHint(self) -> QSize:
        return QSize(super().sizeHint().width(), self.copy.height())


def message_menu(parent: QWidget) -> QMenu:
    """An empty menu that deletes itself when it closes."""
    menu = QMenu(parent)
    menu.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
    return menu
