"""What an answer cost, and how that is written to disk."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass, fields
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

    @property
    def decode_tokens_per_second(self) -> float:
        return self.decode_tokens / self.decode_seconds if self.decode_seconds > 0 else 0.0

    @property
    def prefill_tokens_per_second(self) -> float:
        read = self.prompt_tokens - self.reused_tokens
        return read / self.prefill_seconds if self.prefill_seconds > 0 else 0.0

    def as_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> AnswerStats | None:
        """None for figures that can't be read, or of a newer version that lack one of ours: a conversation
        opens without them.
        """
        try:
            values = json.loads(text)
            return cls(**{field.name: _figure(field.type, values[field.name]) for field in fields(cls)})
        except (ValueError, KeyError, TypeError):
            return None


def _figure(kind: object, value: Any) -> Any:
    """`value` as the field's type, which `kind` names."""
    if kind == "str":
        if not isinstance(value, str):
            raise TypeError
        return value
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise TypeError
    return int(value) if kind == "int" else float(value)
