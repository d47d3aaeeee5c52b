"""What PyCUDA raises, in sentences that a person can act on, with the driver's own words in them."""

from __future__ import annotations

import re

from engine.cpu.memory import mebibytes
from engine.cuda.driver import CardFaultError, CardLostError
from engine.errors import OutOfMemoryError
from engine.wording import phrase

_PYCUDA_MESSAGE = re.compile(r"(?P<function>\w+) failed: (?P<words>[^\n]+)")

# By what stands in the driver's words; the first that fits.
_HINTS = {
    "ECC": (
        "The card's memory is failing: restart the computer, and have the card checked if it happens again."
    ),
    "timed out": (
        "The system stops work that keeps a card with a screen busy for too long: close other programs that "
        "use it, then restart the program."
    ),
    "unknown error": (
        "This comes after sleep: restart the program; if that doesn't help, restart the computer."
    ),
    "toolchain": "Install a newer NVIDIA driver.",
    "kernel image": "Install a newer NVIDIA driver.",
    "busy or unavailable": "Close other programs that use the card, then load the model again.",
}
_IF_AGAIN = "if it happens again, install a newer NVIDIA driver, or choose the CPU as device."
_REFUSED_HINT = f"Load the model again; {_IF_AGAIN}"
_LOST_HINT = f"Restart the program to use the card again; {_IF_AGAIN}"  # see `lost_card.py`


def card_fault(message: str, *, doing: str, lost: bool) -> CardFaultError:
    """message: PyCUDA's. doing: what failed, as "the upload" is named. lost: whether the card answers nothing
    any more, whatever it is asked.
    """
    words = driver_words(message)
    other = _LOST_HINT if lost else _REFUSED_HINT
    hint = next((hint for part, hint in _HINTS.items() if part in words), other)
    if lost:
        return CardLostError(f"The graphics card stopped at {doing}: {words}.", hint)
    return CardFaultError(f"The graphics card refused {doing}: {words}.", hint)


def card_full(num_bytes: int, free: int | None) -> OutOfMemoryError:
    """num_bytes: that can't be had in one piece. free: None where the card doesn't even say that."""
    are_free = "an unknown number" if free is None else mebibytes(free)
    return OutOfMemoryError(
        f"The graphics card has no room for another {_size(num_bytes)} in one piece; {are_free} are free.",
        "Close other programs that use it, or choose a smaller model or a shorter context.",
    )


def card_full_at(doing: str, free: int | None) -> OutOfMemoryError:
    """Where it is the driver that needs memory for itself, and doesn't say how much."""
    are_free = "how many are free is unknown" if free is None else f"{mebibytes(free)} are free"
    return OutOfMemoryError(
        f"The graphics card or the driver has too little memory for {doing}; on the card, {are_free}.",
        "Close other programs that use it, or choose a smaller model or a shorter context.",
    )


def driver_words(message: str) -> str:
    """ "cuMemAlloc failed: out of memory" -> "out of memory (cuMemAlloc)"."""
    parts = _PYCUDA_MESSAGE.match(message)
    if parts is None:
        return message.strip().rstrip(".")
    return f"{parts['words'].rstrip(' -.')} ({parts['function']})"


def _size(num_bytes: int) -> str:
    return mebibytes(num_bytes) if num_bytes >= 2**20 else phrase(f"{num_bytes:,} bytes")
