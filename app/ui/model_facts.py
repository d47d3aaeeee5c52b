"""From a model report to the words of its card. Pure functions; no widget."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from app.language import mark, tr
from app.ui.text_format import format_bytes, format_count, format_tokens

if TYPE_CHECKING:
    from engine.inspection import ModelReport

Fact = tuple[str, str, str]  # name, value, explanation
_UNKNOWN = "\N{EM DASH}"
_NOT_LOADABLE_EITHER = mark("Can't be loaded for the reasons above.")
NOT_LOADABLE = mark("Can't be loaded for the reason above.")


def model_facts(report: ModelReport) -> tuple[Fact, ...]:
    """Always the same facts in the same places, so that cards can be compared; a dash where one isn't known,
    nothing when none is.
    """
    weights, ram = report.weight_bytes, report.fits.get("ram")
    kv = report.kv_bytes_per_token
    facts = (
        (
            tr("Parameters"),
            _known(format_count, report.parameters),
            tr("How many numbers the model is made of"),
        ),
        (tr("Size on disk"), _known(format_bytes, report.file_bytes), tr("All weight files together")),
        (tr("Layers"), _known(str, report.layers), tr("How deep the model is")),
        (
            tr("Weights, unpacked"),
            _known(format_bytes, weights.native),
            tr(
                "Memory for the weights at the precision they are computed with; a packed file is unpacked "
                "to it"
            ),
        ),
        (
            tr("Weights, 8-bit"),
            _known(format_bytes, weights.q8),
            tr("Memory for the weights with 8 bits each"),
        ),
        (
            tr("Weights, 4-bit"),
            _known(format_bytes, weights.q4),
            tr("Memory for the weights with 4 bits each"),
        ),
        (
            tr("Context"),
            _known(format_tokens, report.context_length),
            tr("The longest conversation the model can keep in view"),
        ),
        (
            tr("Chat memory"),
            _known(lambda size: tr("{size} per token", size=format_bytes(size)), kv),
            tr("Memory that a conversation takes as it grows"),
        ),
        (
            tr("Free memory"),
            _known(format_bytes, ram.available_bytes if ram is not None else 0),
            tr("Memory of this computer that no program uses now"),
        ),
    )
    return facts if any(value != _UNKNOWN for _, value, _ in facts) else ()


def why_not_loadable(report: ModelReport) -> str:
    """Why the model can't be loaded, for the line beside the button; "" when it can."""
    if not report.problems:
        return ""
    return tr(NOT_LOADABLE if len(report.problems) == 1 else _NOT_LOADABLE_EITHER)


def _known(words: Callable[[int], str], number: int) -> str:
    """Reports give 0 for what a problem kept from being found out."""
    return words(number) if number else _UNKNOWN
