"""Files that come with a message: what is kept of them, how that is written to disk, and how the model
reads it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from app.context_policy import ContextPolicy, prompt_limit
from app.language import mark
from app.titles import one_line

MAX_ATTACHMENTS = 20  # of one message
MAX_NAME_LENGTH = 200  # characters; systems allow 255 bytes
FILE_HEADING = mark("File “{name}”:")  # as models read it: in English, whatever the window speaks
_BACKTICKS = re.compile(r"`+")


@dataclass(frozen=True)
class Attachment:
    """The text of one file, as it was when it was attached."""

    name: str  # without its folder, on one line
    text: str
    pages: int | None = None  # of a PDF

    @property
    def num_lines(self) -> int:
        """As editors count them: a newline at the end begins no line."""
        return self.text.count("\n") + (not self.text.endswith("\n"))


@dataclass(frozen=True)
class Fit:
    """Whether a message has room. Tokens: `needed` by it, `room` that the context has for it."""

    needed: int
    room: int

    @property
    def fits(self) -> bool:
        return self.needed <= self.room


def attachment_name(name: str) -> str:
    """A file's name as it is shown and given to the model."""
    return one_line(name)[:MAX_NAME_LENGTH] or "file"


def content_with(text: str, attachments: Sequence[Attachment], *, heading: str = FILE_HEADING) -> str:
    """What the model reads: the files, each fenced off under its name, then the message. Files come first, so
    that another question about the same ones begins in the same way, and what was computed serves again.
    """
    if not attachments:
        return text
    parts = [_fenced(attachment, heading) for attachment in attachments]
    return "\n\n".join([*parts, text] if text.strip() else parts)


def _fenced(attachment: Attachment, heading: str) -> str:
    """The fence is longer than any in the text, which therefore can't end it."""
    longest = max((len(run) for run in _BACKTICKS.findall(attachment.text)), default=0)
    fence = "`" * max(3, longest + 1)
    end = "" if attachment.text.endswith("\n") else "\n"
    return f"{heading.format(name=attachment.name)}\n{fence}\n{attachment.text}{end}{fence}"


def fit_of(needed: int, *, used: int, context: int, policy: ContextPolicy) -> Fit:
    """`used` of the context's tokens are taken by the conversation so far. Where the oldest messages make
    room, the message has all of it.
    """
    taken = used if policy is ContextPolicy.STOP else 0
    return Fit(needed, max(0, prompt_limit(context) - taken))


def attachments_as_json(attachments: Sequence[Attachment]) -> str | None:
    """None: there are none."""
    if not attachments:
        return None
    return json.dumps([{"name": one.name, "text": one.text, "pages": one.pages} for one in attachments])


def attachments_from_json(text: str | None) -> tuple[Attachment, ...]:
    """What can't be read is left out: a conversation opens without it."""
    if not text:
        return ()
    try:
        values = json.loads(text)
    except (ValueError, RecursionError):
        return ()
    if not isinstance(values, list):
        return ()
    read = (_attachment(value) for value in values)
    return tuple(attachment for attachment in read if attachment is not None)


def _attachment(value: Any) -> Attachment | None:
    if not isinstance(value, dict):
        return None
    name, text, pages = value.get("name"), value.get("text"), value.get("pages")
    if not isinstance(name, str) or not isinstance(text, str):
        return None
    whole = isinstance(pages, int) and not isinstance(pages, bool)
    return Attachment(attachment_name(name), text, pages if whole else None)
