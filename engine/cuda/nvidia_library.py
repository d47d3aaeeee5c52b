"""The NVIDIA driver's own library, for the few questions that have to be asked before PyCUDA can be imported,
or that PyCUDA has no words for.

Nothing here makes a context: that would take some hundred megabytes of the card's memory.
"""

from __future__ import annotations

import ctypes
import sys
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from engine.cuda.driver import CardInfo
from engine.wording import phrase

CUDA_ERROR_OUT_OF_MEMORY = 2
CUDA_ERROR_STUB_LIBRARY = 34
CUDA_ERROR_INSUFFICIENT_DRIVER = 35
CUDA_ERROR_NO_DEVICE = 100
CUDA_ERROR_INVALID_DEVICE = 101

_MULTIPROCESSORS, _MAJOR, _MINOR = 16, 75, 76  # CUdevice_attribute
SHARED_SIZE_BYTES, MAX_DYNAMIC_SHARED_SIZE_BYTES, PREFERRED_SHARED_MEMORY_CARVEOUT = 1, 8, 9
"""Of CUfunction_attribute. The last one: how much of a processor's fast memory is shared memory, in percent;
the rest is its cache.
"""

_THIS_THREAD = 1  # CUstreamCaptureMode: what other threads do meanwhile is none of its business
_PROGRAMMATIC_STREAM_SERIALIZATION = 6  # CUlaunchAttributeID
_NAME_BYTES = 256


class NvidiaError(Exception):
    """What a function of the library returned. code: of CUresult. str(): the driver's words for it."""

    def __init__(self, code: int, words: str) -> None:
        super().__init__(words)
        self.code = code


def load_nvidia_library() -> NvidiaLibrary | None:
    """None where no driver is installed."""
    name = "nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1"
    try:
        return NvidiaLibrary(ctypes.CDLL(name))
    except OSError:
        return None


class LaunchAttribute(ctypes.Structure):
    """CUlaunchAttribute. value: one of many types, the largest of 64 bytes."""

    _fields_ = (("id", ctypes.c_int), ("padding", ctypes.c_char * 4), ("value", ctypes.c_int * 16))


class LaunchConfig(ctypes.Structure):
    """CUlaunchConfig."""

    _fields_ = (
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("shared_bytes", ctypes.c_uint),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.POINTER(LaunchAttribute)),
        ("num_attributes", ctypes.c_uint),
    )


class NvidiaLibrary:
    """Any thread may ask. Every method raises NvidiaError."""

    def __init__(self, library: Any) -> None:
        self._library = library

    def cuda_version(self) -> tuple[int, int]:
        """The newest CUDA that the driver has."""
        version = ctypes.c_int()
        self._call("cuDriverGetVersion", ctypes.byref(version))
        return version.value // 1000, version.value % 1000 // 10

    def initialise(self) -> None:
        """Has to come first, but for `cuda_version`. May take seconds where no program has used the card."""
        self._call("cuInit", ctypes.c_uint(0))

    def count(self) -> int:
        """How many cards programs may see."""
        count = ctypes.c_int()
        self._call("cuDeviceGetCount", ctypes.byref(count))
        return count.value

    def info(self, ordinal: int, *, driver: str) -> CardInfo:
        """Of one card. driver: its version in words."""
        device = self._device(ordinal)
        name = ctypes.create_string_buffer(_NAME_BYTES)
        self._call("cuDeviceGetName", name, ctypes.c_int(_NAME_BYTES), device)
        num_bytes = ctypes.c_size_t()
        self._call("cuDeviceTotalMem_v2", ctypes.byref(num_bytes), device)
        return CardInfo(
            name=name.value.decode("utf-8", "replace"),
            compute_capability=(self._attribute(_MAJOR, device), self._attribute(_MINOR, device)),
            total_bytes=num_bytes.value,
            multiprocessors=self._attribute(_MULTIPROCESSORS, device),
            driver=driver,
        )

    def uuid(self, ordinal: int) -> str:
        """As NVML calls the same card, without what stands in front of it: "1b4e28ba-2fa1-…"."""
        found = (ctypes.c_ubyte * 16)()
        self._call("cuDeviceGetUuid_v2", ctypes.byref(found), self._device(ordinal))
        return str(uuid.UUID(bytes=bytes(found)))

    def set_current(self, context: int) -> None:
        """For this thread, in the place of what was current."""
        self._call("cuCtxSetCurrent", ctypes.c_void_p(context))

    def leave(self, context: int) -> None:
        """Takes a context off this thread's stack as often as it lies on top."""
        current = ctypes.c_void_p()
        while True:
            self._call("cuCtxGetCurrent", ctypes.byref(current))
            if current.value != context:
                return
            self._call("cuCtxSetCurrent", ctypes.c_void_p(None))

    def load_module(self, code: bytes) -> int:
        """Into the context that is current. Its handle."""
        module = ctypes.c_void_p()
        self._call("cuModuleLoadData", ctypes.byref(module), ctypes.c_char_p(code))
        assert module.value is not None
        return module.value

    def unload_module(self, module: int) -> None:
        self._call("cuModuleUnload", ctypes.c_void_p(module))

    def function(self, module: int, name: str) -> int:
        """A kernel's handle."""
        function = ctypes.c_void_p()
        words = ctypes.c_char_p(name.encode("ascii"))
        self._call("cuModuleGetFunction", ctypes.byref(function), ctypes.c_void_p(module), words)
        assert function.value is not None
        return function.value

    def function_attribute(self, function: int, attribute: int) -> int:
        value = ctypes.c_int()
        handle = ctypes.c_void_p(function)
        self._call("cuFuncGetAttribute", ctypes.byref(value), ctypes.c_int(attribute), handle)
        return value.value

    def set_function_attribute(self, function: int, attribute: int, value: int) -> None:
        handle = ctypes.c_void_p(function)
        self._call("cuFuncSetAttribute", handle, ctypes.c_int(attribute), ctypes.c_int(value))

    def launch(self, config: LaunchConfig, function: int, parameters: ctypes.Array[ctypes.c_void_p]) -> None:
        """parameters: where each of the kernel's is. All is read before this returns."""
        handle = ctypes.c_void_p(function)
        self._call("cuLaunchKernelEx", ctypes.byref(config), handle, parameters, ctypes.c_void_p(None))

    def begin_recording(self, stream: int) -> None:
        """From here on, what this thread puts into the stream is recorded, and does not run."""
        self._call("cuStreamBeginCapture_v2", ctypes.c_void_p(stream), ctypes.c_int(_THIS_THREAD))

    def end_recording(self, stream: int) -> int:
        """The graph's handle, ready to be launched."""
        graph, ready = ctypes.c_void_p(), ctypes.c_void_p()
        self._call("cuStreamEndCapture", ctypes.c_void_p(stream), ctypes.byref(graph))
        try:
            self._call("cuGraphInstantiateWithFlags", ctypes.byref(ready), graph, ctypes.c_ulonglong(0))
        finally:
            self._call("cuGraphDestroy", graph)
        assert ready.value is not None
        return ready.value

    def launch_graph(self, graph: int, stream: int) -> None:
        self._call("cuGraphLaunch", ctypes.c_void_p(graph), ctypes.c_void_p(stream))

    def destroy_graph(self, graph: int) -> None:
        """What runs of it runs to its end."""
        self._call("cuGraphExecDestroy", ctypes.c_void_p(graph))

    def release_primary_context(self, ordinal: int) -> None:
        """Undoes one retaining of it; with the last one, everything in it is freed."""
        self._call("cuDevicePrimaryCtxRelease_v2", self._device(ordinal))

    def _device(self, ordinal: int) -> ctypes.c_int:
        device = ctypes.c_int()
        self._call("cuDeviceGet", ctypes.byref(device), ctypes.c_int(ordinal))
        return device

    def _attribute(self, attribute: int, device: ctypes.c_int) -> int:
        value = ctypes.c_int()
        self._call("cuDeviceGetAttribute", ctypes.byref(value), ctypes.c_int(attribute), device)
        return value.value

    def _call(self, name: str, *arguments: Any) -> None:
        code = getattr(self._library, name)(*arguments)
        if code != 0:
            raise NvidiaError(code, self._words(code))

    def _words(self, code: int) -> str:
        words = ctypes.c_char_p()
        if self._library.cuGetErrorString(ctypes.c_int(code), ctypes.byref(words)) != 0 or not words.value:
            return phrase(f"error {code}")
        return f"{words.value.decode('utf-8', 'replace').rstrip('.')} ({code})"


class Launcher:
    """Starts kernels of one parameter in one stream. Belongs to one thread: what it tells the library is made
    once, and filled in for each launch.
    """

    def __init__(self, library: NvidiaLibrary, stream: int) -> None:
        self._library = library
        overlap = LaunchAttribute(id=_PROGRAMMATIC_STREAM_SERIALIZATION)
        overlap.value[0] = 1
        self._config = LaunchConfig(stream=stream, attributes=ctypes.pointer(overlap))
        self._grid, self._block = self._config.grid, self._config.block
        self._block[:] = 1, 1, 1
        self._parameters = (ctypes.c_void_p * 1)()

    def launch(
        self,
        function: int,
        argument: ctypes.Structure,
        *,
        grid: tuple[int, int, int],
        block: int,
        shared_bytes: int,
        overlaps: bool,
    ) -> None:
        """argument: of as many bytes as the kernel takes. overlaps: it may begin while the kernel before it
        in the stream still runs (programmatic dependent launch). Raises NvidiaError.
        """
        config = self._config
        self._grid[:] = grid
        self._block[0] = block
        config.shared_bytes = shared_bytes
        config.num_attributes = 1 if overlaps else 0
        self._parameters[0] = ctypes.addressof(argument)
        self._library.launch(config, function, self._parameters)


_known_version: str | None = None


def driver_version() -> str | None:
    """The version by which its maker numbers the driver, "580.95.05"; None where NVML doesn't say.

    NVML looks at every card before it says anything, which takes some tenths of a second. A process keeps the
    driver's libraries that it once has, so one answer holds for as long as it runs.
    """
    global _known_version
    _known_version = _known_version or _ask_version()
    return _known_version


class _NvmlMemory(ctypes.Structure):
    """nvmlMemory_t, in bytes."""

    _fields_ = (("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong))


def free_bytes_of(card: str) -> int | None:
    """What is free of a card's memory, whoever has the rest. card: what `NvidiaLibrary.uuid` says. None where
    NVML doesn't say.
    """
    with suppress(AttributeError), _nvml() as library:  # of a library without these functions
        if library is None:
            return None
        for kind in ("GPU", "MIG"):  # a card, or a part of one that is split
            name, handle, found = f"{kind}-{card}".encode("ascii"), ctypes.c_void_p(), _NvmlMemory()
            if library.nvmlDeviceGetHandleByUUID(ctypes.c_char_p(name), ctypes.byref(handle)) == 0 and (
                library.nvmlDeviceGetMemoryInfo(handle, ctypes.byref(found)) == 0
            ):
                return int(found.free)
    return None


def _ask_version() -> str | None:
    text = ctypes.create_string_buffer(_NAME_BYTES)
    with suppress(AttributeError), _nvml() as library:
        if library is None or library.nvmlSystemGetDriverVersion(text, ctypes.c_uint(_NAME_BYTES)) != 0:
            return None
        return text.value.decode("ascii", "replace")
    return None


@contextmanager
def _nvml() -> Iterator[Any]:
    """The library, ready to be asked; None where there is none that answers: it is part of every driver, but
    no condition for computing.
    """
    name = "nvml.dll" if sys.platform == "win32" else "libnvidia-ml.so.1"
    try:
        library = ctypes.CDLL(name)
        answers = library.nvmlInit_v2() == 0
    except (OSError, AttributeError):
        yield None
        return
    try:
        yield library if answers else None
    finally:
        if answers:
            library.nvmlShutdown()
