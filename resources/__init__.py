"""Files that ship with the program: icons. Looked up by name, so nothing depends on the working directory."""

from __future__ import annotations

from pathlib import Path

_ROOT = Path(__file__).resolve().parent


def resource_path(name: str) -> Path:
    """Path of a shipped file, e.g. "icons/send.svg". A missing one is our own mistake."""
    path = _ROOT / name
    assert path.is_file(), f"no resource {name}"
    return path


def icon_names() -> tuple[str, ...]:
    """Names of all icons that ship, without folder and suffix."""
    return tuple(sorted(path.stem for path in (_ROOT / "icons").glob("*.svg")))
