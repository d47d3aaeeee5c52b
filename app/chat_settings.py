"""What is chosen for one conversation: the model's instructions, and how it draws. Written as one JSON text
beside the conversation.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field

from app.chat_sampling import SamplingChoice

MAX_INSTRUCTIONS = 100_000  # characters


@dataclass(frozen=True)
class ChatSettings:
    instructions: str = ""  # the system prompt; "": none
    sampling: SamplingChoice = field(default_factory=SamplingChoice)

    def as_json(self) -> str | None:
        """None: nothing is chosen."""
        if self == ChatSettings():
            return None
        return json.dumps({"instructions": self.instructions, "sampling": self.sampling.as_values()})

    @classmethod
    def from_json(cls, text: str | None) -> ChatSettings:
        """What can't be read counts as not chosen: a conversation opens in any case."""
        try:
            values = json.loads(text) if text else {}
        except (ValueError, RecursionError):
            values = {}
        if not isinstance(values, dict):
            return cls()
        instructions, sampling = values.get("instructions"), values.get("sampling")
        return cls(
            instructions[:MAX_INSTRUCTIONS] if isinstance(instructions, str) else "",
            SamplingChoice.from_values(sampling) if isinstance(sampling, dict) else SamplingChoice(),
        )
