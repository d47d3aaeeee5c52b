"""From a model report to the words of its card. Pure functions; no widget."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from app.ui.text_format import format_bytes, format_count
from engine.wording import format_tokens

if TYPE_CHECKING:
    from engine.inspection import ModelReport

Fact = tuple[str, str, str]  # name, value, explanation
_UNKNOWN = "\N{EM DASH}"
NOT_LOADABLE = "Can't be loaded for the reason above."


def model_facts(report: ModelReport) -> tuple[Fact, ...]:
    """Always the same facts in the same places, so that cards can be compared; a dash where one isn't known,
    nothing when none is.
    """
    weights, ram = report.weight_bytes, report.fits.get("ram")
    kv = report.kv_bytes_per_token
    facts = (
        ("Parameters", _known(format_count, report.parameters), "How many numbers the model is made of"),
        ("Size on disk", _known(format_bytes, report.file_bytes), "All weight files together"),
        ("Layers", _known(str, report.layers), "How deep the model is"),
        (
            "Weights in memory",
            _known(format_bytes, weights.native),
            "Memory for the weights at the precision they are computed with; a packed file is unpacked to it",
        ),
        ("Weights, 8-bit", _known(format_bytes, weights.q8), "Memory for the weights with 8 bits each"),
        ("Weights, 4-bit", _known(format_bytes, weights.q4), "Memory for the weights with 4 bits each"),
        (
            "Context",
            _known(format_tokens, report.context_length),
            "The longest conversation the model can keep in view",
        ),
        (
            "Chat memory",
            _known(lambda size: f"{format_bytes(size)} per token", kv),
            "Memory that a conversation takes as it grows",
        ),
        (
            "Free memory",
            _known(format_bytes, ram.available_bytes if ram is not None else 0),
            "Memory of this computer that no program uses now",
        ),
    )
    return facts if any(value != _UNKNOWN for _, value, _ in facts) else ()


def why_not_loadable(report: ModelReport) -> str:
    """Why the model can't be loaded, for the line beside the button; "" when it can."""
    if not report.problems:
        return ""
    return NOT_LOADABLE if len(report.problems) == 1 else "Can't be loaded for the reasons above."


def _known(words: Callable[[int], str], number: int) -> str:
    """Reports give 0 for what a problem kept from being found out."""
    return words(number) if number else _UNKNOWN
