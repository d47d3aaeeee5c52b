"""What an answer cost, and how that is written to disk."""

from __future__ import annotations

import json
import math
from dataclasses import MISSING, asdict, dataclass, fields
from typing import Any


@dataclass(frozen=True)
class AnswerStats:
    """What an answer cost. The first token comes from the prefill and is not in `decode_tokens`."""

    prompt_tokens: int
    reused_tokens: int
    prefill_seconds: float
    decode_tokens: int
    decode_seconds: float
    finish_reason: str
    device: str
    reuse_reason: str = ""  # a ReuseReason: why so little was reused; "" where only what is new was read
    diverged_at: int | None = None  # the token at which the prompt and what was kept part
    thinking_seconds: float = (
        0.0  # until the first word of the answer; 0: it did not think, or it isn't known
    )
    left_out: int = 0  # of the oldest messages: the model did not read them, so that the rest had room
    fallback: str = ""  # why the processor computed it, where a card was to; "": where it was to be computed

    @property
    def context_tokens(self) -> int:
        """Of the context, at the end of the answer. The first of its tokens comes from the prefill."""
        return self.prompt_tokens + (self.decode_tokens + 1 if self.prompt_tokens else 0)

    def as_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> AnswerStats | None:
        """None for figures that can't be read, or of a newer version that lack one of ours: a conversation
        opens without them. Figures of an older version have the defaults for what came later.
        """
        try:
            values = json.loads(text)
            known = [field for field in fields(cls) if field.name in values or field.default is MISSING]
            return cls(**{field.name: _figure(field.type, values[field.name]) for field in known})
        except (ValueError, KeyError, TypeError):
            return None


def _figure(kind: object, value: Any) -> Any:
    """`value` as the field's type, which `kind` names."""
    if value is None and kind == "int | None":
        return None
    if kind == "str":
        if not isinstance(value, str):
            raise TypeError
        return value
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise TypeError
    return float(value) if kind == "float" else int(value)
