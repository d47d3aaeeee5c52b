"""What tests do with the store of conversations."""

from __future__ import annotations

from app.conversations import ConversationStore


def delete(store: ConversationStore, conversation_id: str) -> None:
    """As a window does whose undo is gone at once."""
    store.marks.set_deleted([conversation_id])
    store.marks.delete([conversation_id])
