"""Moments as the store keeps them: microseconds since 1970, UTC."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def now_us() -> int:
    return (datetime.now(UTC) - _EPOCH) // timedelta(microseconds=1)


def time_from(microseconds: int) -> datetime:
    return _EPOCH + timedelta(microseconds=microseconds)
