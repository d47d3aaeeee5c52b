"""The files that stand unsent in a chat, as they are kept over a restart. No Qt."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from app.attachments import Attachment, attachments_as_json, attachments_from_json

MAX_CHARACTERS = 20_000_000  # of the files of one chat; what doesn't fit is named, not kept


@dataclass(frozen=True)
class DraftFiles:
    """missing: names of those that are not kept, since they were still being read, or too much."""

    ready: tuple[Attachment, ...] = ()
    missing: tuple[str, ...] = ()

    @classmethod
    def within_bounds(cls, ready: Sequence[Attachment], unread: Sequence[str] = ()) -> DraftFiles:
        kept: list[Attachment] = []
        missing: list[str] = []
        room = MAX_CHARACTERS
        for one in ready:
            if len(one.text) <= room:
                kept.append(one)
                room -= len(one.text)
            else:
                missing.append(one.name)
        return cls(tuple(kept), (*missing, *unread))

    @classmethod
    def from_json(cls, text: str | None) -> DraftFiles:
        """What can't be read is left out."""
        try:
            values = json.loads(text or "{}")
        except (ValueError, RecursionError):
            return cls()
        if not isinstance(values, dict):
            return cls()
        missing = values.get("missing")
        names = [one for one in missing if isinstance(one, str)] if isinstance(missing, list) else []
        return cls(attachments_from_json(json.dumps(values.get("files"))), tuple(names))

    def as_json(self) -> str | None:
        """None: there are none."""
        if self == DraftFiles():
            return None
        files = attachments_as_json(self.ready)
        return json.dumps({"files": json.loads(files) if files else [], "missing": list(self.missing)})
