"""A notice as text that can be sent to somebody who can help: what happened, and on what. No Qt.

It holds nothing of what was written in chats, and no path but the model's name.
"""

from __future__ import annotations

import platform
from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING

from app.notice_log import PastNotice
from engine.version import VERSION
from engine.wording import format_tokens

if TYPE_CHECKING:
    from engine.metrics import Metrics
    from engine.model_summary import ModelSummary


def surroundings(summary: ModelSummary | None, metrics: Metrics | None = None) -> dict[str, str]:
    """What it happened on, in words by name."""
    found = {
        "Program": f"Kestrel Chat {VERSION}",
        "System": f"{platform.system()} {platform.release()} ({platform.machine()})",
        "Python": platform.python_version(),
    }
    if summary is None:
        return {**found, "Model": "none is loaded"}
    found["Model"] = f"{summary.name} ({summary.family}, {summary.layers} layers)"
    found["Weights"] = f"{summary.weights}, {summary.weight_bytes:,} bytes"
    found["Context"] = format_tokens(summary.context_length)
    found["Device"] = summary.device_description
    if metrics is not None and metrics.memory.card is not None:
        memory, card = metrics.memory, metrics.memory.card
        found["Card"] = (
            f"{card.name}: {card.total_bytes:,} bytes, {card.free_bytes:,} free; {memory.weight_bytes:,} for "
            f"weights, {memory.cache_bytes:,} for conversations, {memory.workspace_bytes:,} for work, "
            f"{memory.other_bytes:,} of other programs"
        )
    return found


def report_text(past: PastNotice, facts: Mapping[str, str]) -> str:
    notice = past.notice
    lines = [
        notice.message,
        *([notice.hint] if notice.hint else []),
        "",
        f"Code: {notice.code}",
        f"When: {_written(past.at)}" + (f", {past.times} times in a row" if past.times > 1 else ""),
        *(f"{name}: {words}" for name, words in facts.items()),
    ]
    if past.details:
        lines += ["", past.details.rstrip()]
    return "\n".join(lines) + "\n"


def _written(at: datetime) -> str:
    return at.isoformat(sep=" ", timespec="seconds")
