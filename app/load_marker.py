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
from app.processes import is_at_work, start_of


class LoadMarker:
    """All methods may raise OSError."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def write(self, model_path: Path) -> None:
        mark = {"model": str(model_path), "process": os.getpid(), "started": start_of(os.getpid())}
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
        return None if is_at_work(mark.get("process"), mark.get("started")) else model
