"""What a person can do about a notice with one click: by its code, which is stable. No widget."""

from __future__ import annotations

from enum import Enum

from app.language import mark


class NoticeAction(Enum):
    """The value is (words of the button, its tooltip), in English."""

    FREE_SLOTS = (
        mark("Free other chats"),
        mark("Takes other chats out of memory; what is kept of them on disk stays"),
    )
    SHORTER_CONTEXT = (
        mark("Shorter context…"),
        mark("Shows the model's card, where the context is chosen"),
    )
    LOWER_PRECISION = (
        mark("Fewer bits…"),
        mark("Shows the model's card, where the bits of its weights are chosen"),
    )
    SETTINGS = (mark("Settings…"), mark("Opens the settings"))
    MODELS = (mark("Choose a model…"), mark("Shows the page where a model is chosen"))
    RELOAD = (mark("Load again"), mark("Loads the model again, on the card if it will do"))
    LIMITS = (mark("Limits…"), mark("Limit or remove what is kept of conversations"))


_MEMORY = (NoticeAction.FREE_SLOTS, NoticeAction.SHORTER_CONTEXT, NoticeAction.LOWER_PRECISION)
_ACTIONS: dict[str, tuple[NoticeAction, ...]] = {
    "card-failed": (NoticeAction.SETTINGS,),
    "card-fallback": (NoticeAction.LOWER_PRECISION, NoticeAction.SHORTER_CONTEXT, NoticeAction.RELOAD),
    "card-lost-meanwhile": (NoticeAction.SETTINGS,),
    "compute-fault": (NoticeAction.RELOAD,),
    "context-full": (NoticeAction.SHORTER_CONTEXT, NoticeAction.SETTINGS),
    "disk-full": (NoticeAction.LIMITS, NoticeAction.SETTINGS),
    "no-model": (NoticeAction.MODELS,),
    "out-of-memory": _MEMORY,
    "state-fallback": (NoticeAction.FREE_SLOTS, NoticeAction.SHORTER_CONTEXT, NoticeAction.SETTINGS),
    "vram-budget-unused": (NoticeAction.MODELS,),
    "weights-not-widened": (NoticeAction.LOWER_PRECISION, NoticeAction.RELOAD),
    "weights-packed-to-fit": (NoticeAction.LOWER_PRECISION, NoticeAction.RELOAD),
    "window-on": (NoticeAction.LOWER_PRECISION, NoticeAction.SHORTER_CONTEXT),
}


def actions_of(code: str) -> tuple[NoticeAction, ...]:
    """In the order of the buttons; none where nothing helps but what the notice says."""
    return _ACTIONS.get(code, ())
