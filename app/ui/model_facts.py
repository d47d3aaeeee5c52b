"""From a model report to the words of its card. Pure functions; no widget."""

from __future__ import annotations

from typing import TYPE_CHECKING

from app.ui.text_format import format_bytes, format_count, format_tokens
from engine.notices import Notice

if TYPE_CHECKING:
    from engine.inspection import ModelReport

Fact = tuple[str, str, str]  # name, value, explanation


def model_facts(report: ModelReport) -> tuple[Fact, ...]:
    """What is known, in reading order; what isn't known is left out."""
    facts: list[Fact] = []
    if report.parameters:
        facts.append(("Parameters", format_count(report.parameters), "How many numbers the model is made of"))
    if report.file_bytes:
        facts.append(("Size on disk", format_bytes(report.file_bytes), "All weight files together"))
    if report.layers:
        facts.append(("Layers", f"{report.layers:,}", "How deep the model is"))
    if report.weight_bytes.native:
        weights = report.weight_bytes
        facts += [
            (
                "Weights, as stored",
                format_bytes(weights.native),
                "Memory for the weights as in the file",
            ),
            ("Weights, 8-bit", format_bytes(weights.q8), "Memory for the weights with 8 bits each"),
            ("Weights, 4-bit", format_bytes(weights.q4), "Memory for the weights with 4 bits each"),
        ]
    if report.context_length:
        explanation = "The longest conversation the model can keep in view"
        facts.append(("Context", f"{report.context_length:,} tokens", explanation))
    if report.kv_bytes_per_token_native:
        explanation = "Memory that a conversation takes as it grows"
        size = format_bytes(report.kv_bytes_per_token_native)
        facts.append(("Chat memory", f"{size} per token", explanation))
    if "ram" in report.fits:
        explanation = "Memory of this computer that no program uses now"
        facts.append(("Free memory", format_bytes(report.fits["ram"].available_bytes), explanation))
    return tuple(facts)


def fit_warning(report: ModelReport) -> Notice | None:
    """Says that memory will be short; the engine has the last word when it loads."""
    fit = report.fits.get("ram")
    if fit is None or fit.native or report.problems:
        return None
    needed = report.weight_bytes.native + fit.context * report.kv_bytes_per_token_native
    return Notice(
        "memory-short",
        f"With a chat of {format_tokens(fit.context)} this model takes about {format_bytes(needed)}, "
        f"but only {format_bytes(fit.available_bytes)} of memory are free.",
        "Close other programs or choose a smaller model; loading may fail or make the computer slow.",
    )


def why_not_loadable(report: ModelReport) -> str:
    """Why the model can't be loaded, for the line beside the button; "" when it can."""
    if not report.problems:
        return ""
    return (
        "Can't be loaded for the reason above."
        if len(report.problems) == 1
        else "Can't be loaded: see above."
    )
