"""A real card, through PyCUDA, on the device's primary context.

What it holds and how it gives that back is in `card_holdings.py`.
"""

from __future__ import annotations

import ctypes
import functools
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, cast

from engine.cuda.card_holdings import CardHoldings, LoadedKernel
from engine.cuda.driver import Address, CardFaultError, CardInfo, Kernel, Letterbox, Mark, Recording
from engine.cuda.driver_faults import card_fault, card_full, card_full_at
from engine.cuda.nvidia_library import (
    CUDA_ERROR_OUT_OF_MEMORY,
    MAX_DYNAMIC_SHARED_SIZE_BYTES,
    PREFERRED_SHARED_MEMORY_CARVEOUT,
    SHARED_SIZE_BYTES,
    Launcher,
    NvidiaError,
    NvidiaLibrary,
)
from engine.cuda.staging import StagingRing
from engine.errors import EngineError

if TYPE_CHECKING:
    from engine.cuda.driver import Bytes

STAGING_BYTES = 16 * 2**20  # of each order of uploads
LANDING_BYTES = 64 * 2**10  # downloads up to this go through pinned memory, which takes a third of the time

_ALIGNMENT = 256
_SHARED_BYTES = 48 * 2**10  # that a block may have without asking
_ALL_OF_IT = 100  # percent
_OVERLAPPING_CAPABILITY = (9, 0)
_OVERLAPPING_CUDA = (12, 3)  # the first whose recordings know a launch that may begin early
_NON_BLOCKING = 1  # CUstream_flags: this stream and the default one don't wait for each other


class PyCudaDriver:
    """A `CardDriver`. PyCUDA comes in with the first one."""

    def __init__(self, info: CardInfo, library: NvidiaLibrary, *, ordinal: int = 0) -> None:
        """ordinal: the card's, among those that programs may see. Raises ImportError, OutOfMemoryError,
        CardFaultError; nothing is held then.
        """
        import pycuda.driver as cuda

        self._info = info
        self._cuda = cuda
        self._error: type[Exception] = cuda.Error
        held = self._held = CardHoldings.retain(cuda, library, ordinal)
        self._give_back = weakref.finalize(self, held.give_back)
        self._give_back.atexit = False  # holdings see to that themselves
        self._may_overlap = False  # whether the launch to come is directly behind another one
        try:
            self._can_overlap = (
                info.compute_capability >= _OVERLAPPING_CAPABILITY
                and library.cuda_version() >= _OVERLAPPING_CUDA
            )
            library.set_current(held.context.handle)
            with held.active():
                held.stream = cuda.Stream(_NON_BLOCKING)
                held.launcher = Launcher(library, self.stream_handle)
                held.landing = cuda.pagelocked_empty(LANDING_BYTES, "uint8")
                held.ring = StagingRing(cuda.pagelocked_empty(STAGING_BYTES, "uint8"))
        except NvidiaError as error:
            self.close()
            raise card_fault(str(error), doing="a context", lost=False) from error
        except self._error as error:
            fault = self._explained(error, "a context")
            self.close()
            raise fault from error

    @property
    def info(self) -> CardInfo:
        return self._info

    @property
    def stream_handle(self) -> int:
        """Of the one stream, for what PyCUDA has no words for."""
        return int(self._held.stream.handle)

    def free_bytes(self) -> int:
        with self._faults_told("a question"):
            free, _ = self._cuda.mem_get_info()
        return int(free)

    def allocate(self, num_bytes: int) -> Address:
        try:
            with self._held.active():
                allocation = self._cuda.mem_alloc(max(1, num_bytes))
        except self._cuda.MemoryError as error:
            raise card_full(num_bytes, self._free_bytes_if_known()) from error
        except self._error as error:
            raise self._explained(error, "an allocation") from error
        address = int(allocation)
        assert address % _ALIGNMENT == 0
        self._held.allocations[address] = allocation
        return Address(address)

    def free(self, address: Address) -> None:
        allocation = self._held.allocations[address]
        if self._held.is_lost:
            return  # it goes with the context
        with self._faults_told("its work"):
            self._wait_for_all()
            with self._held.active():
                allocation.free()
        del self._held.allocations[address]

    def upload(self, target: Address, source: Bytes) -> None:
        self._stage(target, source, self._held.ring, self._held.stream)

    def upload_ahead(self, target: Address, source: Bytes) -> None:
        self._stage(target, source, self._held.ahead_ring, self._held.ahead_stream)

    def _stage(self, target: Address, source: Bytes, ring: StagingRing | None, stream: Any) -> None:
        """The source may be memory that the system moves: the card only reads what is copied from it."""
        assert ring is not None
        with self._faults_told("an upload"):
            for start in range(0, source.nbytes, ring.most_bytes):
                piece = source[start : start + ring.most_bytes]
                ring.send(piece, functools.partial(self._send, stream, target + start))

    def _send(self, stream: Any, target: int, staged: Bytes) -> Callable[[], None]:
        """Returns what waits until the card has read it."""
        held = self._held
        event = held.idle_events.pop() if held.idle_events else self._new_event()  # nothing is sent without
        self._cuda.memcpy_htod_async(target, staged, stream)
        event.record(stream)

        def wait() -> None:
            event.synchronize()
            held.idle_events.append(event)

        return wait

    def _new_event(self) -> Any:
        with self._held.active():
            event = self._cuda.Event(self._cuda.event_flags.DISABLE_TIMING)
        self._held.events.append(event)
        return event

    def download(self, target: Bytes, source: Address) -> None:
        num_bytes = target.nbytes
        if num_bytes == 0:
            return
        through_landing = num_bytes <= LANDING_BYTES
        to = self._held.landing[:num_bytes] if through_landing else target
        with self._faults_told("a download"):
            self._cuda.memcpy_dtoh_async(to, source, self._held.stream)
            self._held.stream.synchronize()
        if through_landing:
            target[:] = to

    def copy(self, target: Address, source: Address, num_bytes: int) -> None:
        if num_bytes:
            with self._faults_told("a copy"):
                self._cuda.memcpy_dtod_async(target, source, num_bytes, self._held.stream)

    def fill(self, target: Address, value: int, num_bytes: int) -> None:
        if num_bytes:
            with self._faults_told("a fill"):
                self._cuda.memset_d8_async(target, value, num_bytes, self._held.stream)

    def load(self, code: bytes, names: list[str]) -> dict[str, Kernel]:
        with self._library_faults_told("the kernels"):
            module = self._held.library.load_module(code)
        self._held.modules.append(module)
        return {name: Kernel(self._kernel(module, name)) for name in names}

    def _kernel(self, module: int, name: str) -> LoadedKernel:
        library = self._held.library
        with self._library_faults_told(f"the kernel {name}"):
            function = library.function(module, name)
            # Asked for now, this also has the driver bring the kernel's code to the card now.
            shared = library.function_attribute(function, SHARED_SIZE_BYTES)
            # Where kernels that follow each other split a processor's memory in different ways, it has to be
            # idle in between: so all of them take the same.
            library.set_function_attribute(function, PREFERRED_SHARED_MEMORY_CARVEOUT, _ALL_OF_IT)
        kernel = LoadedKernel(name, function, _SHARED_BYTES - shared)
        self._held.kernels.append(kernel)
        return kernel

    def launch(
        self,
        kernel: Kernel,
        arguments: ctypes.Structure,
        *,
        grid: tuple[int, int, int],
        block: int,
        shared_bytes: int = 0,
        overlaps: bool = False,
    ) -> None:
        loaded, launcher = cast("LoadedKernel", kernel), self._held.launcher
        function = loaded.function
        assert function is not None, "it was given back"
        assert launcher is not None
        try:
            if shared_bytes > loaded.most_shared_bytes:
                self._held.library.set_function_attribute(
                    function, MAX_DYNAMIC_SHARED_SIZE_BYTES, shared_bytes
                )
                loaded.most_shared_bytes = shared_bytes
            launcher.launch(
                function,
                arguments,
                grid=grid,
                block=block,
                shared_bytes=shared_bytes,
                overlaps=overlaps and self._may_overlap,
            )
        except NvidiaError as error:
            raise self._explained(error, f"the kernel {loaded.name}") from error
        self._may_overlap = self._can_overlap

    def record(self, work: Callable[[], None]) -> Recording:
        library, stream = self._held.library, self.stream_handle
        with self._refusals_told("a recording"):
            library.begin_recording(stream)
        try:
            work()
        except BaseException:
            self._may_overlap = False
            with suppress(NvidiaError):  # it is invalid, and ending it says so
                library.destroy_graph(library.end_recording(stream))
            raise
        with self._refusals_told("a recording"):
            graph = library.end_recording(stream)
        self._held.graphs.append(graph)
        return Recording(graph)

    def replay(self, recording: Recording) -> None:
        with self._refusals_told("recorded work"):
            self._held.library.launch_graph(cast("int", recording), self.stream_handle)

    def discard(self, recording: Recording) -> None:
        graph = cast("int", recording)
        self._held.graphs.remove(graph)
        if not self._held.is_lost:
            with self._refusals_told("its work"):
                self._held.library.destroy_graph(graph)

    def open_letterbox(self, num_bytes: int) -> Letterbox:
        with self._faults_told("memory that it writes for the computer"), self._held.active():
            flags = self._cuda.host_alloc_flags.DEVICEMAP
            contents = self._cuda.pagelocked_empty(num_bytes, "uint8", mem_flags=flags)
            contents[:] = 0
            self._held.letterboxes.append(contents)
            return Letterbox(Address(int(contents.base.get_device_pointer())), contents)

    def new_mark(self, *, ahead: bool = True) -> Mark:
        held = self._held
        with self._faults_told("a second stream" if ahead else "a mark"):
            if ahead and held.ahead_ring is None:
                with held.active():
                    held.ahead_stream = self._cuda.Stream(_NON_BLOCKING)
                    held.ahead_ring = StagingRing(self._cuda.pagelocked_empty(STAGING_BYTES, "uint8"))
            return Mark(self._new_event())

    def mark_work(self, mark: Mark) -> None:
        self._set_mark(mark, self._held.stream)

    def mark_uploads(self, mark: Mark) -> None:
        self._set_mark(mark, self._held.ahead_stream)

    def _set_mark(self, mark: Mark, stream: Any) -> None:
        with self._faults_told("its work"):
            cast("Any", mark).record(stream)

    def wait(self, mark: Mark) -> None:
        with self._faults_told("its work"):
            cast("Any", mark).synchronize()

    def work_waits(self, mark: Mark) -> None:
        self._wait_for_mark(mark, self._held.stream)

    def uploads_wait(self, mark: Mark) -> None:
        self._wait_for_mark(mark, self._held.ahead_stream)

    def _wait_for_mark(self, mark: Mark, stream: Any) -> None:
        """On the card, and for nothing where the mark was never set: an event is past then."""
        with self._faults_told("its work"):
            stream.wait_for_event(mark)

    def synchronize(self) -> None:
        with self._faults_told("its work"):
            self._wait_for_all()

    def _wait_for_all(self) -> None:
        self._held.stream.synchronize()
        if self._held.ahead_stream is not None:
            self._held.ahead_stream.synchronize()

    def close(self) -> None:
        self._give_back()

    @contextmanager
    def _faults_told(self, doing: str) -> Iterator[None]:
        """Of anything but launches."""
        self._may_overlap = False
        try:
            yield
        except self._error as error:
            raise self._explained(error, doing) from error

    @contextmanager
    def _library_faults_told(self, doing: str) -> Iterator[None]:
        """Where the driver's own library is asked."""
        try:
            yield
        except NvidiaError as error:
            raise self._explained(error, doing) from error

    @contextmanager
    def _refusals_told(self, doing: str) -> Iterator[None]:
        """Where it is asked to record and to repeat. That can be done without, also for want of room."""
        self._may_overlap = False
        try:
            yield
        except NvidiaError as error:
            raise self._fault(error, doing) from error

    def _explained(self, error: Exception, doing: str) -> EngineError:
        if isinstance(error, self._cuda.MemoryError) or (
            isinstance(error, NvidiaError) and error.code == CUDA_ERROR_OUT_OF_MEMORY
        ):
            return card_full_at(doing, self._free_bytes_if_known())
        return self._fault(error, doing)

    def _fault(self, error: Exception, doing: str) -> CardFaultError:
        if not self._held.is_lost and self._answers_nothing():
            self._held.lose(error)
        return card_fault(str(error), doing=doing, lost=self._held.is_lost)

    def _answers_nothing(self) -> bool:
        """After some errors every call fails, with the same words: it is asked what can't fail by itself."""
        try:
            self._cuda.mem_get_info()
            if self._held.stream is not None:
                self._held.stream.is_done()
        except self._error as error:
            return "captur" not in str(error)  # nothing may be asked while calls are recorded into a graph
        return False

    def _free_bytes_if_known(self) -> int | None:
        try:
            free, _ = self._cuda.mem_get_info()
        except self._error:
            return None  # another error is being put into words
        return int(free)
