"""A process of its own on a real card."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def output_of(script: str, *, timeout: float = 120) -> str:
    """What it prints. It has to end well, and without a word of errors. timeout: seconds."""
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=timeout,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout
