"""A model that takes the whole program down while it loads must not do so again at every start.

Before a model is loaded that nobody asked for (the last one, at start), a marker with its path is written;
when the load has ended, well or badly, the marker is removed. One that is found at start tells of a load that
never ended, unless the process that wrote it is still at work: that is another window on the same data.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

from app.files import write_whole

_SAME_START_SECONDS = 2.0  # a start is worked out from the clock, which may be set meanwhile


class LoadMarker:
    """All methods may raise OSError."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def write(self, model_path: Path) -> None:
        mark = {"model": str(model_path), "process": os.getpid(), "started": _start_of(os.getpid())}
        write_whole(self._path, json.dumps(mark))

    def remove(self) -> None:
        self._path.unlink(missing_ok=True)

    def read(self) -> Path | None:
        """The model whose load never ended, or None. A marker that can't be read as one counts for no
        model.
        """
        try:
            mark = json.loads(self._path.read_text(encoding="utf-8"))
            model = Path(mark["model"])
        except FileNotFoundError:
            return None
        except (ValueError, KeyError, TypeError):
            return None
        return None if _is_at_work(mark.get("process"), mark.get("started")) else model


def _is_at_work(process: object, started: object) -> bool:
    if not isinstance(process, int) or not isinstance(started, int | float):
        return False
    begun = _start_of(process)
    return begun is not None and abs(begun - started) < _SAME_START_SECONDS


def _start_of(process: int) -> float | None:
    """When a process began, in seconds since 1970; None if it has ended."""
    import psutil  # not needed by the first window

    try:
        return psutil.Process(process).create_time()
    except (psutil.Error, ValueError, OverflowError):
        return None
