"""Which processes are at work. A number alone says little: systems give it to another process later."""

from __future__ import annotations

_SAME_START_SECONDS = 2.0  # a start is worked out from the clock, which may be set meanwhile


def start_of(process: int) -> float | None:
    """When a process began, in seconds since 1970; None if it has ended."""
    import psutil  # not needed by the first window

    try:
        return psutil.Process(process).create_time()
    except (psutil.Error, ValueError, OverflowError):
        return None


def is_at_work(process: object, started: object) -> bool:
    """Whether the process that began then still runs; both come from a file, so they may be anything."""
    if not isinstance(process, int) or not isinstance(started, int | float):
        return False
    begun = start_of(process)
    return begun is not None and abs(begun - started) < _SAME_START_SECONDS
