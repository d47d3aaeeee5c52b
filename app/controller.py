"""The verbs of the program. Joins the store, the engine's worker and the settings; knows no widget.

Nothing here blocks: the store, inspection and the engine each have their own thread, and every signal is emitted
on the GUI thread.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto
from pathlib import Path
from typing import TYPE_CHECKING, Any

from PySide6.QtCore import QObject, Signal

from app.paths import AppPaths
from app.settings import Settings
from engine.progress import LoadProgress

if TYPE_CHECKING:
    from engine.engine import ModelSummary


class ModelPhase(Enum):
    NONE = auto()
    LOADING = auto()
    READY = auto()


@dataclass(frozen=True)
class ModelState:
    """Which model there is. While a second model loads, `phase` is LOADING, `path`, `name` and `progress` are those
    of the one that loads, and `summary` still describes the one that goes on working.
    """

    phase: ModelPhase = ModelPhase.NONE
    path: Path | None = None
    name: str = ""
    progress: LoadProgress | None = None  # None while LOADING: it waits for the engine's thread
    summary: ModelSummary | None = None


class ChatController(QObject):
    """What the widgets see."""

    conversations_changed = Signal(list)  # list[ConversationSummary], newest first
    conversation_opened = Signal(
        object
    )  # Conversation | None; None: a new, empty chat with no row on disk yet
    message_added = Signal(str, object)  # conversation id, Message: already on disk
    answer_started = Signal(str, object)  # conversation id, Message: WRITING, empty
    answer_extended = Signal(str, str, object)  # conversation id, message id, AnswerDelta
    answer_finished = Signal(str, object)  # conversation id, Message
    answering_changed = Signal(bool)  # an answer is being written now, in any conversation
    model_state_changed = Signal(object)  # ModelState
    load_failed = Signal(object, object)  # Path, Notice; model_state is already that of before. Not for a cancel
    model_inspected = Signal(object)  # ModelReport
    send_accepted = Signal(str)  # the text; only now may the composer be cleared
    send_rejected = Signal(str, object)  # the text, Notice: the composer keeps it
    notice_raised = Signal(object)  # Notice
    recent_models_changed = Signal(list)  # list[Path], newest first

    def __init__(self, paths: AppPaths, parent: QObject | None = None) -> None:
        super().__init__(parent)
        raise NotImplementedError

    @property
    def model_state(self) -> ModelState:
        raise NotImplementedError

    @property
    def answering(self) -> bool:
        raise NotImplementedError

    @property
    def current_conversation_id(self) -> str | None:
        raise NotImplementedError

    @property
    def settings(self) -> Settings:
        raise NotImplementedError

    def start(self, model_path: Path | None = None) -> None:
        """Open the store, list the conversations, open the last one, and load `model_path` or else the last model."""
        raise NotImplementedError

    def shutdown(self) -> bool:
        """Stop what runs and leave everything on disk. False: a thread did not end within its time, so the process
        must end by `os._exit` once nothing is left to do.
        """
        raise NotImplementedError

    def new_conversation(self) -> None:
        """Show an empty chat; its row on disk is made together with its first message."""
        raise NotImplementedError

    def open_conversation(self, conversation_id: str) -> None:
        raise NotImplementedError

    def rename_conversation(self, conversation_id: str, title: str) -> None:
        raise NotImplementedError

    def delete_conversation(self, conversation_id: str) -> None:
        raise NotImplementedError

    def send_message(self, text: str) -> None:
        """Ends in exactly one of `send_accepted` and `send_rejected`.

        In a new chat the order is: send_accepted, conversation_opened (the new row, no messages yet), message_added,
        answer_started. In an existing one conversation_opened is left out.
        """
        raise NotImplementedError

    def stop_answer(self) -> None:
        raise NotImplementedError

    def inspect_model(self, path: Path) -> None:
        """Ends in `model_inspected`, unless another path was asked for meanwhile."""
        raise NotImplementedError

    def load_model(self, path: Path) -> None:
        raise NotImplementedError

    def cancel_load(self) -> None:
        raise NotImplementedError

    def unload_model(self) -> None:
        raise NotImplementedError

    def update_settings(self, **changes: Any) -> None:
        """Change fields of `settings` by name; the file follows on the store's thread."""
        raise NotImplementedError
