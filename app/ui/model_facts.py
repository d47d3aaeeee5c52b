"""From a model report to the words of its card. Pure functions; no widget."""

from __future__ import annotations

from typing import TYPE_CHECKING

from app.ui.text_format import format_bytes, format_count

if TYPE_CHECKING:
    from engine.inspection import ModelReport

Fact = tuple[str, str, str]  # name, value, explanation
_WEIGHTS = {
    "native": ("Memory, as stored", "What the weights take in memory as they are in the file"),
    "q8": ("Memory, 8-bit", "What the weights would take with 8 bits each"),
    "q4": ("Memory, 4-bit", "What the weights would take with 4 bits each"),
}


def model_facts(report: ModelReport) -> tuple[Fact, ...]:
    """What is known, in reading order; what isn't known is left out."""
    facts: list[Fact] = []
    if report.parameters:
        facts.append(("Parameters", format_count(report.parameters), "How many numbers the model is made of"))
    if report.file_bytes:
        facts.append(("Size on disk", format_bytes(report.file_bytes), "All weight files together"))
    if report.layers:
        facts.append(("Layers", f"{report.layers:,}", "How deep the model is"))
    for key, (name, explanation) in _WEIGHTS.items():
        if report.weight_bytes.get(key):
            facts.append((name, format_bytes(report.weight_bytes[key]), explanation))
    if report.context_length:
        explanation = "The longest conversation the model can keep in view"
        facts.append(("Context", f"{report.context_length:,} tokens", explanation))
    if report.kv_bytes_per_token:
        size = format_bytes(report.kv_bytes_per_token * 1000)
        facts.append(("Chat memory", f"{size} per 1,000 tokens", "What a conversation takes as it grows"))
    return tuple(facts)


def why_not_loadable(report: ModelReport) -> str:
    """Why the model can't be loaded, for the line beside the button; "" when it can."""
    if not report.problems:
        return ""
    return (
        "Can't be loaded for the reason above."
        if len(report.problems) == 1
        else "Can't be loaded: see above."
    )
