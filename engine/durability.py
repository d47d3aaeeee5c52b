"""What makes changes of the disk outlast a power cut, beyond a file's own `fsync`."""

from __future__ import annotations

import os
import sys
from pathlib import Path


def sync_folder(folder: Path) -> None:
    """Makes a rename last. Windows can't open folders, and does this by itself. Raises OSError."""
    if sys.platform == "win32":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
