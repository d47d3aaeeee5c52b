"""Every key that does something: those of the window's actions, and those that widgets take by themselves.

This is the list of record. A widget that takes a key has its entry here; tests compare it with the code.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum

from PySide6.QtGui import QAction, QKeySequence

from app.language import mark, tr

Keys = tuple[str, ...]  # pressed together, as they are shown: ("Ctrl", "N")


class ShortcutGroup(Enum):
    """In the order of the sheet; the value is its heading."""

    CHATS = mark("Chats")
    WRITING = mark("Writing a message")
    MESSAGES = mark("Messages and answers")
    LIST = mark("In the list of chats")
    SEARCH = mark("In search results")
    MODELS = mark("Models")
    WINDOW = mark("Window")
    ANYWHERE = mark("Everywhere")


@dataclass(frozen=True)
class Shortcut:
    """`ways` are key combinations that do the same; the first is the one to learn."""

    group: ShortcutGroup
    words: str
    ways: tuple[Keys, ...]

    @property
    def spoken(self) -> str:
        """For screen readers, and to be searched in."""
        return ", ".join("+".join(keys) for keys in self.ways)


_Group = ShortcutGroup

ACTION_GROUPS: Mapping[str, ShortcutGroup] = {
    "new_chat": _Group.CHATS,
    "search": _Group.CHATS,
    "rename": _Group.CHATS,
    "undo_delete": _Group.CHATS,
    "export_markdown": _Group.CHATS,
    "chat_settings": _Group.CHATS,
    "focus_message": _Group.WRITING,
    "attach": _Group.WRITING,
    "copy_answer": _Group.MESSAGES,
    "messages": _Group.MESSAGES,
    "open_folder": _Group.MODELS,
    "open_file": _Group.MODELS,
    "show_model": _Group.MODELS,
    "toggle_sidebar": _Group.WINDOW,
    "toggle_live": _Group.WINDOW,
    "past_notices": _Group.WINDOW,
    "settings": _Group.WINDOW,
    "larger_text": _Group.WINDOW,
    "smaller_text": _Group.WINDOW,
    "usual_text": _Group.WINDOW,
    "show_menu": _Group.WINDOW,
    "shortcuts": _Group.WINDOW,
    "close": _Group.WINDOW,
    "quit": _Group.WINDOW,
}
"""By the names of `WindowActions`; an action without keys has no place here."""

# What widgets do with keys themselves. Keys as QKeySequence writes them.
_WIDGET_KEYS: tuple[tuple[ShortcutGroup, str, tuple[str, ...]], ...] = (
    (_Group.WRITING, mark("Send the message"), ("Enter",)),
    (_Group.WRITING, mark("Begin a new line"), ("Shift+Enter",)),
    (_Group.WRITING, mark("Stop the answer, or give up an edit"), ("Esc",)),
    (_Group.MESSAGES, mark("Jump to the latest message"), ("Ctrl+End",)),
    (_Group.MESSAGES, mark("Copy what is selected"), ("Ctrl+C",)),
    (_Group.MESSAGES, mark("Select all of a part"), ("Ctrl+A",)),
    (_Group.LIST, mark("Go through the chats"), ("Up", "Down")),
    (_Group.LIST, mark("Open a chat"), ("Enter",)),
    (_Group.LIST, mark("Choose several"), ("Shift+Up", "Shift+Down")),
    (_Group.LIST, mark("Choose one more, or one less"), ("Ctrl+Space",)),
    (_Group.LIST, mark("Choose all"), ("Ctrl+A",)),
    (_Group.LIST, mark("Delete what is chosen"), ("Del",)),
    (_Group.SEARCH, mark("From the field to what was found"), ("Down",)),
    (_Group.SEARCH, mark("Go through what was found"), ("Up", "Down")),
    (_Group.SEARCH, mark("Show it in its chat"), ("Enter",)),
    (_Group.SEARCH, mark("End the search"), ("Esc",)),
    (_Group.MODELS, mark("Back to the chat"), ("Esc",)),
    (_Group.ANYWHERE, mark("To the next control, or to the one before"), ("Tab", "Shift+Tab")),
    (_Group.ANYWHERE, mark("Press what has the focus"), ("Space", "Enter")),
    (_Group.ANYWHERE, mark("Menu of what has the focus"), ("Menu", "Shift+F10")),
    (_Group.ANYWHERE, mark("Close a dialog or a menu"), ("Esc",)),
)
_ARROWS = {"Up": "↑", "Down": "↓", "Left": "←", "Right": "→"}


def all_shortcuts(actions: object) -> tuple[Shortcut, ...]:
    """Of the window's `WindowActions` and of its widgets, group by group."""
    listed = [
        Shortcut(group, action.text().replace("&&", "&").rstrip("…"), ways)
        for name, group in ACTION_GROUPS.items()
        for action in _actions_of(getattr(actions, name))
        if (ways := _ways(action))
    ]
    listed += [
        Shortcut(group, tr(words), tuple(shown_keys(keys) for keys in ways))
        for group, words, ways in _WIDGET_KEYS
    ]
    order = list(ShortcutGroup)
    return tuple(sorted(listed, key=lambda each: order.index(each.group)))  # stable: else as written


def shown_keys(portable: str) -> Keys:
    """Of one combination as QKeySequence writes it: "Ctrl++" is ("Ctrl", "+")."""
    parts = [part for part in portable.split("+") if part]
    if portable.endswith("+"):
        parts.append("+")
    return tuple(_ARROWS.get(part, part) for part in parts)


def _actions_of(made: QAction | Mapping[object, QAction]) -> Iterable[QAction]:
    return made.values() if isinstance(made, Mapping) else (made,)


def _ways(action: QAction) -> tuple[Keys, ...]:
    texts = (keys.toString(QKeySequence.SequenceFormat.PortableText) for keys in action.shortcuts())
    return tuple(dict.fromkeys(shown_keys(text) for text in texts if text))
