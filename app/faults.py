"""From an exception to the notice that a person reads."""

from __future__ import annotations

import logging

from app.conversation_database import StoreError
from engine.errors import EngineError
from engine.notices import Notice

log = logging.getLogger(__name__)


def notice_from(error: Exception, *, doing: str) -> Notice:
    """What to show for `error`. `doing` says what failed: "saving the settings".

    Errors that a person, a file or a machine can cause explain themselves. Anything else is a mistake of the
    program: its traceback goes to the log and the notice says so.
    """
    if isinstance(error, StoreError | EngineError):
        return Notice(error.code, error.message, error.hint)
    if isinstance(error, OSError):
        log.warning("%s failed", doing, exc_info=error)
        begun, reason = doing[:1].upper() + doing[1:], error.strerror or error
        return Notice(
            "system-error",
            f"{begun} failed: {reason} ({error.filename})."
            if error.filename
            else f"{begun} failed: {reason}.",
            "Check that the disk has room and that the file may be written, then try again.",
        )
    log.error("fault while %s", doing, exc_info=error)
    return Notice(
        "fault",
        f"Something went wrong inside the program while {doing} ({type(error).__name__}).",
        "Try again; if it comes back, the log file holds the details for a report.",
    )
