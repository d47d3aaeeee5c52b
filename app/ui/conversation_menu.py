"""What can be done with the conversations that are chosen, as a menu."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from PySide6.QtCore import QObject, Qt, Signal
from PySide6.QtWidgets import QInputDialog, QLineEdit, QMenu, QWidget

from app.conversation_marks import MAX_TAG_LENGTH, tag_name
from app.conversations import ConversationSummary
from app.language import tr
from app.transfer_session import ExportFormat
from app.ui.icons import icon
from app.ui.text_size import scaled
from app.ui.theme import current_theme

_TAG_DIALOG_WIDTH = 340  # pixels; a tag of 40 characters


class ConversationActions(QObject):
    """What a person asks for of conversations. Everything but opening and renaming is for several, too."""

    open_requested = Signal(str)  # id
    rename_requested = Signal()  # of the one that is chosen, in its place
    pin_requested = Signal(list, bool)  # ids
    tag_requested = Signal(list, str, bool)  # ids, name; False: take it away
    export_requested = Signal(list, object)  # ids, ExportFormat
    delete_requested = Signal(list)  # ids


def conversation_menu(
    parent: QWidget,
    actions: ConversationActions,
    chosen: Sequence[ConversationSummary],
    *,
    tags: Collection[str],
) -> QMenu:
    """`tags`: all that there are. It deletes itself when it closes."""
    theme = current_theme()
    ids = [one.id for one in chosen]
    menu = QMenu(parent)
    menu.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
    if len(chosen) == 1:
        opened = menu.addAction(icon("chat", theme.text_muted), tr("Open"))
        opened.triggered.connect(lambda: actions.open_requested.emit(ids[0]))
        rename = menu.addAction(icon("pencil", theme.text_muted), f"{tr('Rename')}\tF2")
        rename.triggered.connect(actions.rename_requested)
    pins = not all(one.pinned for one in chosen)
    pin = menu.addAction(icon("pin", theme.text_muted), tr("Pin to the top") if pins else tr("Unpin"))
    pin.triggered.connect(lambda: actions.pin_requested.emit(ids, pins))
    menu.addMenu(_tag_menu(menu, actions, chosen, tags))
    export = menu.addMenu(icon("export", theme.text_muted), tr("Export"))
    for form, name in ((ExportFormat.MARKDOWN, tr("As Markdown…")), (ExportFormat.JSON, tr("As JSON…"))):
        export.addAction(name).triggered.connect(
            lambda _checked=False, form=form: actions.export_requested.emit(ids, form)
        )
    menu.addSeparator()
    words = tr("Delete {count:,} conversations", count=len(chosen)) if len(chosen) > 1 else tr("Delete")
    delete = menu.addAction(icon("trash", theme.danger), f"{words}\tDel")
    delete.triggered.connect(lambda: actions.delete_requested.emit(ids))
    return menu


def _tag_menu(
    parent: QMenu, actions: ConversationActions, chosen: Sequence[ConversationSummary], tags: Collection[str]
) -> QMenu:
    ids = [one.id for one in chosen]
    menu = QMenu(tr("Tags"), parent)
    menu.setIcon(icon("tag", current_theme().text_muted))
    for tag in tags:
        action = menu.addAction(tag.replace("&", "&&"))
        action.setCheckable(True)
        action.setChecked(all(tag in one.tags for one in chosen))
        action.triggered.connect(lambda on, tag=tag: actions.tag_requested.emit(ids, tag, on))
    if tags:
        menu.addSeparator()
    menu.addAction(tr("New tag…")).triggered.connect(
        lambda: ask_for_tag(parent.parentWidget(), lambda name: actions.tag_requested.emit(ids, name, True))
    )
    return menu


def ask_for_tag(parent: QWidget | None, then: Callable[[str], None]) -> QInputDialog:
    """Asks for the name of a tag, without blocking."""
    dialog = QInputDialog(parent)
    dialog.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
    dialog.setWindowTitle(tr("New tag"))
    dialog.setLabelText(tr("Name of the tag"))
    dialog.setOkButtonText(tr("Add"))
    dialog.resize(scaled(_TAG_DIALOG_WIDTH), dialog.sizeHint().height())
    field = dialog.findChild(QLineEdit)
    if field is not None:
        field.setMaxLength(MAX_TAG_LENGTH)
        field.setAccessibleName(tr("Name of the tag"))
    dialog.textValueSelected.connect(lambda text: then(tag_name(text)) if tag_name(text) else None)
    dialog.open()
    return dialog
