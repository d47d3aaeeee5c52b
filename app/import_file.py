"""Which conversations a file holds that a person chose, whoever wrote it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from app.archive import ArchivedConversation
from app.export_json import conversation_from_json, is_own
from app.import_chatgpt import conversation_from_chatgpt, is_chatgpt
from app.import_json import ImportRefusedError, naming_fields, values_of
from app.import_lmstudio import conversation_from_lmstudio, is_lmstudio
from app.transfer_job import OnStep, unwatched
from engine.wording import phrase

MAX_CONVERSATIONS = 100_000
MAX_MESSAGES = 1_000_000  # of all of them
Reader = Callable[[Mapping[str, Any]], ArchivedConversation]
_FORMATS: tuple[tuple[Callable[[Mapping[str, Any]], bool], Reader], ...] = (
    (is_own, conversation_from_json),
    (is_chatgpt, conversation_from_chatgpt),
    (is_lmstudio, conversation_from_lmstudio),
)


def read_conversations(path: Path, on_step: OnStep = unwatched) -> list[ArchivedConversation]:
    """All conversations of a file that have messages; at least one. Raises ImportRefusedError and OSError: a
    file of which something can't be read is refused as a whole; and what `on_step` raises.
    """
    conversations: list[ArchivedConversation] = []
    num_messages = 0
    for number, value in enumerate(values_of(path), 1):
        on_step(number - 1)
        with naming_fields(path.name, phrase(f"conversation {number}")):
            conversation = _reader_of(value, path.name)(value)
        num_messages += len(conversation.messages)
        if number > MAX_CONVERSATIONS or num_messages > MAX_MESSAGES:
            raise ImportRefusedError(
                path.name,
                f"it has more than {MAX_CONVERSATIONS:,} conversations or {MAX_MESSAGES:,} messages",
                "Split it into smaller files.",
            )
        if conversation.messages:
            conversations.append(conversation)
    if not conversations:
        raise ImportRefusedError(path.name, "there is no message in it")
    return conversations


def _reader_of(value: Any, name: str) -> Reader:
    if isinstance(value, dict):
        for is_of_format, reader in _FORMATS:
            if is_of_format(value):
                return reader
    raise ImportRefusedError(name, "it holds no conversations of a known kind")
