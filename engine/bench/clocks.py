"""What a card's clocks are at, and what it draws: a figure without them says little. Asked of NVML, which is
part of every driver.
"""

from __future__ import annotations

import ctypes
import sys
from dataclasses import asdict, dataclass
from typing import Any

_SM, _MEMORY = 1, 2  # nvmlClockType_t
_NAME_BYTES = 96


@dataclass(frozen=True)
class Clocks:
    """None: the driver doesn't say."""

    sm_mhz: int | None
    memory_mhz: int | None
    most_sm_mhz: int | None
    most_memory_mhz: int | None
    power_watts: float | None
    temperature_celsius: int | None

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def read_clocks(card: str) -> Clocks | None:
    """Of the first card of that name; None where NVML can't be asked, or knows none."""
    name = "nvml.dll" if sys.platform == "win32" else "libnvidia-ml.so.1"
    try:
        library = ctypes.CDLL(name)
        if library.nvmlInit_v2() != 0:
            return None
    except (OSError, AttributeError):
        return None
    try:
        device = _find(library, card)
        return None if device is None else _clocks(library, device)
    except AttributeError:
        return None  # a driver whose library lacks one of the functions
    finally:
        library.nvmlShutdown()


def _find(library: Any, card: str) -> ctypes.c_void_p | None:
    count = ctypes.c_uint()
    if library.nvmlDeviceGetCount_v2(ctypes.byref(count)) != 0:
        return None
    for index in range(count.value):
        device, name = ctypes.c_void_p(), ctypes.create_string_buffer(_NAME_BYTES)
        if (
            library.nvmlDeviceGetHandleByIndex_v2(ctypes.c_uint(index), ctypes.byref(device)) == 0
            and library.nvmlDeviceGetName(device, name, ctypes.c_uint(_NAME_BYTES)) == 0
            and name.value.decode("utf-8", "replace") == card
        ):
            return device
    return None


def _clocks(library: Any, device: ctypes.c_void_p) -> Clocks:
    def asked(function: str, *arguments: ctypes.c_uint) -> int | None:
        value = ctypes.c_uint()
        answer = getattr(library, function)(device, *arguments, ctypes.byref(value))
        return value.value if answer == 0 else None

    milliwatts = asked("nvmlDeviceGetPowerUsage")
    return Clocks(
        sm_mhz=asked("nvmlDeviceGetClockInfo", ctypes.c_uint(_SM)),
        memory_mhz=asked("nvmlDeviceGetClockInfo", ctypes.c_uint(_MEMORY)),
        most_sm_mhz=asked("nvmlDeviceGetMaxClockInfo", ctypes.c_uint(_SM)),
        most_memory_mhz=asked("nvmlDeviceGetMaxClockInfo", ctypes.c_uint(_MEMORY)),
        power_watts=None if milliwatts is None else milliwatts / 1000,
        temperature_celsius=asked("nvmlDeviceGetTemperature", ctypes.c_uint(0)),
    )
