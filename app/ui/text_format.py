"""Numbers and dates as people write them, in the language that is set. No widget, no Qt.

Sizes are decimal (1 GB = 10^9 bytes), as model pages and most file managers give them.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from datetime import date
from decimal import Decimal
from pathlib import Path

from app.language import mark, tr, tr_n
from app.settings import MAX_BYTES

_UNITS = {"KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
_SIZE = re.compile(
    r"(?P<sign>[-\u2212]?)(?P<number>[0-9]{1,20}(?:[.,][0-9]{1,20})?) ?(?P<unit>[kmgt]b)?",
    re.IGNORECASE | re.ASCII,
)
_AMBIGUOUS = re.compile(r"[1-9][0-9]{0,2},[0-9]{3}", re.ASCII)  # thousands to some, a fraction to others
_THIN = "\u202f"  # narrow no-break space between a number and its unit


def format_bytes(count: int) -> str:
    """93_412_352 -> "93 MB"; two digits that count, at least."""
    return _scaled(count, (tr("bytes"), "kB", "MB", "GB", "TB"))


def parse_bytes(text: str, *, zero: str) -> int:
    """ "2.5" -> 2_500_000_000, as are "2,5" and "2.5 GB"; "500 MB" -> 500_000_000. Raises ValueError with a
    sentence that says what is wrong and what to write.

    zero: what a 0 does, as in "to keep nothing", in the language that is set; "" where it isn't a size to be
    chosen.
    """
    found = _SIZE.fullmatch(" ".join(text.split()))
    text = text.strip()
    if found is None and zero:
        raise ValueError(
            tr("“{text}” is no size. Write gigabytes, such as 2.5, or 0 to {zero}.", text=text, zero=zero)
        )
    if found is None:
        raise ValueError(tr("“{text}” is no size. Write gigabytes, such as 2.5.", text=text))
    number = found["number"]
    if _AMBIGUOUS.fullmatch(number):
        whole, fraction = number.replace(",", ""), number.replace(",", ".")
        raise ValueError(
            tr(
                "“{text}” can be read in two ways. Write {whole} or {fraction}.",
                text=text,
                whole=whole,
                fraction=fraction,
            )
        )
    if found["sign"] and zero:
        raise ValueError(tr("“{text}” is below 0. Write 0 to {zero}.", text=text, zero=zero))
    if found["sign"]:
        raise ValueError(tr("“{text}” is below 0. Write a size.", text=text))
    count = Decimal(number.replace(",", ".")) * _UNITS[(found["unit"] or "GB").upper()]
    if count > MAX_BYTES:
        raise ValueError(tr("“{text}” is more than any computer has. Write a smaller number.", text=text))
    if not count and not zero:
        raise ValueError(tr("“{text}” is nothing at all. Write gigabytes, such as 2.5.", text=text))
    return int(count)


def format_count(count: int) -> str:
    """134_515_008 -> "135 M"."""
    return _scaled(count, ("", "K", "M", "B", "T"))


def format_tokens(count: int) -> str:
    """131_072 -> "131,072 tokens"."""
    return tr_n("{count:,} token", "{count:,} tokens", count)


def format_speed(tokens: int, seconds: float) -> str:
    """Tokens per second, or "" when nothing was measured."""
    if tokens <= 0 or seconds <= 0:
        return ""
    rate = tokens / seconds
    return f"{rate:.1f} tok/s" if rate < 100 else f"{rate:,.0f} tok/s"


def format_duration(seconds: float) -> str:
    """12.4 -> "12 s", 75 -> "1 min 15 s", 7_260 -> "2 h 1 min"; less than a second is said as such."""
    whole = round(seconds)
    if whole < 1:
        return tr("less than 1\u202fs")
    minutes, rest = divmod(whole, 60)
    if not minutes:
        return tr("{number}\u202fs", number=whole)
    hours, minutes = divmod(minutes, 60)
    parts = [
        tr("{number}\u202fh", number=hours) if hours else "",
        tr("{number}\u202fmin", number=minutes) if minutes else "",
        tr("{number}\u202fs", number=rest) if rest and not hours else "",
    ]
    return " ".join(part for part in parts if part)


def listed(parts: Iterable[str]) -> str:
    """One behind the other, as a sentence has them."""
    return tr(", ").join(parts)


def format_folder(folder: Path) -> str:
    """As a person would type it: the home folder is "~" where the system knows that sign."""
    if os.name == "posix" and folder.is_relative_to(home := Path.home()):
        return str("~" / folder.relative_to(home))
    return str(folder)


def day_group(day: date, today: date) -> str:
    """The heading a conversation stands under, in English."""
    age = (today - day).days
    if age <= 0:  # a clock that was set back puts days into the future
        return mark("Today")
    if age == 1:
        return mark("Yesterday")
    return mark("Last 7 days") if age < 7 else mark("Earlier")


def _scaled(count: int, units: tuple[str, ...]) -> str:
    value = float(count)
    for unit in units:
        # 999.6 would be shown as 1000, which belongs to the next unit
        if round(value) < 1000 or unit == units[-1]:
            whole = unit == units[0] or value >= 99.95
            digits = 0 if whole else (1 if value >= 9.995 else 2)
            number = f"{value:.{digits}f}"
            if "." in number:
                number = number.rstrip("0").rstrip(".")
            return f"{number}{_THIN}{unit}" if unit else number
        value /= 1000
    raise AssertionError("the last unit takes every number")
