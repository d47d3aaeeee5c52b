"""Whether there is a card that the engine can compute on, and if not, why, and what to do about it.

Asking makes no context and imports neither torch nor PyCUDA. The first time, the driver may take some tenths
of a second; later ones are quick, and see what has changed meanwhile.
"""

from __future__ import annotations

import importlib.util
import os
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING

from engine.cuda.driver import CardFaultError, CardInfo
from engine.cuda.lost_card import earlier_loss
from engine.cuda.nvidia_library import (
    CUDA_ERROR_INSUFFICIENT_DRIVER,
    CUDA_ERROR_INVALID_DEVICE,
    CUDA_ERROR_NO_DEVICE,
    CUDA_ERROR_STUB_LIBRARY,
    NvidiaError,
    NvidiaLibrary,
    driver_version,
    free_bytes_of,
    load_nvidia_library,
)
from engine.cuda.nvrtc_compiler import nvrtc_version
from engine.errors import SettingError
from engine.notices import Notice

if TYPE_CHECKING:
    from engine.cuda.driver import CardDriver

LEAST_CAPABILITY = (8, 0)
LEAST_CUDA = 12
_DRIVERS = {12: "525", 13: "580"}  # the first driver with each CUDA, as its maker's release notes list them
_PATIENCE_SECONDS = 30  # several cards that no program uses take some ten seconds to wake
_PACKAGES = "Install the packages for the card: in the program's folder, run pip install '.[cuda]'."


@dataclass(frozen=True)
class NoCard:
    """Why there is none. code: of the notice. reason: stands behind a colon. hint: a sentence, or ""."""

    code: str
    reason: str
    hint: str = ""

    def as_notice(self) -> Notice:
        """Where the person left the choice to the program."""
        return Notice(self.code, f"The model runs on the CPU: {self.reason}.", self.hint)

    def as_error(self) -> SettingError:
        """Where the person asked for the card."""
        either = "Or choose 'cpu' or 'auto'."
        hint = f"{self.hint} {either}" if self.hint else either
        return SettingError(f"The device 'cuda' is not available: {self.reason}.", hint)


def find_card() -> CardInfo | NoCard:
    """The first card that will do, in the driver's order: by speed, unless the person's environment says
    otherwise.
    """
    found = _find()
    return found if isinstance(found, NoCard) else found.info


def card_free_bytes() -> int | None:
    """What is free of the memory of `find_card`'s card, now and whoever has the rest; None where there is
    none, or its driver doesn't say.
    """
    found = _find()
    if isinstance(found, NoCard):
        return None
    try:
        return free_bytes_of(found.library.uuid(found.ordinal))
    except (NvidiaError, AttributeError):  # a driver that has no such function
        return None


def open_card() -> CardDriver:
    """On the card of `find_card`, for this thread. Raises SettingError where there is none, CardFaultError,
    OutOfMemoryError.
    """
    found = _find()
    if isinstance(found, NoCard):
        raise found.as_error()
    try:
        from engine.cuda.pycuda_driver import PyCudaDriver

        return PyCudaDriver(found.info, found.library, ordinal=found.ordinal)
    except (ImportError, OSError) as error:
        raise CardFaultError(
            f"PyCUDA is installed, but can't be used: {error}.",
            "Install it anew: pip install --force-reinstall --no-cache-dir pycuda.",
        ) from error


@dataclass(frozen=True)
class _Found:
    library: NvidiaLibrary
    ordinal: int
    info: CardInfo


def _find() -> _Found | NoCard:
    loss = earlier_loss()
    if loss is not None:
        return _failed_card(loss)
    library = load_nvidia_library()
    if library is None:
        return _no_driver()
    try:
        version = library.cuda_version()
        if version[0] < LEAST_CUDA:
            return _old_driver(version, LEAST_CUDA)
        if not _answers(library):
            return _silent_driver(f"it has said nothing for {_PATIENCE_SECONDS} seconds")
        found = _first_that_will_do(library, version)
    except NvidiaError as error:
        return _refusal(error)
    return found if isinstance(found, NoCard) else _missing_package(version) or found


_in_vain: threading.Thread | None = None  # asked a driver that hangs; maybe it still does


def _answers(library: NvidiaLibrary) -> bool:
    """Raises NvidiaError. A driver that hangs would hang this thread too, so another one asks; as long as
    that has no answer, nobody waits again.
    """
    global _in_vain
    if _in_vain is not None and _in_vain.is_alive():
        return False
    errors: list[NvidiaError] = []

    def ask() -> None:
        try:
            library.initialise()
        except NvidiaError as error:
            errors.append(error)

    thread = threading.Thread(target=ask, name="ask-nvidia-driver", daemon=True)
    thread.start()
    thread.join(_PATIENCE_SECONDS)
    if errors:
        raise errors[0]
    _in_vain = thread if thread.is_alive() else None
    return _in_vain is None


def _first_that_will_do(library: NvidiaLibrary, version: tuple[int, int]) -> _Found | NoCard:
    driver = driver_version() or f"CUDA {version[0]}.{version[1]}"
    cards = [library.info(ordinal, driver=driver) for ordinal in range(library.count())]
    for ordinal, info in enumerate(cards):
        if info.compute_capability >= LEAST_CAPABILITY:
            return _Found(library, ordinal, info)
    return _weak_card(cards[0]) if cards else _no_card()


def _missing_package(version: tuple[int, int]) -> NoCard | None:
    """version: of the driver's CUDA. Compilers make code for drivers of their own CUDA and of later ones."""
    if importlib.util.find_spec("pycuda") is None:
        return NoCard("card-pycuda-missing", "PyCUDA is not installed", _PACKAGES)
    try:
        needed = nvrtc_version()[0]
    except (ImportError, OSError, RuntimeError) as error:
        lacking = "cuda-bindings" if isinstance(error, ImportError) else "NVIDIA's compiler (NVRTC)"
        return NoCard("card-nvrtc-missing", f"{lacking} is not installed", _PACKAGES)
    return _old_driver(version, needed) if version[0] < needed else None


def _failed_card(words: str) -> NoCard:
    return NoCard(
        "card-failed",
        f"the card failed earlier in this program ({words})",
        "Restart the program to use the card again.",
    )


def _no_driver() -> NoCard:
    return NoCard(
        "card-driver-missing",
        "there is no NVIDIA driver on this computer",
        "If it has an NVIDIA card, install the card's driver, then load the model again.",
    )


def _old_driver(version: tuple[int, int], needed: int) -> NoCard:
    return NoCard(
        "card-driver-old",
        f"the NVIDIA driver is too old: it has CUDA {version[0]}.{version[1]}, and {needed}.0 is needed",
        f"Install an NVIDIA driver of version {_DRIVERS[needed]} or newer."
        if needed in _DRIVERS
        else "Install an NVIDIA driver.",
    )


def _no_card() -> NoCard:
    hidden = os.environ.get("CUDA_VISIBLE_DEVICES")
    if hidden is None:
        return NoCard(
            "card-missing",
            "the NVIDIA driver finds no card",
            "If there is one, check that it sits firmly and has power, and restart the computer.",
        )
    return NoCard(
        "card-hidden",
        f"the environment variable CUDA_VISIBLE_DEVICES is {hidden!r}, which leaves no card",
        "Remove that variable, or set it to 0.",
    )


def _weak_card(info: CardInfo) -> NoCard:
    least, has = (".".join(map(str, pair)) for pair in (LEAST_CAPABILITY, info.compute_capability))
    return NoCard(
        "card-too-old",
        f"the card ({info.name}) has compute capability {has}, and {least} is needed",
        "Cards from 2020 on have it (GeForce RTX 30 and newer, A100 and newer).",
    )


def _silent_driver(why: str) -> NoCard:
    return NoCard(
        "card-driver-silent",
        f"the NVIDIA driver doesn't answer as it should: {why}",
        "Restart the computer; if that doesn't help, install the driver anew.",
    )


def _refusal(error: NvidiaError) -> NoCard:
    if error.code == CUDA_ERROR_STUB_LIBRARY:
        return _no_driver()
    if error.code in (CUDA_ERROR_NO_DEVICE, CUDA_ERROR_INVALID_DEVICE):
        return _no_card()
    if error.code == CUDA_ERROR_INSUFFICIENT_DRIVER:
        return NoCard("card-driver-old", f"the NVIDIA driver is too old: {error}", "Install a newer one.")
    return _silent_driver(str(error))
