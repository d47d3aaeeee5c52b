"""The window: conversations on the left, the chat or the model page in the middle, status at the bottom.

`_connect_signals` is the map of the program as a person sees it: what each widget asks for, who answers.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from PySide6.QtCore import QEvent, QObject, Qt, QUrl, Signal
from PySide6.QtGui import QCloseEvent, QKeySequence, QResizeEvent, QShortcut, QShowEvent
from PySide6.QtWidgets import QDialog, QMainWindow

from app.context_policy import ContextPolicy
from app.controller import ChatController
from app.language import tr
from app.settings import Theme as ThemeChoice
from app.transfer_session import ExportFormat
from app.ui import dialogs
from app.ui.actions import build_actions, build_menu
from app.ui.attachment_presenter import AttachmentPresenter
from app.ui.banner import BannerStack
from app.ui.chat_pane import ChatPane
from app.ui.chat_presenter import ChatPresenter
from app.ui.chat_settings_presenter import ChatSettingsPresenter
from app.ui.conversation_list import ConversationList
from app.ui.conversation_presenter import ConversationPresenter
from app.ui.drop_target import DropTarget
from app.ui.formulas import end_formulas
from app.ui.header import Header
from app.ui.icons import app_icon
from app.ui.kept_states_dialog import KeptStatesDialog
from app.ui.lexers import end_lexers
from app.ui.live_panel import LivePanel
from app.ui.message_actions import MessageAction
from app.ui.model_loader import ModelLoader
from app.ui.model_presenter import ModelPresenter
from app.ui.notice_center import NoticeCenter
from app.ui.notice_presenter import NoticePresenter
from app.ui.settings_presenter import SettingsPresenter
from app.ui.severity import Severity
from app.ui.shortcut_list import all_shortcuts
from app.ui.shortcut_sheet import ShortcutSheet
from app.ui.status_line import StatusLine
from app.ui.tab_order import ReadingOrder
from app.ui.text_size import USUAL_PERCENT, next_size
from app.ui.theme import theme_manager
from app.ui.window_layout import WindowLayout
from engine.notices import Notice


class MainWindow(ReadingOrder, QMainWindow):
    """Shows what the controller says and passes on what the person does.

    Signals: first_shown, once, when the window is on the screen; language_chosen, in which this one can't be
    shown: another has to take its place.
    """

    first_shown = Signal()
    language_chosen = Signal()

    def __init__(self, controller: ChatController) -> None:
        super().__init__()
        self.controller = controller
        self.closed_cleanly = True  # False after a close: a thread did not end in time
        self.language = controller.settings.language  # as it was chosen, so it may be SYSTEM
        self._watched_handle: QObject | None = None
        self._has_been_exposed = False
        self._closed = False
        theme_manager().apply(controller.settings.theme, text_percent=controller.settings.text_percent)
        self._build()
        self._connect_signals()
        self._restore()

    # What others ask the window for

    def show_notice(self, notice: Notice, *, severity: Severity | None = None, details: str = "") -> None:
        """Puts a notice over the chat, where it stays until it is dismissed."""
        self.banners.show_notice(notice, severity=severity, details=details)

    def show_fault(self, notice: Notice, details: str) -> None:
        """A mistake of the program itself: told, never fatal."""
        self.show_notice(notice, severity=Severity.ERROR, details=details)

    def show_models(self) -> None:
        self._pages.setCurrentWidget(self.loader)
        self.models.check_recent_models()
        self.models.look_for_models()
        self.loader.folder_button.setFocus()

    def show_chat(self) -> None:
        self._pages.setCurrentWidget(self.chat)
        self.chat.focus_composer()

    @property
    def showing_models(self) -> bool:
        return self._pages.currentWidget() is self.loader

    # One in place of another

    @property
    def has_ended(self) -> bool:
        """It was closed, or another one has taken its place."""
        return self._closed

    def keep_layout(self) -> None:
        """Where the next window stands, and how it is divided."""
        self.controller.update_settings(**self.places.as_settings())

    def leave(self) -> None:
        """Another window takes this one's place; the program goes on."""
        self._closed = True
        self.close_dialogs()
        self.panel.watch_changed.disconnect(self.controller.watch_engine)  # the other's is seen from now on
        self.conversation_presenter.keep_draft()
        self.closed_cleanly = self.models.shutdown()

    # Building

    def _build(self) -> None:
        self.setWindowTitle("Kestrel Chat")
        self.setWindowIcon(app_icon())
        self.conversations = ConversationList(self)
        self.header = Header(self)
        self.banners = BannerStack(self)
        self.chat = ChatPane(self)
        self.loader = ModelLoader(self)
        self.status = StatusLine(self)
        self.panel = LivePanel(self)
        self.presenter = ChatPresenter(
            self.controller,
            chat=self.chat,
            conversations=self.conversations,
            status=self.status,
            panel=self.panel,
            parent=self,
        )
        self.notices = NoticeCenter(self.controller, banners=self.banners, window=self)
        self.notice_presenter = NoticePresenter(
            self.controller, banners=self.banners, chat=self.chat, parent=self
        )
        self.places = WindowLayout(
            self,
            conversations=self.conversations,
            above=(self.header, self.banners),
            pages=(self.chat, self.loader),
            panel=self.panel,
            status=self.status,
        )
        self.dock, self.sides, self._pages = self.places.dock, self.places.sides, self.places.pages
        self.actions_ = build_actions(self)
        self.header.set_menu(build_menu(self.actions_, self))
        self.models = ModelPresenter(
            self.controller,
            loader=self.loader,
            header=self.header,
            chat=self.chat,
            status=self.status,
            panel=self.panel,
            unload=self.actions_.unload,
            parent=self,
        )
        self.attachments = AttachmentPresenter(
            self.controller, chat=self.chat, status=self.status, parent=self
        )
        self.conversation_presenter = ConversationPresenter(
            self.controller, chat=self.chat, conversations=self.conversations, parent=self
        )
        self.chat_settings = ChatSettingsPresenter(self.controller, chat=self.chat, parent=self)
        self.settings = SettingsPresenter(self.controller, window=self)
        self._drops = DropTarget(self, in_chat=lambda: not self.showing_models)
        self._back = QShortcut(QKeySequence(Qt.Key.Key_Escape), self.loader)
        self._back.setContext(Qt.ShortcutContext.WidgetWithChildrenShortcut)

    def _restore(self) -> None:
        settings = self.controller.settings
        self.places.restore(settings)
        self.panel.fold(settings.folded_sections)
        self.status.context.set_policy(settings.context_policy)
        self.actions_.themes[settings.theme].setChecked(True)
        self.models.show_settings()
        # Someone who never had a model starts where one is chosen; everyone else in the chat.
        page = self.chat if settings.recent_models or settings.last_model else self.loader
        self._pages.setCurrentWidget(page)
        if page is self.chat:  # Qt would give the focus to the first control, and Space begin a new chat
            self.chat.focus_composer()
        else:
            self.loader.folder_button.setFocus()
        self._on_page_changed()

    def _connect_signals(self) -> None:
        controller, chat, conversations = self.controller, self.chat, self.conversations

        # From the person to the controller
        chat.regenerate_requested.connect(controller.regenerate_answer)
        chat.fork_requested.connect(controller.fork_conversation)
        chat.version_requested.connect(controller.select_version)
        chat.delete_requested.connect(self._ask_to_delete_message)
        chat.stop_requested.connect(controller.stop_answer)
        chat.link_activated.connect(self._ask_to_open)
        chat.transcript.text_size_asked.connect(self._step_text_size)
        conversations.new_requested.connect(self._new_chat)
        conversations.open_requested.connect(self._open_conversation)
        conversations.rename_requested.connect(controller.rename_conversation)
        conversations.actions_.open_requested.connect(self._open_conversation)
        self.conversation_presenter.chat_wanted.connect(lambda: self._pages.setCurrentWidget(self.chat))
        self.loader.closed.connect(self.show_chat)
        self._drops.model_dropped.connect(self._on_model_dropped)
        self._drops.files_dropped.connect(self._on_files_dropped)
        self._pages.currentChanged.connect(self._on_page_changed)
        self._back.activated.connect(self._leave_models)
        self.header.model_clicked.connect(self._toggle_models)
        self.header.sidebar_toggled.connect(self._toggle_sidebar)
        self.header.live_toggled.connect(self._toggle_live)
        self.panel.open_requested.connect(self._open_conversation)
        self.panel.limits_requested.connect(self._show_kept_states)
        self.panel.look_requested.connect(controller.look_at_slots)
        self.panel.folded_changed.connect(lambda names: controller.update_settings(folded_sections=names))
        self.dock.closed.connect(self._on_dock_closed)
        self.panel.watch_changed.connect(controller.watch_engine)
        self.status.context.policy_chosen.connect(self._choose_policy)

        # From the controller to the person: the rest is the presenters'
        self.presenter.title_changed.connect(self._show_title)
        self.models.loaded.connect(self._leave_models)
        self.models.failed.connect(self._show_unless_on_card)
        self.models.notice_raised.connect(self.show_notice)
        self.notices.plan_asked.connect(self._show_plan)
        self.notices.settings_asked.connect(self.settings.open)
        self.notices.models_asked.connect(self.show_models)
        self.notices.limits_asked.connect(self._show_kept_states)
        self.settings.applied.connect(self._apply_settings)
        self.settings.limits_asked.connect(self._show_kept_states)
        self.settings.notice_raised.connect(self.show_notice)
        self.first_shown.connect(self._look_for_models)  # not before: nothing is to compete with drawing it
        self._connect_actions()

    def _connect_actions(self) -> None:
        actions = self.actions_
        actions.new_chat.triggered.connect(self._new_chat)
        actions.open_folder.triggered.connect(self._choose_folder)
        actions.open_file.triggered.connect(self._choose_file)
        actions.show_model.triggered.connect(self._toggle_models)
        actions.rename.triggered.connect(self._rename)
        actions.delete.triggered.connect(self._delete)
        actions.undo_delete.triggered.connect(self.controller.trash.undo)
        actions.search.triggered.connect(self._search)
        presenter = self.conversation_presenter
        actions.import_chats.triggered.connect(presenter.choose_imports)
        actions.export_markdown.triggered.connect(lambda: self._export(ExportFormat.MARKDOWN))
        actions.export_json.triggered.connect(lambda: self._export(ExportFormat.JSON))
        actions.export_all.triggered.connect(lambda: presenter.export_all(ExportFormat.JSON))
        actions.chat_settings.triggered.connect(self.chat_settings.open)
        actions.settings.triggered.connect(self.settings.open)
        actions.attach.triggered.connect(self._attach_files)
        actions.focus_message.triggered.connect(self.show_chat)
        for asked, action in actions.messages.items():
            action.triggered.connect(lambda _checked=False, asked=asked: self._ask_of_message(asked))
        actions.copy_answer.triggered.connect(self.chat.copy_last_answer)
        actions.toggle_live.triggered.connect(self._toggle_live)
        actions.toggle_sidebar.triggered.connect(self._toggle_sidebar)
        actions.past_notices.triggered.connect(self.notices.open_list)
        actions.kept_states.triggered.connect(self._show_kept_states)
        actions.show_menu.triggered.connect(self.header.menu_button.showMenu)
        actions.shortcuts.triggered.connect(self._show_shortcuts)
        for area, action in actions.panel_places.items():
            action.triggered.connect(lambda _checked=False, area=area: self._move_panel(area))
        actions.close.triggered.connect(self.close)
        actions.quit.triggered.connect(self.close)
        actions.about.triggered.connect(lambda: dialogs.show_about(self))
        actions.larger_text.triggered.connect(lambda: self._step_text_size(1))
        actions.smaller_text.triggered.connect(lambda: self._step_text_size(-1))
        actions.usual_text.triggered.connect(lambda: self._choose_text_size(USUAL_PERCENT))
        for choice, action in actions.themes.items():
            action.triggered.connect(lambda _checked=False, choice=choice: self._choose_theme(choice))

    # What the person does

    def _new_chat(self) -> None:
        self.controller.new_conversation()
        self.show_chat()

    def _open_conversation(self, conversation_id: str) -> None:
        self.controller.open_conversation(conversation_id)
        self._pages.setCurrentWidget(self.chat)

    def _choose_folder(self) -> None:
        self.show_models()
        self.loader.choose_folder()

    def _choose_file(self) -> None:
        self.show_models()
        self.loader.choose_file()

    def _on_page_changed(self) -> None:
        self.header.chip.set_quiet(self.showing_models)
        self._show_title()

    def _toggle_models(self) -> None:
        if self.showing_models:
            self._leave_models()
        else:
            self.show_models()

    def _show_plan(self, part: str) -> None:
        """Of the model that is loaded, or was to be: where its "context" and its "weights" are chosen."""
        self.show_models()
        path = self.controller.model_state.path or self.loader.card.path
        if path is not None:
            self.loader.show_plan_of(path, part)

    def _look_for_models(self) -> None:
        if self.showing_models:
            self.models.look_for_models()

    def _leave_models(self) -> None:
        if self.showing_models:
            self.show_chat()

    def _on_model_dropped(self, path: Path) -> None:
        self.show_models()
        self.loader.pick(path)

    def _on_files_dropped(self, paths: Sequence[Path]) -> None:
        self.attachments.attach(paths)
        self.chat.focus_composer()

    def _attach_files(self) -> None:
        self.show_chat()
        self.attachments.choose()

    def _rename(self) -> None:
        self.sides.show(self.conversations)  # where it is edited
        self.conversations.rename_current()

    def _delete(self) -> None:
        self.sides.show(self.conversations)  # where it can be undone
        self.conversations.delete_chosen()

    def _search(self) -> None:
        self.sides.show(self.conversations)
        self.conversations.focus_search()

    def _export(self, form: ExportFormat) -> None:
        self.conversation_presenter.export([one.id for one in self.conversations.chosen], form)

    def _toggle_sidebar(self) -> None:
        self.sides.toggle(self.conversations)

    def _toggle_live(self) -> None:
        self.sides.toggle(self.dock)
        self.controller.update_settings(live_panel=self.sides.is_wanted(self.dock))

    def _move_panel(self, area: Qt.DockWidgetArea) -> None:
        self.sides.show(self.dock)
        self.dock.move_to(area)
        self.places.fit()
        self.controller.update_settings(live_panel=True)

    def _on_dock_closed(self) -> None:
        if not self._closed:
            self.sides.hide(self.dock)
            self.controller.update_settings(live_panel=False)

    def _ask_of_message(self, action: MessageAction) -> None:
        if not self.showing_models:
            self.chat.ask(action)

    def _choose_policy(self, policy: ContextPolicy) -> None:
        self.status.context.set_policy(policy)
        self.controller.update_settings(context_policy=policy)

    def _choose_theme(self, choice: ThemeChoice) -> None:
        theme_manager().apply(choice)
        self.controller.update_settings(theme=choice)

    def _choose_text_size(self, percent: int) -> None:
        self.controller.update_settings(text_percent=percent)
        theme_manager().apply(theme_manager().choice, text_percent=percent)

    def _step_text_size(self, steps: int) -> None:
        self._choose_text_size(next_size(self.controller.settings.text_percent, steps))

    def _apply_settings(self) -> None:
        """What the window shows of them."""
        settings = self.controller.settings
        theme_manager().apply(settings.theme, text_percent=settings.text_percent)
        self.actions_.themes[settings.theme].setChecked(True)
        self.status.context.set_policy(settings.context_policy)
        self.models.show_settings()
        if settings.language is not self.language:
            self.language_chosen.emit()

    def _show_kept_states(self) -> None:
        controller = self.controller
        dialog = KeptStatesDialog(controller.settings, self)
        dialog.limited.connect(
            lambda memory, disk: controller.kept_states.limit(ram_bytes=memory, disk_bytes=disk)
        )
        dialog.removal_asked.connect(controller.kept_states.remove_all)
        controller.kept_states.measured.connect(dialog.show_kept)
        dialog.measure_asked.connect(controller.kept_states.measure)
        controller.slots_changed.connect(dialog.refresh)
        dialog.refresh()
        dialog.open()

    def _show_shortcuts(self) -> None:
        ShortcutSheet(all_shortcuts(self.actions_), self).open()

    def _ask_to_open(self, url: QUrl) -> None:
        dialogs.ask_to_open(self, url)

    def _ask_to_delete_message(self, message_id: str) -> None:
        dialogs.ask_to_delete_message(self, on_accept=lambda: self.controller.delete_message(message_id))

    # What the controller says

    def _show_unless_on_card(self, notice: Notice) -> None:
        if not self.showing_models:
            self.show_notice(notice, severity=Severity.ERROR)

    def _show_title(self) -> None:
        title = self.presenter.title
        self.header.title.setText(tr("Models") if self.showing_models else title or tr("New chat"))
        whole = title.replace("[*]", "[*][*]")  # one of them is Qt's own mark, of a file that was changed
        self.setWindowTitle(tr("{title} — Kestrel Chat", title=whole) if whole else "Kestrel Chat")

    # Qt overrides

    def showEvent(self, event: QShowEvent) -> None:
        super().showEvent(event)
        handle = self.windowHandle()
        if handle is not None and handle is not self._watched_handle:
            self._watched_handle = handle
            handle.installEventFilter(self)
            self._drops.watch(handle)

    def resizeEvent(self, event: QResizeEvent) -> None:
        self.places.fit()
        super().resizeEvent(event)

    def eventFilter(self, watched: QObject, event: QEvent) -> bool:
        if watched is self._watched_handle:
            exposed = event.type() == QEvent.Type.Expose and self.windowHandle().isExposed()
            if exposed and not self._has_been_exposed:
                self._has_been_exposed = True
                self.first_shown.emit()
        return super().eventFilter(watched, event)

    def closeEvent(self, event: QCloseEvent) -> None:
        if not self._closed:
            self._closed = True
            self.keep_layout()
            self.hide()  # what follows may take a moment
            self.close_dialogs()
            self.conversations.set_answering(None)
            self.conversation_presenter.keep_draft()
            self.closed_cleanly = self.controller.shutdown()
            self.closed_cleanly = self.models.shutdown() and self.closed_cleanly
            self.closed_cleanly = end_formulas() and self.closed_cleanly
            self.closed_cleanly = end_lexers() and self.closed_cleanly
        super().closeEvent(event)

    def close_dialogs(self) -> None:
        """A question that stands open would outlive the window."""
        for dialog in self.findChildren(QDialog):
            dialog.close()
