"""What the controller says of conversations and answers, shown: in the list, the chat, the meter, the panel.

`_connect_signals` is the map of it. Nothing here asks the controller for anything.
"""

from __future__ import annotations

from collections.abc import Sequence

from PySide6.QtCore import QObject, Signal

from app.controller import Answering, ChatController, SlotTable
from app.conversations import Conversation, ConversationSummary, Message, MessageStatus
from app.language import tr
from app.ui.announcements import announce
from app.ui.chat_pane import ChatPane
from app.ui.conversation_list import ConversationList
from app.ui.conversation_model import shown_title
from app.ui.live_panel import LivePanel
from app.ui.status_line import StatusLine
from app.worker import AnswerDelta
from engine.generation import PrefillStats


class ChatPresenter(QObject):
    """Signals: title_changed(), when `title` may have."""

    title_changed = Signal()

    def __init__(
        self,
        controller: ChatController,
        *,
        chat: ChatPane,
        conversations: ConversationList,
        status: StatusLine,
        panel: LivePanel,
        parent: QObject | None = None,
    ) -> None:
        super().__init__(parent)
        self._controller = controller
        self._chat = chat
        self._conversations = conversations
        self._status = status
        self._panel = panel
        self._summaries: dict[str, ConversationSummary] = {}
        self._writing_id = ""  # the answer that is being written, or was last
        self._writing_tokens = 0  # in its context
        self._waited: set[str] = set()  # answers that were added where they belong before their turn came
        self._connect_signals()

    def take_over(self, other: ChatPresenter) -> None:
        """What it knows of the answers that wait or are being written."""
        self._summaries = dict(other._summaries)
        self._writing_id, self._writing_tokens = other._writing_id, other._writing_tokens
        self._waited = set(other._waited)

    @property
    def title(self) -> str:
        """Of the conversation that is open; "" for a new chat."""
        current = self._summaries.get(self._controller.current_conversation_id or "")
        return shown_title(current) if current is not None else ""

    def _connect_signals(self) -> None:
        controller = self._controller
        controller.conversations_changed.connect(self._on_conversations)
        controller.conversation_opened.connect(self._on_opened)
        controller.branch_shown.connect(self._on_branch_shown)
        controller.message_added.connect(self._on_message_added)
        controller.answer_waiting.connect(self._on_answer_waiting)
        controller.answer_started.connect(self._on_answer_started)
        controller.messages_left_out.connect(self._on_left_out)
        controller.answer_prefilled.connect(self._on_prefilled)
        controller.answer_extended.connect(self._on_answer_extended)
        controller.answer_finished.connect(self._on_answer_finished)
        controller.answers_changed.connect(self._show_answering)
        controller.slots_changed.connect(self._on_slots)
        controller.engine_watched.connect(self._on_slots)

    def _is_open(self, conversation_id: str) -> bool:
        return conversation_id == self._controller.current_conversation_id

    def _is_seen(self, conversation_id: str) -> bool:
        """The answer that is being written is on the branch that is shown of the open conversation."""
        return self._is_open(conversation_id) and self._chat.shows(self._writing_id)

    # Conversations

    def _on_conversations(self, summaries: list[ConversationSummary]) -> None:
        self._summaries = {summary.id: summary for summary in summaries}
        self._conversations.set_summaries(summaries)
        self._show_titles()

    def _on_opened(self, conversation: Conversation | None) -> None:
        self._chat.show_conversation(conversation)
        if conversation is not None:
            self._summaries.setdefault(conversation.summary.id, conversation.summary)
        self._conversations.set_current(conversation.summary.id if conversation is not None else None)
        self._show_used(conversation.messages if conversation is not None else ())
        self._show_titles()
        self._show_answering(self._controller.answers)

    def _on_branch_shown(self, conversation: Conversation) -> None:
        self._chat.show_branch(conversation)
        self._show_used(conversation.messages)

    def _show_titles(self) -> None:
        self._panel.set_titles({key: shown_title(summary) for key, summary in self._summaries.items()})
        self.title_changed.emit()

    # Messages and answers

    def _on_message_added(self, conversation_id: str, message: Message) -> None:
        if self._is_open(conversation_id):
            self._chat.add_message(message)

    def _on_answer_waiting(self, conversation_id: str, message: Message) -> None:
        self._waited.add(message.id)
        self._on_message_added(conversation_id, message)

    def _on_answer_started(self, conversation_id: str, message: Message) -> None:
        self._writing_id, self._writing_tokens = message.id, 0
        self._panel.begin_answer(conversation_id)
        if message.id in self._waited:  # meanwhile another branch may be shown, where it has no place
            self._waited.discard(message.id)
            self._chat.begin_answer(message)
        else:
            self._on_message_added(conversation_id, message)

    def _on_left_out(self, conversation_id: str, count: int) -> None:
        if self._is_seen(conversation_id):
            self._chat.show_left_out(count)

    def _on_prefilled(self, conversation_id: str, stats: PrefillStats) -> None:
        self._panel.show_prefill(stats)
        self._count(conversation_id, stats.tokens)

    def _on_answer_extended(self, conversation_id: str, message_id: str, delta: AnswerDelta) -> None:
        self._panel.count_tokens(delta.num_tokens)
        self._count(conversation_id, delta.num_tokens)
        if self._is_open(conversation_id):
            self._chat.extend_answer(message_id, delta)

    def _on_answer_finished(self, conversation_id: str, message: Message) -> None:
        self._waited.discard(message.id)
        if self._is_open(conversation_id) and self._chat.shows(message.id):
            self._chat.finish_answer(message)
            if message.stats is not None and message.stats.prompt_tokens:
                self._show_context(message.stats.context_tokens)
        self._status.set_last_answer(message.stats)
        announce(self._chat, self._ending(conversation_id, message))

    def _ending(self, conversation_id: str, message: Message) -> str:
        """For screen readers. Why one failed is told by a notice."""
        if message.status is MessageStatus.FAILED:
            return ""
        if self._is_open(conversation_id):
            stopped = message.status is MessageStatus.STOPPED
            return tr("The answer was stopped.") if stopped else tr("The answer is complete.")
        summary = self._summaries.get(conversation_id)
        return tr("A new answer is in “{title}”.", title=shown_title(summary)) if summary is not None else ""

    def _show_answering(self, answers: Answering) -> None:
        self._conversations.set_answering(answers.writing, answers.waiting)
        current = self._controller.current_conversation_id
        here = current is not None and current in (answers.writing, *answers.waiting)
        self._chat.set_answering(here)
        if answers.writing is None:
            self._panel.end_answer()

    def _on_slots(self, table: SlotTable) -> None:
        self._panel.set_slots(table)

    # The context

    def _count(self, conversation_id: str, num_tokens: int) -> None:
        self._writing_tokens += num_tokens
        if self._is_seen(conversation_id):
            self._show_context(self._writing_tokens)

    def _show_context(self, tokens: int) -> None:
        self._status.set_context_used(tokens)
        self._panel.set_context_used(tokens)

    def _show_used(self, messages: Sequence[Message]) -> None:
        """Tokens of the last turn of what is shown; of the answer that is being written, if it is there."""
        writing = self._controller.answers.writing
        if writing is not None and self._is_seen(writing) and self._writing_tokens:
            self._show_context(self._writing_tokens)
            return
        read = (one.stats for one in reversed(messages) if one.stats is not None and one.stats.prompt_tokens)
        stats = next(read, None)
        self._show_context(stats.context_tokens if stats is not None else 0)
