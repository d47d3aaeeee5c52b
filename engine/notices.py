"""Notices: what happened that the person did not ask for. A fallback, a rewrite, tensors left out: never
silent.

The same records stand in the command line's JSON (`notices`) and in the window's banner.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Notice:
    """`code` is stable (kebab-case); `message` is one plain sentence; `hint` says what to do, or ""."""

    code: str
    message: str
    hint: str = ""

    def as_json(self) -> dict[str, str]:
        return {"code": self.code, "message": self.message, "hint": self.hint}
