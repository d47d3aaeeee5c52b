"""Files that must never be found half written."""

from __future__ import annotations

import os
from collections.abc import Iterable
from datetime import datetime
from pathlib import Path
from uuid import uuid4

from engine.durability import sync_folder


def write_whole(path: Path, text: str) -> None:
    """Put `text` at `path`: a reader finds the old file or the new one, also after a power cut. Raises
    OSError.
    """
    write_pieces(path, (text,))


def write_pieces(path: Path, pieces: Iterable[str]) -> None:
    """As `write_whole`, with a text that is never in memory as a whole."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f"{path.name}.{uuid4().hex[:12]}.tmp")  # two windows may write at once
    try:
        with temporary.open("w", encoding="utf-8") as file:
            for piece in pieces:
                file.write(piece)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def free_name(path: Path, reason: str) -> Path:
    """A name beside `path` that nothing has yet, made of the reason and the time."""
    stamp = datetime.now().strftime("%Y%m%d-%H%M%S")
    number = 0
    while True:
        suffix = f"-{number}" if number else ""
        name = path.with_name(f"{path.stem}.{reason}-{stamp}{suffix}{path.suffix}")
        if not name.exists():
            return name
        number += 1
