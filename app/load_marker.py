"""A model that takes the whole program down while it loads must not do so again at every start.

Before a model is loaded that nobody asked for (the last one, at start), a marker with its path is written;
when the load has ended, well or badly, the marker is removed. One that is found at start tells of a load that
never ended.
"""

from __future__ import annotations

import json
from pathlib import Path

from app.files import write_whole


class LoadMarker:
    """All methods may raise OSError."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def write(self, model_path: Path) -> None:
        write_whole(self._path, json.dumps({"model": str(model_path)}))

    def remove(self) -> None:
        self._path.unlink(missing_ok=True)

    def read(self) -> Path | None:
        """The model whose load never ended, or None. A marker that can't be read as one counts for no
        model.
        """
        try:
            return Path(json.loads(self._path.read_text(encoding="utf-8"))["model"])
        except FileNotFoundError:
            return None
        except (ValueError, KeyError, TypeError):
            return None
