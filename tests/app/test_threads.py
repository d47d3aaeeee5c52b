"""Threads beside the GUI thread."""

from __future__ import annotations

import sys

from app.threads import share_python_fairly


def test_a_thread_that_computes_gives_pythons_lock_up_often() -> None:
    before = sys.getswitchinterval()
    sys.setswitchinterval(0.005)
    try:
        share_python_fairly()
        assert sys.getswitchinterval() <= 0.0002
    finally:
        sys.setswitchinterval(before)
