"""Past notices on disk: one a line, as JSON, so that several windows may add to the file. No Qt.

It only helps to look back: a line that can't be read is left out, and told.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from datetime import datetime
from pathlib import Path
from typing import Any

from app.files import write_whole
from app.notice_log import MAX_KEPT, PastNotice
from engine.notices import Notice

MAX_FILE_BYTES = 8 * 2**20  # of its end, that are read
MAX_DETAILS = 20_000  # characters


def read_notices(path: Path) -> tuple[tuple[PastNotice, ...], int]:
    """Those that were told last, oldest first, and how many lines could not be read. Raises OSError."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            file.seek(max(0, size - MAX_FILE_BYTES))
            lines = file.read(MAX_FILE_BYTES).splitlines()
    except (FileNotFoundError, NotADirectoryError):  # of the folder, the conversations tell
        return (), 0
    found = [_notice_of(line) for line in lines[size > MAX_FILE_BYTES :] if line.strip()]
    told = [each for each in found if each is not None]
    return tuple(told[-MAX_KEPT:]), len(found) - len(told)


def append_notices(path: Path, notices: Iterable[PastNotice]) -> None:
    """Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab+") as file:
        if file.seek(0, 2):
            file.seek(-1, 2)
            whole = file.read(1) == b"\n"
            if not whole:  # a line that the end of the program has torn
                file.write(b"\n")
        file.write(_lines(notices).encode())


def rewrite_notices(path: Path, notices: Iterable[PastNotice]) -> None:
    """Oldest first, in place of what is there. Raises OSError."""
    write_whole(path, _lines(notices))


def trim_notices(path: Path) -> None:
    """Leave the lines that `read_notices` gives. Raises OSError."""
    rewrite_notices(path, read_notices(path)[0])


def _lines(notices: Iterable[PastNotice]) -> str:
    return "".join(f"{json.dumps(_values(past))}\n" for past in notices)


def _values(past: PastNotice) -> dict[str, Any]:
    notice = past.notice
    return {
        "at": past.at.isoformat(timespec="seconds"),
        "code": notice.code,
        "message": notice.message,
        "hint": notice.hint,
        "details": past.details[:MAX_DETAILS],
        "times": past.times,
    }


def _notice_of(line: bytes) -> PastNotice | None:
    """None for what isn't one."""
    try:
        values = json.loads(line)
        code, message, hint, details = (values[name] for name in ("code", "message", "hint", "details"))
        at, times = datetime.fromisoformat(values["at"]), values["times"]
        texts = (code, message, hint, details)
        sound = all(isinstance(text, str) and text.encode() is not None for text in texts)
        sound = sound and isinstance(times, int) and times >= 1 and at.tzinfo is None
    except (ValueError, TypeError, KeyError, RecursionError):  # half a surrogate pair is a ValueError, too
        return None
    return PastNotice(at, Notice(code, message, hint), details, times) if sound else None
