"""Every reason why there may be no card has its own text."""

from __future__ import annotations

import ctypes
import importlib.util
import threading
from collections.abc import Callable
from typing import Any

import pytest

from engine.cuda import availability, nvidia_library
from engine.cuda.availability import NoCard, find_card, open_card
from engine.cuda.driver import CardFaultError, CardInfo
from engine.cuda.lost_card import remember_loss
from engine.cuda.nvidia_library import NvidiaLibrary
from engine.errors import SettingError

WORDS = {
    34: b"stub library",
    35: b"insufficient",
    100: b"no device",
    803: b"driver mismatch.",
    999: b"unknown error",
}


class FakeLibcuda:
    """The C functions. A card is (name, major, minor, bytes)."""

    def __init__(
        self,
        *,
        version: int = 12090,
        init: int = 0,
        cards: tuple[tuple[bytes, int, int, int], ...] = ((b"Card", 9, 0, 2**33),),
    ) -> None:
        self.version, self.init, self.cards = version, init, cards
        self.current: list[int | None] = []
        self.released: list[int] = []

    def cuInit(self, flags: ctypes.c_uint) -> int:
        return self.init

    def cuDriverGetVersion(self, version: Any) -> int:
        version._obj.value = self.version
        return 0

    def cuGetErrorString(self, code: ctypes.c_int, words: Any) -> int:
        words._obj.value = WORDS.get(code.value)
        return 0

    def cuDeviceGetCount(self, count: Any) -> int:
        count._obj.value = len(self.cards)
        return 0

    def cuDeviceGet(self, device: Any, ordinal: ctypes.c_int) -> int:
        device._obj.value = ordinal.value
        return 0

    def cuDeviceGetName(self, name: Any, size: ctypes.c_int, device: ctypes.c_int) -> int:
        name.value = self.cards[device.value][0]
        return 0

    def cuDeviceTotalMem_v2(self, num_bytes: Any, device: ctypes.c_int) -> int:
        num_bytes._obj.value = self.cards[device.value][3]
        return 0

    def cuDeviceGetAttribute(self, value: Any, attribute: ctypes.c_int, device: ctypes.c_int) -> int:
        _, major, minor, _ = self.cards[device.value]
        value._obj.value = {16: 132, 75: major, 76: minor}[attribute.value]
        return 0

    def cuCtxGetCurrent(self, current: Any) -> int:
        current._obj.value = self.current[-1] if self.current else None
        return 0

    def cuCtxSetCurrent(self, context: ctypes.c_void_p) -> int:
        self.current = self.current[:-1] + ([] if context.value is None else [context.value])
        return 0

    def cuDevicePrimaryCtxRelease_v2(self, device: ctypes.c_int) -> int:
        self.released.append(device.value)
        return 0


@pytest.fixture(autouse=True)
def _packages(monkeypatch: pytest.MonkeyPatch) -> None:
    """All that a card needs is installed; no driver is asked for its version."""
    monkeypatch.setattr(availability, "nvrtc_version", lambda: (12, 9))
    monkeypatch.setattr(availability, "driver_version", lambda: "580.95.05")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    set_found(monkeypatch, lambda name: object())


def set_found(monkeypatch: pytest.MonkeyPatch, find_spec: Callable[[str], object | None]) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", find_spec)


def set_library(monkeypatch: pytest.MonkeyPatch, library: Any) -> None:
    monkeypatch.setattr(availability, "load_nvidia_library", lambda: library and NvidiaLibrary(library))


def no_card(monkeypatch: pytest.MonkeyPatch, library: Any) -> NoCard:
    set_library(monkeypatch, library)
    found = find_card()
    assert isinstance(found, NoCard)
    return found


def test_a_card_that_will_do_is_described(monkeypatch: pytest.MonkeyPatch) -> None:
    set_library(monkeypatch, FakeLibcuda(cards=((b"NVIDIA GeForce RTX 4070", 8, 9, 12 * 2**30),)))
    assert find_card() == CardInfo("NVIDIA GeForce RTX 4070", (8, 9), 12 * 2**30, 132, "580.95.05")


def test_a_driver_without_a_version_is_named_by_its_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(availability, "driver_version", lambda: None)
    set_library(monkeypatch, FakeLibcuda(version=13010))
    found = find_card()
    assert isinstance(found, CardInfo)
    assert found.driver == "CUDA 13.1"


def test_the_first_card_that_will_do_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    set_library(monkeypatch, FakeLibcuda(cards=((b"Old", 7, 5, 1), (b"New", 8, 0, 2), (b"Newer", 12, 0, 3))))
    found = find_card()
    assert isinstance(found, CardInfo)
    assert found.name == "New"


GTX_1080 = FakeLibcuda(cards=((b"GTX 1080", 6, 1, 2**33),))
REASONS: dict[str, tuple[Any, str, str]] = {
    "no driver": (None, "card-driver-missing", "no NVIDIA driver"),
    "a stub in the place of a driver": (FakeLibcuda(init=34), "card-driver-missing", "no NVIDIA driver"),
    "an old driver": (FakeLibcuda(version=11080), "card-driver-old", "has CUDA 11.8, and 12.0 is needed"),
    "a driver that calls itself old": (FakeLibcuda(init=35), "card-driver-old", r"insufficient \(35\)"),
    "no card": (FakeLibcuda(init=100), "card-missing", "finds no card"),
    "a count of none": (FakeLibcuda(cards=()), "card-missing", "finds no card"),
    "an old card": (GTX_1080, "card-too-old", r"GTX 1080\) has compute capability 6.1, and 8.0"),
    "an update without a restart": (FakeLibcuda(init=803), "card-driver-silent", r"mismatch \(803\)"),
    "a driver after sleep": (FakeLibcuda(init=999), "card-driver-silent", r"unknown error \(999\)"),
    "an error without words": (FakeLibcuda(init=555), "card-driver-silent", "error 555"),
}


@pytest.mark.parametrize("why", REASONS)
def test_each_reason_has_its_code_and_its_words(monkeypatch: pytest.MonkeyPatch, why: str) -> None:
    library, code, words = REASONS[why]
    found = no_card(monkeypatch, library)
    assert found.code == code
    notice = found.as_notice()
    assert notice.message.startswith("The model runs on the CPU: ")
    with pytest.raises(SettingError, match=words):
        raise found.as_error()
    for text in (notice.message, notice.hint):
        assert text.endswith(".")
        assert text.count("\n") == 0


def test_a_card_that_the_environment_hides_is_told_with_the_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "-1")
    found = no_card(monkeypatch, FakeLibcuda(init=100))
    assert found.code == "card-hidden"
    assert "CUDA_VISIBLE_DEVICES is '-1'" in found.reason


def test_absent_pycuda_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    set_found(monkeypatch, lambda name: None)
    assert no_card(monkeypatch, FakeLibcuda()).code == "card-pycuda-missing"


@pytest.mark.parametrize(
    ("error", "what"),
    [
        (ImportError("no module"), "cuda-bindings"),
        (RuntimeError("no library"), "NVRTC"),
        (OSError("damaged"), "NVRTC"),
    ],
)
def test_an_absent_compiler_is_told(monkeypatch: pytest.MonkeyPatch, error: Exception, what: str) -> None:
    def absent() -> tuple[int, int]:
        raise error

    monkeypatch.setattr(availability, "nvrtc_version", absent)
    found = no_card(monkeypatch, FakeLibcuda())
    assert found.code == "card-nvrtc-missing"
    assert what in found.reason


def test_a_driver_older_than_the_compilers_cuda_is_told_with_the_version_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(availability, "nvrtc_version", lambda: (13, 0))
    found = no_card(monkeypatch, FakeLibcuda(version=12040))
    assert found.code == "card-driver-old"
    assert "it has CUDA 12.4, and 13.0 is needed" in found.reason
    assert "580" in found.hint
    set_library(monkeypatch, FakeLibcuda(version=13000))
    assert isinstance(find_card(), CardInfo)


def test_a_driver_that_hangs_does_not_hang_the_program(monkeypatch: pytest.MonkeyPatch) -> None:
    woken = threading.Event()

    class Hanging(FakeLibcuda):
        def cuInit(self, flags: ctypes.c_uint) -> int:
            woken.wait()
            return 0

    monkeypatch.setattr(availability, "_PATIENCE_SECONDS", 0.01)
    try:
        found = no_card(monkeypatch, Hanging())
        waiting = [each for each in threading.enumerate() if each.name == "ask-nvidia-driver"]
        monkeypatch.setattr(availability, "_PATIENCE_SECONDS", 1000)  # the one that is there has had its time
        again = no_card(monkeypatch, Hanging())
        assert [each for each in threading.enumerate() if each.name == "ask-nvidia-driver"] == waiting
    finally:
        woken.set()
    assert found.code == again.code == "card-driver-silent"
    for thread in waiting:
        thread.join()
    assert isinstance(find_card(), CardInfo), "it has come to itself"


def test_opening_without_a_card_is_refused_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    set_library(monkeypatch, None)
    with pytest.raises(SettingError, match="'cuda' is not available: there is no NVIDIA driver"):
        open_card()


def test_a_card_that_was_lost_is_not_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    remember_loss("an illegal memory access was encountered (cuStreamSynchronize)")
    remember_loss("the context is destroyed (cuMemAlloc)")
    found = no_card(monkeypatch, FakeLibcuda())
    assert found.code == "card-failed"
    assert found.reason == (
        "the card failed earlier in this program (an illegal memory access was encountered "
        "(cuStreamSynchronize))"
    )
    assert "Restart the program" in found.hint
    with pytest.raises(SettingError, match="the card failed earlier in this program"):
        open_card()


def test_pycuda_that_cant_be_imported_is_told_with_the_systems_words(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    set_library(monkeypatch, FakeLibcuda())
    monkeypatch.setitem(sys.modules, "pycuda", None)
    monkeypatch.setitem(sys.modules, "pycuda.driver", None)
    with pytest.raises(CardFaultError, match="PyCUDA is installed, but can't be used: "):
        open_card()


def test_a_context_is_taken_off_the_stack_as_often_as_it_lies_on_top() -> None:
    fake = FakeLibcuda()
    fake.current = [5, 7, 7]
    NvidiaLibrary(fake).leave(7)
    assert fake.current == [5]


def test_a_missing_library_is_no_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise OSError(f"{name}: cannot open shared object file")

    monkeypatch.setattr(ctypes, "CDLL", missing)
    monkeypatch.setattr(nvidia_library, "_known_version", None)
    assert nvidia_library.load_nvidia_library() is None
    assert nvidia_library.driver_version() is None


class FakeNvml:
    def __init__(self, version: bytes | None) -> None:
        self.version = version
        self.num_asked = 0

    def nvmlInit_v2(self) -> int:
        self.num_asked += 1
        return 0 if self.version else 9

    def nvmlSystemGetDriverVersion(self, text: Any, size: ctypes.c_uint) -> int:
        text.value = self.version
        return 0

    def nvmlShutdown(self) -> None:
        pass


def test_nvml_is_asked_until_it_has_said_the_version_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """It wakes every card of the computer to say it, at each inspection of a model that would be."""
    nvml = FakeNvml(None)
    monkeypatch.setattr(ctypes, "CDLL", lambda name: nvml)
    monkeypatch.setattr(nvidia_library, "_known_version", None)
    assert nvidia_library.driver_version() is None
    nvml.version = b"580.95.05"
    assert [nvidia_library.driver_version() for _ in range(3)] == ["580.95.05"] * 3
    assert nvml.num_asked == 2


def test_a_card_that_comes_or_goes_is_noticed_the_next_time(monkeypatch: pytest.MonkeyPatch) -> None:
    library = FakeLibcuda(init=100)
    assert no_card(monkeypatch, library).code == "card-missing"
    library.init = 0
    found = find_card()
    assert isinstance(found, CardInfo)
    assert found.name == "Card"
    library.cards = ((b"Another", 9, 0, 2**33),)
    again = find_card()
    assert isinstance(again, CardInfo)
    assert again.name == "Another"
    library.cards = ()
    assert no_card(monkeypatch, library).code == "card-missing"


class FakeNvmlMemory:
    """Knows one card, by one of the names that NVML has for it."""

    def __init__(self, name: bytes) -> None:
        self.name = name
        self.num_open = 0

    def nvmlInit_v2(self) -> int:
        self.num_open += 1
        return 0

    def nvmlShutdown(self) -> None:
        self.num_open -= 1

    def nvmlDeviceGetHandleByUUID(self, name: ctypes.c_char_p, handle: Any) -> int:
        return 0 if name.value == self.name else 6

    def nvmlDeviceGetMemoryInfo(self, handle: Any, memory: Any) -> int:
        memory._obj.total, memory._obj.free, memory._obj.used = 100, 30, 70
        return 0


@pytest.mark.parametrize(
    ("name", "free"), [(b"GPU-1b4e28ba", 30), (b"MIG-1b4e28ba", 30), (b"GPU-another", None)]
)
def test_what_is_free_is_asked_of_the_very_card_or_part_of_one(
    monkeypatch: pytest.MonkeyPatch, name: bytes, free: int | None
) -> None:
    nvml = FakeNvmlMemory(name)
    monkeypatch.setattr(ctypes, "CDLL", lambda _: nvml)
    assert nvidia_library.free_bytes_of("1b4e28ba") == free
    assert nvml.num_open == 0


def test_without_nvml_nobody_knows_what_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(_: str) -> None:
        raise OSError

    monkeypatch.setattr(ctypes, "CDLL", missing)
    assert nvidia_library.free_bytes_of("1b4e28ba") is None
    monkeypatch.setattr(ctypes, "CDLL", lambda _: FakeNvml(b"1"))  # an old one, without that function
    assert nvidia_library.free_bytes_of("1b4e28ba") is None
