"""PyCUDA's driver module and the NVIDIA library under it, on the processor's memory: with PyCUDA's stack of
contexts for each thread, its refusal to free from another thread, and errors that stay.

`card.sticky` is what every call fails with from then on, `card.failures` what the next call of a function
fails with.
"""

from __future__ import annotations

import ctypes
import threading
import weakref
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np

from engine.cuda.nvidia_library import LaunchConfig, NvidiaError

TOTAL_BYTES = 64 * 2**20
HANDLE = 4711


class Error(Exception):
    pass


class MemoryError(Error):
    pass


class LogicError(Error):
    pass


@dataclass(frozen=True)
class Launch:
    """overlaps: whether it may begin while the one before it runs."""

    kernel: str
    grid: tuple[int, ...]
    block: tuple[int, ...]
    arguments: bytes
    shared_bytes: int = 0
    overlaps: bool = False


class FakeCard:
    """What is alive on it, and what was asked of it."""

    def __init__(self) -> None:
        self.retained = 0
        self.memory: dict[int, np.ndarray] = {}
        self.alive: list[str] = []  # names of objects that hold something
        self.complaints: list[str] = []  # what PyCUDA would print, or end the process for
        self.launches: list[Launch] = []
        self.recorded: list[Launch] | None = None  # while launches are recorded
        self.sticky: str | None = None
        self.failures: dict[str, Error] = {}
        self.current: dict[int, int | None] = defaultdict(lambda: None)  # the context of each thread
        self.stacks: dict[int, list[FakeContext]] = defaultdict(list)  # PyCUDA's own
        self.streams: weakref.WeakSet[FakeStream] = weakref.WeakSet()
        self.cuda = self._module()
        self.library = FakeNvidiaLibrary(self)

    @property
    def stack(self) -> list[FakeContext]:
        return self.stacks[threading.get_ident()]

    def used(self) -> int:
        return sum(block.nbytes for block in self.memory.values())

    def call(self, function: str) -> None:
        """Raises what this function has to fail with now."""
        if function in self.failures:
            raise self.failures.pop(function)
        if self.sticky is not None:
            raise LogicError(f"{function} failed: {self.sticky}")
        if self.current[threading.get_ident()] != HANDLE or not self.retained:
            raise LogicError(f"{function} failed: invalid device context")

    def release(self) -> None:
        self.retained -= 1
        if self.retained == 0:
            self.memory.clear()
            self.alive.clear()

    def block(self, address: int) -> tuple[np.ndarray, int]:
        start = max(base for base in self.memory if base <= address)
        return self.memory[start], address - start

    def read(self, address: int, num_bytes: int) -> np.ndarray:
        block, offset = self.block(address)
        return block[offset : offset + num_bytes]

    def _module(self) -> SimpleNamespace:
        card = self

        def init() -> None:
            if "cuInit" in card.failures:
                raise card.failures.pop("cuInit")

        def mem_alloc(num_bytes: int) -> FakeAllocation:
            card.call("cuMemAlloc")
            if card.used() + num_bytes > TOTAL_BYTES:
                raise MemoryError("cuMemAlloc failed: out of memory")
            return FakeAllocation(card, num_bytes)

        def mem_get_info() -> tuple[int, int]:
            card.call("cuMemGetInfo")
            return TOTAL_BYTES - card.used(), TOTAL_BYTES

        def pagelocked_empty(num_bytes: int, dtype: str, *, mem_flags: int = 0) -> np.ndarray:
            card.call("cuMemHostAlloc")
            require_context(card)
            assert dtype == "uint8"
            return np.asarray(FakeHostMemory(card, num_bytes, is_mapped=mem_flags == 2))

        def memcpy_htod_async(target: int, source: np.ndarray, stream: FakeStream) -> None:
            card.call("cuMemcpyHtoDAsync")
            stream.later.append(lambda: np.copyto(card.read(target, source.nbytes), source))

        def memcpy_dtoh_async(target: np.ndarray, source: int, stream: FakeStream) -> None:
            card.call("cuMemcpyDtoHAsync")
            stream.later.append(lambda: np.copyto(target, card.read(source, target.nbytes)))

        def memcpy_dtod_async(target: int, source: int, num_bytes: int, stream: FakeStream) -> None:
            card.call("cuMemcpyDtoDAsync")
            stream.later.append(lambda: np.copyto(card.read(target, num_bytes), card.read(source, num_bytes)))

        def memset_d8_async(target: int, value: int, num_bytes: int, stream: FakeStream) -> None:
            card.call("cuMemsetD8Async")
            stream.later.append(lambda: card.read(target, num_bytes).fill(value))

        def synchronize() -> None:
            card.call("cuCtxSynchronize")
            for stream in card.streams:
                stream.synchronize()

        return SimpleNamespace(
            Error=Error,
            MemoryError=MemoryError,
            LogicError=LogicError,
            init=init,
            Device=lambda ordinal: SimpleNamespace(retain_primary_context=lambda: FakeContext(card)),
            Context=SimpleNamespace(
                pop=lambda: pop(card),
                get_current=lambda: card.stack[-1] if card.stack else None,
                synchronize=synchronize,
            ),
            Stream=lambda flags: FakeStream(card),
            Event=lambda flags: FakeEvent(card),
            host_alloc_flags=SimpleNamespace(DEVICEMAP=2),
            event_flags=SimpleNamespace(DISABLE_TIMING=2),
            mem_alloc=mem_alloc,
            mem_get_info=mem_get_info,
            pagelocked_empty=pagelocked_empty,
            memcpy_htod_async=memcpy_htod_async,
            memcpy_dtoh_async=memcpy_dtoh_async,
            memcpy_dtod_async=memcpy_dtod_async,
            memset_d8_async=memset_d8_async,
        )


def pop(card: FakeCard) -> None:
    if "cuCtxPopCurrent" in card.failures:
        raise card.failures.pop("cuCtxPopCurrent")
    if not card.stack:
        raise LogicError("m_stack::pop failed: invalid device context")
    card.stack.pop()


def require_context(card: FakeCard) -> None:
    if not card.stack:
        raise LogicError("explicit_context_dependent failed: invalid device context")


class FakeContext:
    handle = HANDLE

    def __init__(self, card: FakeCard) -> None:
        if "cuDevicePrimaryCtxRetain" in card.failures:
            raise card.failures["cuDevicePrimaryCtxRetain"]
        if card.sticky is not None:  # also where the context was released or reset in between
            raise LogicError(f"cuDevicePrimaryCtxRetain failed: {card.sticky}")
        card.retained += 1
        self.card, self.thread, self.is_valid = card, threading.get_ident(), True

    def push(self) -> None:
        if "cuCtxPushCurrent" in self.card.failures:
            raise self.card.failures.pop("cuCtxPushCurrent")
        self.card.stack.append(self)

    def detach(self) -> None:
        if not self.is_valid:
            raise LogicError("context::detach failed: invalid device context")
        self.is_valid = False
        if threading.get_ident() == self.thread:
            self.card.release()
            self.card.stack[:] = [context for context in self.card.stack if context is not self]


class Held:
    """An object that PyCUDA frees when it is dropped, on the thread of its context, or not at all."""

    def __init__(self, card: FakeCard, name: str) -> None:
        require_context(card)
        self.card, self.name, self.context = card, name, card.stack[-1]
        card.alive.append(name)

    def __del__(self) -> None:
        if not hasattr(self, "context") or not self.context.is_valid or self.name not in self.card.alive:
            return
        if threading.get_ident() != self.context.thread:
            self.card.complaints.append(f"{self.name} in out-of-thread context could not be cleaned up")
        elif self.card.sticky is not None:
            self.card.complaints.append(f"a clean-up operation failed: {self.name}")
        elif not self.card.stack:
            self.card.complaints.append(f"{self.name} was dropped without a context: its push may fail")
        else:
            self.card.alive.remove(self.name)


class FakeAllocation(Held):
    next_address = 2**40

    def __init__(self, card: FakeCard, num_bytes: int) -> None:
        self.address = FakeAllocation.next_address
        FakeAllocation.next_address += -(-num_bytes // 256) * 256 + 256
        super().__init__(card, f"allocation {self.address}")
        card.memory[self.address] = np.full(num_bytes, 0xAB, np.uint8)

    def __int__(self) -> int:
        return self.address

    def free(self) -> None:
        self.card.call("cuMemFree")
        del self.card.memory[self.address]
        self.card.alive.remove(self.name)


class FakeHostMemory:
    """What an array of pinned memory is based on. Mapped, it is in the card's memory, too."""

    def __init__(self, card: FakeCard, num_bytes: int, *, is_mapped: bool) -> None:
        self._memory = np.full(num_bytes, 0xAB, np.uint8)
        self._address = FakeAllocation.next_address if is_mapped else None
        if is_mapped:
            FakeAllocation.next_address += -(-num_bytes // 256) * 256 + 256
            card.memory[self._address] = self._memory
        self.__array_interface__ = self._memory.__array_interface__

    def get_device_pointer(self) -> int:
        assert self._address is not None, "the memory is not mapped"
        return self._address


class FakeStream(Held):
    """Work is done when somebody waits for it."""

    handle = 99

    def __init__(self, card: FakeCard) -> None:
        card.call("cuStreamCreate")
        super().__init__(card, "stream")
        self.later: list[Any] = []
        card.streams.add(self)

    def synchronize(self) -> None:
        self.card.call("cuStreamSynchronize")
        self.do(len(self.later))

    def do(self, count: int) -> None:
        for _ in range(count):
            self.later.pop(0)()

    def wait_for_event(self, event: FakeEvent) -> None:
        self.card.call("cuStreamWaitEvent")
        self.later.append(event.what_it_stands_for_now())

    def is_done(self) -> bool:
        self.card.call("cuStreamQuery")
        return not self.later


class FakeEvent(Held):
    count = 0

    def __init__(self, card: FakeCard) -> None:
        card.call("cuEventCreate")
        FakeEvent.count += 1
        self.point: FakePoint | None = None
        super().__init__(card, f"event {FakeEvent.count}")

    def record(self, stream: FakeStream) -> FakeEvent:
        self.card.call("cuEventRecord")
        self.point = FakePoint(stream)
        stream.later.append(self.point.pass_)
        return self

    def what_it_stands_for_now(self) -> Callable[[], None]:
        """It may be recorded anew, which changes nothing for those that wait already."""
        return self.point.reach if self.point is not None else lambda: None

    def synchronize(self) -> None:
        self.card.call("cuEventSynchronize")
        self.what_it_stands_for_now()()


class FakePoint:
    """Where an event was recorded."""

    def __init__(self, stream: FakeStream) -> None:
        self.stream, self.is_past = stream, False

    def pass_(self) -> None:
        self.is_past = True

    def reach(self) -> None:
        """Have the stream do what comes before."""
        if not self.is_past:
            self.stream.do(self.stream.later.index(self.pass_) + 1)


@dataclass
class FakeFunction:
    """attributes: of CUfunction_attribute, by number; those that a kernel has from the start."""

    name: str
    module: int
    attributes: dict[int, int] = field(default_factory=lambda: {1: 1024, 8: 47 * 1024, 9: -1})


class FakeNvidiaLibrary:
    """What `engine.cuda.nvidia_library.NvidiaLibrary` does for a driver. Kernels take `Arguments`."""

    def __init__(self, card: FakeCard) -> None:
        self.card = card
        self.version = (12, 9)
        self.functions: dict[int, FakeFunction] = {}  # by handle
        self.modules: dict[int, list[str]] = {}
        self.graphs: dict[int, list[Launch]] = {}
        self._next_handle = 1

    def cuda_version(self) -> tuple[int, int]:
        return self.version

    def set_current(self, context: int) -> None:
        self.card.current[threading.get_ident()] = context

    def leave(self, context: int) -> None:
        self.card.current[threading.get_ident()] = None

    def release_primary_context(self, ordinal: int) -> None:
        self.card.release()

    def load_module(self, code: bytes) -> int:
        with self._called("cuModuleLoadData"):
            return self._new_handle("module", self.modules, code.decode().split())

    def unload_module(self, module: int) -> None:
        with self._called("cuModuleUnload"):
            self._drop("module", self.modules, module)
            self.functions = {key: each for key, each in self.functions.items() if each.module != module}

    def function(self, module: int, name: str) -> int:
        with self._called("cuModuleGetFunction"):
            if name not in self.modules[module]:
                raise NvidiaError(500, "named symbol not found (500)")
            self._next_handle += 1
            self.functions[self._next_handle] = FakeFunction(name, module)
            return self._next_handle

    def function_attribute(self, function: int, attribute: int) -> int:
        with self._called("cuFuncGetAttribute"):
            return self.functions[function].attributes[attribute]

    def set_function_attribute(self, function: int, attribute: int, value: int) -> None:
        with self._called("cuFuncSetAttribute"):
            assert attribute in self.functions[function].attributes
            self.functions[function].attributes[attribute] = value

    def launch(self, config: LaunchConfig, function: int, parameters: Any) -> None:
        with self._called("cuLaunchKernelEx"):
            kernel = self.functions[function]
            assert config.stream == FakeStream.handle
            if config.shared_bytes > kernel.attributes[8]:
                raise NvidiaError(1, "invalid argument (1)")
            launches = self.card.launches if self.card.recorded is None else self.card.recorded
            launches.append(
                Launch(
                    kernel.name,
                    tuple(config.grid),
                    tuple(config.block),
                    ctypes.string_at(parameters[0], ctypes.sizeof(Arguments)),
                    config.shared_bytes,
                    overlaps=config.num_attributes == 1,
                )
            )

    def begin_recording(self, stream: int) -> None:
        with self._called("cuStreamBeginCapture"):
            self.card.recorded = []

    def end_recording(self, stream: int) -> int:
        recorded, self.card.recorded = self.card.recorded, None
        assert recorded is not None
        with self._called("cuStreamEndCapture"):
            return self._new_handle("graph", self.graphs, recorded)

    def launch_graph(self, graph: int, stream: int) -> None:
        with self._called("cuGraphLaunch"):
            self.card.launches.extend(self.graphs[graph])

    def destroy_graph(self, graph: int) -> None:
        with self._called("cuGraphExecDestroy"):
            self._drop("graph", self.graphs, graph)

    @contextmanager
    def _called(self, function: str) -> Iterator[None]:
        try:
            self.card.call(function)
        except Error as error:
            _, _, words = str(error).partition(" failed: ")
            raise NvidiaError(2 if isinstance(error, MemoryError) else 700, words) from error
        yield

    def _new_handle(self, name: str, things: dict[int, Any], thing: object) -> int:
        self._next_handle += 1
        things[self._next_handle] = thing
        self.card.alive.append(f"{name} {self._next_handle}")
        return self._next_handle

    def _drop(self, name: str, things: dict[int, Any], handle: int) -> None:
        del things[handle]
        self.card.alive.remove(f"{name} {handle}")


class Arguments(ctypes.Structure):
    _fields_ = (("address", ctypes.c_int64), ("count", ctypes.c_int32))
