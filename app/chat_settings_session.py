"""What is chosen for the conversation that is open, and for one that is not begun yet."""

from __future__ import annotations

from PySide6.QtCore import QObject, Signal, Slot

from app.chat_sampling import SamplingChoice
from app.chat_settings import ChatSettings
from app.conversation_records import Conversation
from app.conversation_session import ConversationSession
from app.model_session import ModelSession, ModelState
from app.settings_keeper import SettingsKeeper
from app.store_session import StoreSession
from engine.notices import Notice


class ChatSettingsSession(QObject):
    """A change shows at once and is on disk soon after; where that fails, it is told and taken back.

    A chat that is not begun draws as is remembered of the model there is, until something else is chosen for
    it. Its first message takes what is chosen then to disk.
    """

    changed = Signal(object)  # ChatSettings
    notice_raised = Signal(object)

    def __init__(
        self,
        store: StoreSession,
        settings: SettingsKeeper,
        *,
        conversations: ConversationSession,
        models: ModelSession,
        parent: QObject | None = None,
    ) -> None:
        super().__init__(parent)
        self._store = store
        self._settings = settings
        self._conversations = conversations
        self._models = models
        self._chosen: ChatSettings | None = None  # None: nothing, for a chat that is not begun
        conversations.opened.connect(self._on_opened)
        models.state_changed.connect(self._on_model_state)

    @property
    def current(self) -> ChatSettings:
        if self._chosen is not None:
            return self._chosen
        return ChatSettings(sampling=self.remembered)

    @property
    def remembered(self) -> SamplingChoice:
        """How new chats with the model that is loaded begin to draw."""
        summary = self._models.state.summary
        remembered = self._settings.current.model_sampling
        return remembered.get(summary.path, SamplingChoice()) if summary is not None else SamplingChoice()

    def change(self, settings: ChatSettings) -> None:
        before = self.current
        if settings == before:
            return
        conversation_id = self._conversations.current_id
        self._chosen = settings
        self.changed.emit(settings)
        if conversation_id is None:
            return

        def on_error(notice: Notice) -> None:
            self.notice_raised.emit(notice)
            if self._conversations.current_id == conversation_id and self._chosen == settings:
                self._chosen = before
                self.changed.emit(before)

        self._store.run(
            lambda store: store.change_settings(conversation_id, settings),
            lambda _: None,
            on_error,
            doing="saving what is chosen for the conversation",
        )

    @Slot(object)
    def _on_opened(self, conversation: Conversation | None) -> None:
        self._chosen = conversation.settings if conversation is not None else None
        self.changed.emit(self.current)

    @Slot(object)
    def _on_model_state(self, _state: ModelState) -> None:
        if self._chosen is None:
            self.changed.emit(self.current)
