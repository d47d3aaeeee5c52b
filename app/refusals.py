"""Why a message can't be sent now. Each says what to do; the text stays in the composer."""

from __future__ import annotations

from app.model_session import ModelPhase, ModelState
from engine.notices import Notice

CLOSING = Notice("closing", "The program is closing.", "The message was not sent.")
EMPTY = Notice("empty-message", "There is nothing to send yet.", "Write a message first.")
ANSWERING = Notice(
    "answer-in-progress",
    "An answer is still being written here.",
    "Wait for its end or stop it, then try again.",
)


def refusal(
    text: str | None, model: ModelState, *, last_failure: Notice | None, busy: bool, closing: bool
) -> Notice | None:
    """None: `text` can be sent (a text of None: another answer is asked for, or there are files). `busy`: a
    message is on its way, or an answer in the same conversation.
    """
    if closing:
        return CLOSING
    if text is not None and not text.strip():
        return EMPTY
    if busy:
        return ANSWERING
    if model.phase is ModelPhase.LOADING:
        return Notice(
            "model-loading", f"{model.name} is still being loaded.", "Send the message when it is ready."
        )
    if model.phase is ModelPhase.NONE:
        return _no_model(last_failure)
    return None


def _no_model(last_failure: Notice | None) -> Notice:
    if last_failure is not None:
        return Notice(
            "no-model",
            f"No model is loaded: {last_failure.message}",
            "Choose another model, then send the message; its text stays here.",
        )
    return Notice(
        "no-model",
        "No model is loaded yet.",
        "Choose a model folder first, then send the message; its text stays here.",
    )
