"""From the plan of a load to the words of its card. Pure functions; no widget."""

from __future__ import annotations

from typing import TYPE_CHECKING

from app.language import mark, tr
from app.ui.share_bar import Share
from app.ui.status_line import STANDING_CODES
from app.ui.text_format import format_bytes
from engine.config import KvChoice, WeightsChoice
from engine.notices import Notice
from engine.wording import format_tokens, phrase

if TYPE_CHECKING:
    from app.making_room import RoomPlan
    from engine.load_plan import LoadPlan

WEIGHTS: dict[WeightsChoice, str] = {
    "q4": mark("4 bits"),
    "q8": mark("8 bits"),
    "native": mark("As stored"),
    "auto": mark("Automatic"),
}
"""In English, in the order of their slider: the smallest first, and then what leaves it to the program."""

KV: dict[KvChoice, str] = {"auto": mark("8 bits (usual)"), "native": mark("32 bits (exact)")}
_FORMS = {
    "q4": phrase("4-bit weights"),
    "q8": phrase("8-bit weights"),
    "native": phrase("weights as stored"),
}
_LEAST_STOP = 512  # tokens


def context_stops(longest: int) -> tuple[int, ...]:
    """Lengths that a slider stops at: steps that each feel alike, and the longest."""
    stops = []
    size = _LEAST_STOP
    while size < longest:
        stops.append(size)
        if size * 3 // 2 < longest:
            stops.append(size * 3 // 2)
        size *= 2
    return (*stops, longest)


def nearest_stop(stops: tuple[int, ...], context: int) -> int:
    """Which of them it is, or comes closest to."""
    return min(range(len(stops)), key=lambda index: abs(stops[index] - context))


def verdict(plan: LoadPlan, card: str) -> tuple[str, Notice]:
    """What a load would do in one sentence, and what to do about it: "error", "warning" or "chip"; in
    English, as all notices. card: its name.
    """
    form, chats = _FORMS[plan.weights], format_tokens(plan.context)
    if not plan.is_loadable:
        assert plan.problem is not None
        return "error", plan.problem
    if plan.device == "cuda":
        return _on_card(plan, card, form, chats)
    problem = plan.problem
    if problem is not None and problem.code not in STANDING_CODES:
        return "warning", problem
    if plan.tokens < plan.context:
        return "warning", Notice(
            "plan-memory-short",
            f"Runs on the processor with {form}, but memory is short: a chat of {format_tokens(plan.tokens)} "
            f"fits, not one of {chats}.",
            "Choose a shorter context or fewer bits, or close other programs.",
        )
    why = "" if problem is None else problem.message
    return "chip", Notice(
        "plan-cpu", f"Runs on the processor with {form}, and a chat of {chats} fits into memory.", why
    )


def _on_card(plan: LoadPlan, card: str, form: str, chats: str) -> tuple[str, Notice]:
    unknown = (
        ""
        if plan.free_is_known
        else phrase("The driver doesn't say how much of the card other programs have now.")
    )
    if plan.window is not None:
        return "warning", Notice(
            "plan-window",
            f"Only {plan.window} of its {plan.layers} layers have room on {card} at once, with {form}. All "
            "weights are read again for each token, so answers will be slow.",
            "Choose fewer bits, a shorter context or a smaller model, or close other programs.",
        )
    if plan.tokens < plan.context:
        return "warning", Notice(
            "plan-chats-short",
            f"Runs whole on {card} with {form}. A chat has room there up to {format_tokens(plan.tokens)}; a "
            "longer one goes on on the processor, which is slower.",
            unknown or "Choose a shorter context or fewer bits to know beforehand.",
        )
    return "chip", Notice(
        "plan-card", f"Runs whole on {card} with {form}, and a chat of {chats} has room there.", unknown
    )


def plan_shares(room: RoomPlan) -> tuple[Share, ...]:
    """Of all memory where the model would compute; what is missing stands at its end."""
    plan = room.plan
    taken = plan.weight_bytes + plan.workspace_bytes + plan.cache_bytes
    others = max(0, plan.total_bytes - plan.free_bytes)
    staying = 0 if room.goes_first else min(room.loaded_bytes, others)
    return (
        Share(mark("Other programs"), others - staying),
        Share(mark("Loaded model"), staying),
        Share("Weights", plan.weight_bytes),
        Share("Workspace", plan.workspace_bytes),
        Share(mark("This chat"), plan.cache_bytes),
        Share("Free", max(0, plan.free_bytes - taken)),
        Share("Missing", max(0, taken - plan.free_bytes)),
    )


EXPLANATIONS = {
    mark("Weights"): mark("The model itself, with the bits that are chosen"),
    mark("This chat"): mark("What one conversation takes that fills the chosen context"),
    mark("Workspace"): mark("What stands between two layers while a token is computed"),
    mark("Other programs"): mark("What other programs have of this memory, and what is kept free for them"),
    mark("Free"): mark("What is left for more conversations"),
    mark("Missing"): mark("What such a chat takes more than there is"),
    mark("Loaded model"): mark("What the model that is loaded now has, until this one is ready"),
}
"""Of each kind of share, both in English, in the order of the legend."""


def where_words(room: RoomPlan) -> str:
    """Above the bar: which memory it is."""
    plan = room.plan
    free, total = format_bytes(plan.free_bytes), format_bytes(plan.total_bytes)
    on_card = plan.device == "cuda"
    if room.goes_first and room.loaded is not None:
        name = room.loaded.name
        return tr(
            "Memory of the card: {free} of {total} available once {name} is unloaded"
            if on_card
            else "Memory of this computer: {free} of {total} available once {name} is unloaded",
            free=free,
            total=total,
            name=name,
        )
    return tr(
        "Memory of the card: {free} of {total} available now"
        if on_card
        else "Memory of this computer: {free} of {total} available now",
        free=free,
        total=total,
    )


def leaving_words(room: RoomPlan) -> str:
    """What becomes of the model that is loaded; "" where it stays until this one is ready."""
    if room.loaded is None or not room.goes_first:
        return ""
    return tr(
        "{name} is unloaded first, to make room. Should this load fail or be cancelled, it is loaded again.",
        name=room.loaded.name,
    )
