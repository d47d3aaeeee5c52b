"""Everything the window can be told by menu or keyboard, with names and shortcuts in one place."""

from __future__ import annotations

from dataclasses import dataclass

from PySide6.QtCore import Qt
from PySide6.QtGui import QAction, QActionGroup, QKeySequence
from PySide6.QtWidgets import QMainWindow, QMenu

from app.language import mark, tr
from app.settings import Theme as ThemeChoice
from app.ui.message_actions import MessageAction

Key = QKeySequence.StandardKey
_MESSAGE_ACTIONS = {  # with the message that has the focus, else the last one
    MessageAction.EDIT: (mark("Edit the last message"), "Ctrl+E"),
    MessageAction.REGENERATE: (mark("Answer anew"), "Ctrl+R"),
    MessageAction.FORK: (mark("Branch into a new chat"), "Ctrl+Shift+B"),
    MessageAction.QUOTE: (mark("Quote in the message"), "Ctrl+Shift+R"),
    MessageAction.OLDER: (mark("Earlier version"), "Alt+PgUp"),
    MessageAction.NEWER: (mark("Later version"), "Alt+PgDown"),
    MessageAction.DELETE: (mark("Delete the last message…"), ""),
}
_THEME_NAMES = {
    ThemeChoice.SYSTEM: mark("As the system"),
    ThemeChoice.LIGHT: mark("Light"),
    ThemeChoice.DARK: mark("Dark"),
}


_PANEL_PLACES = {  # as dragging it does
    Qt.DockWidgetArea.LeftDockWidgetArea: mark("On the left"),
    Qt.DockWidgetArea.RightDockWidgetArea: mark("On the right"),
    Qt.DockWidgetArea.BottomDockWidgetArea: mark("Below the chat"),
}


@dataclass(frozen=True)
class WindowActions:
    """The window connects them. All belong to the window, so their shortcuts work without the menu."""

    new_chat: QAction
    open_folder: QAction
    open_file: QAction
    show_model: QAction
    unload: QAction
    rename: QAction
    delete: QAction
    undo_delete: QAction
    search: QAction
    import_chats: QAction
    export_markdown: QAction
    export_json: QAction
    export_all: QAction
    messages: dict[MessageAction, QAction]
    copy_answer: QAction
    attach: QAction
    chat_settings: QAction
    settings: QAction
    focus_message: QAction
    toggle_live: QAction
    toggle_sidebar: QAction
    kept_states: QAction
    past_notices: QAction
    show_menu: QAction
    shortcuts: QAction
    close: QAction
    quit: QAction
    about: QAction
    themes: dict[ThemeChoice, QAction]
    larger_text: QAction
    smaller_text: QAction
    usual_text: QAction
    panel_places: dict[Qt.DockWidgetArea, QAction]


def build_actions(window: QMainWindow) -> WindowActions:
    """Makes the actions and adds them to the window."""

    def action(text: str, *keys: str | QKeySequence.StandardKey) -> QAction:
        made = QAction(text, window)
        made.setShortcuts([QKeySequence(key) for key in keys if key])
        window.addAction(made)
        return made

    group = QActionGroup(window)
    themes = {}
    for choice, name in _THEME_NAMES.items():
        themes[choice] = QAction(tr(name), group)
        themes[choice].setCheckable(True)
    return WindowActions(
        new_chat=action(tr("New chat"), Key.New),
        open_folder=action(tr("Open a model folder…"), Key.Open),
        open_file=action(tr("Open a GGUF file…"), "Ctrl+Shift+O"),
        show_model=action(tr("Model"), "Ctrl+Shift+M"),
        unload=action(tr("Unload the model")),
        rename=action(tr("Rename conversation"), "F2"),
        # No shortcut: Delete belongs to whatever has the focus, and the list handles it itself.
        delete=action(tr("Delete conversation")),
        undo_delete=action(tr("Bring deleted conversations back"), "Ctrl+Shift+Z"),
        search=action(tr("Search all chats"), Key.Find, "Ctrl+Shift+F"),
        import_chats=action(tr("Import conversations…")),
        export_markdown=action(tr("Export as Markdown…"), "Ctrl+Shift+E"),
        export_json=action(tr("Export as JSON…")),
        export_all=action(tr("Export all conversations…")),
        messages={one: action(tr(name), keys) for one, (name, keys) in _MESSAGE_ACTIONS.items()},
        copy_answer=action(tr("Copy the last answer"), "Ctrl+Shift+C"),
        attach=action(tr("Attach files…"), "Ctrl+Shift+A"),
        chat_settings=action(tr("Instructions and sampling…"), "Ctrl+Shift+P"),
        settings=action(tr("Settings…"), "Ctrl+,"),
        focus_message=action(tr("Write a message"), "Ctrl+L"),
        toggle_live=action(tr("Show what the engine keeps"), "Ctrl+J"),
        toggle_sidebar=action(tr("Show conversations"), "Ctrl+B"),
        kept_states=action(tr("Limits of what is kept…")),
        past_notices=action(tr("Past notices…"), "Ctrl+Shift+N"),
        show_menu=action(tr("Menu"), "F10"),
        shortcuts=action(tr("Keyboard shortcuts…"), "Ctrl+/", "F1"),
        close=action(tr("Close window"), "Ctrl+W"),
        quit=action(tr("Quit"), "Ctrl+Q"),
        about=action(tr("About Kestrel Chat")),
        themes=themes,
        larger_text=action(tr("Larger text"), "Ctrl++", "Ctrl+="),
        smaller_text=action(tr("Smaller text"), "Ctrl+-"),
        usual_text=action(tr("Usual size of text"), "Ctrl+0"),
        panel_places={area: action(tr(name)) for area, name in _PANEL_PLACES.items()},
    )


def build_menu(actions: WindowActions, window: QMainWindow) -> QMenu:
    """The menu behind the button in the header."""
    menu = QMenu(window)
    menu.addActions([actions.new_chat, actions.search, actions.rename, actions.delete, actions.undo_delete])
    menu.addAction(actions.chat_settings)
    files_menu = menu.addMenu(tr("Import and export"))
    files_menu.addActions([actions.import_chats, actions.export_markdown, actions.export_json])
    files_menu.addAction(actions.export_all)
    message_menu = menu.addMenu(tr("Message"))
    message_menu.addActions([*actions.messages.values(), actions.copy_answer, actions.attach])
    menu.addSeparator()
    menu.addActions([actions.show_model, actions.open_folder, actions.open_file, actions.unload])
    menu.addSeparator()
    menu.addActions([actions.toggle_sidebar, actions.toggle_live, actions.focus_message])
    panel_menu = menu.addMenu(tr("Place of the engine's panel"))
    panel_menu.addActions(list(actions.panel_places.values()))
    menu.addActions([actions.past_notices, actions.kept_states, actions.settings])
    theme_menu = menu.addMenu(tr("Theme"))
    theme_menu.addActions(list(actions.themes.values()))
    text_menu = menu.addMenu(tr("Size of text"))
    text_menu.addActions([actions.larger_text, actions.smaller_text, actions.usual_text])
    menu.addSeparator()
    menu.addActions([actions.shortcuts, actions.about, actions.quit])
    return menu
