"""Moments as the store keeps them: microseconds since 1970, UTC."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
# Beyond these, a moment can't be told in the time of every place on every system.
_EARLIEST = datetime(1970, 1, 2, tzinfo=UTC)
_LATEST = datetime(2999, 12, 30, tzinfo=UTC)


def now_us() -> int:
    return (datetime.now(UTC) - _EPOCH) // _MICROSECOND


def time_from(microseconds: int) -> datetime:
    """The moment, or the nearest one that can be shown: a file that was imported, or a clock, may have said
    any.
    """
    try:
        moment = _EPOCH + timedelta(microseconds=microseconds)
    except OverflowError:
        return _LATEST if microseconds > 0 else _EARLIEST
    return min(max(moment, _EARLIEST), _LATEST)


def microseconds_of(moment: datetime | None, otherwise: int) -> int:
    return (moment - _EPOCH) // _MICROSECOND if moment is not None else otherwise


def time_from_seconds(seconds: float) -> datetime | None:
    """A moment of a foreign file, in seconds since 1970; None for what is none."""
    try:
        return _EPOCH + timedelta(seconds=seconds)
    except (OverflowError, ValueError):
        return None
