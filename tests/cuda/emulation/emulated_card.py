"""A card that isn't there: `CardDriver` on the processor, running the real kernels. Linux with g++ or clang.

    compiler = EmulatedCompiler(folder)           # a KernelCompiler; keeps libraries in `folder`
    compiler.compiled                             # how often the system's compiler ran
    why_no_emulation() -> str | None              # a reason to skip; None where it works

    card = EmulatedCard(total_bytes=2**30, order_seed=0, time_limit_s=120, lagging="uploads")
                                                  # a CardDriver; belongs to this thread
    card.counts                                   # Counts: launches by kernel, copies, bytes, allocations
    card.counts = Counts()                        # ... begins anew
    card.total_bytes = n; card.foreign_bytes = n  # its memory, and what other programs hold of it
    card.used_bytes                               # what its own allocations take
    card.live                                     # {address: bytes} of what isn't freed
    card.fail_allocation(n)                       # n-th from now (1: the next) raises OutOfMemoryError
    card.fault_at_launch(n)                       # n-th raises CardFaultError, and so does what follows
    card.lose_at_launch(n)                        # n-th raises CardLostError, and so does what follows
    card.lose_at_call(n)                          # n-th of any kind does
    card.lose()                                   # from now on
    card.recordings                               # what was recorded and not discarded
    card.closed                                   # whether its user has closed it
    card.failed                                   # whether there was such a fault; no call works then
    card.check()                                  # AssertionError: damaged guards, freed memory, a leak

Memory that was just allocated, and shared memory at the start of a block, is poison: NaN as float, half and
bfloat16, -1 as a whole number. Each allocation has guards on both sides, which are looked at after every
launch; shared memory has them, too, and what lies beyond those can't be touched. What is freed stays aside
for a while, filled with NaN, and is looked at too. `order_seed` other than 0 changes the order in which
blocks, and the threads of a block, come to their turn.

Work and uploads ahead are done in an order that marks allow, and no later or earlier one than they have to:
with lagging "uploads", work is done as it comes and uploads ahead as late as may be, so that work that fails
to wait for them finds what was there before; with "work", work is done as late as may be and uploads ahead as
they come, so that they overwrite what work is still to read. A fault of a kernel then comes late, too.

Faults of a kernel (a guard written, an address or alignment that is wrong, an index outside of an array,
threads that wait or run for ever) raise CardFaultError with kernel, block, thread and, where known, the line.
A mistake of the caller (an address that isn't the card's, another thread, use after `close`) is an
AssertionError.
"""

from __future__ import annotations

import ctypes
import sys
import threading
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from emulated_compiler import EmulatedCompiler, why_no_emulation
from guarded_memory import GUARD, GuardedMemory, rounded
from kernel_library import EmulatedKernel, KernelLibrary
from work_orders import EmulatedMark, Order, WorkOrders

from engine.cuda.driver import (
    Address,
    CardFaultError,
    CardInfo,
    CardLostError,
    Kernel,
    Letterbox,
    Mark,
    Recording,
)
from engine.cuda.lost_card import remember_loss
from engine.errors import OutOfMemoryError

if TYPE_CHECKING:
    from engine.cuda.driver import Bytes

__all__ = ["Counts", "EmulatedCard", "EmulatedCompiler", "why_no_emulation"]


@dataclass
class Counts:
    """What was asked of the card. launches: by the kernel's name; bytes: by the kind of copy; calls: of any
    kind, which are compared with no others.
    """

    calls: int = field(default=0, compare=False)
    launches: Counter[str] = field(default_factory=Counter)
    uploads: int = 0
    upload_bytes: int = 0
    uploads_ahead: int = 0
    ahead_bytes: int = 0
    downloads: int = 0
    download_bytes: int = 0
    copies: int = 0
    copy_bytes: int = 0
    fills: int = 0
    allocations: int = 0
    frees: int = 0
    replays: int = 0
    synchronizations: int = 0
    waits: int = 0


_libraries: dict[bytes, KernelLibrary] = {}  # of this process: code is never unloaded


class EmulatedCard:
    """See the module. compute_capability, multiprocessors: what the card says of itself. Kernels are compiled
    for its compute capability, and a block may have as much shared memory as on such a card. Blocks may wait
    for others of their launch: of more blocks than it has multiprocessors, fewer than these.
    """

    def __init__(
        self,
        *,
        total_bytes: int = 1 << 30,
        order_seed: int = 0,
        time_limit_s: int = 120,
        compute_capability: tuple[int, int] = (8, 6),
        multiprocessors: int = 8,
        lagging: Order = "uploads",
    ) -> None:
        assert why_no_emulation() is None, why_no_emulation()
        self.total_bytes = total_bytes
        self.foreign_bytes = 0
        self.order_seed = order_seed
        self.time_limit_s = time_limit_s
        self.counts = Counts()
        self._compute_capability = compute_capability
        self._multiprocessors = multiprocessors
        self._thread = threading.get_ident()
        self._memory = GuardedMemory()
        self._fault: CardFaultError | None = None  # what every call raises from now on
        self._allocation_to_fail = 0  # calls until then; 0: never
        self._launches_until: dict[str, int] = {}  # "fault", "loss"
        self._calls_until_loss = 0  # 0: never
        self._faulty_kernel = False
        self._closed = False
        self._orders = WorkOrders(lagging)
        self._recorded: list[tuple[Any, ...]] | None = None  # launches, while they are recorded
        self.recordings: list[Recording] = []

    # What tests set and ask for

    @property
    def used_bytes(self) -> int:
        return self._memory.used_bytes

    @property
    def live(self) -> dict[int, int]:
        return self._memory.live

    @property
    def num_letterboxes(self) -> int:
        """That were ever opened: of the computer's memory."""
        return self._memory.num_letterboxes

    @property
    def failed(self) -> bool:
        """There was a fault: no call works any more."""
        return self._fault is not None

    @property
    def closed(self) -> bool:
        return self._closed

    def fail_allocation(self, number: int = 1) -> None:
        assert number >= 1
        self._allocation_to_fail = number

    def fault_at_launch(self, number: int = 1) -> None:
        assert number >= 1
        self._launches_until["fault"] = number

    def lose_at_launch(self, number: int = 1) -> None:
        assert number >= 1
        self._launches_until["loss"] = number

    def lose_at_call(self, number: int = 1) -> None:
        assert number >= 1
        self._calls_until_loss = number

    def lose(self) -> None:
        self._orders.drop()
        self._fault = CardLostError("The card doesn't answer.", "Load the model again.")

    def check(self, *, leaks: bool = True) -> None:
        """AssertionError for damaged guards, writes to freed memory and, with `leaks`, what isn't freed.
        After a fault of a kernel there is nothing to check.
        """
        if self._faulty_kernel:
            return
        self._memory.check()
        # A card that failed gives nothing back before `close`.
        assert not leaks or self._fault is not None or not self.live, f"never freed: {self.live}"

    # What a CardDriver does

    @property
    def info(self) -> CardInfo:
        return CardInfo(
            name="Emulated card",
            compute_capability=self._compute_capability,
            total_bytes=self.total_bytes,
            multiprocessors=self._multiprocessors,
            driver="emulated",
        )

    def free_bytes(self) -> int:
        self._enter()
        return max(0, self.total_bytes - self.foreign_bytes - self.used_bytes)

    def allocate(self, num_bytes: int) -> Address:
        self._enter()
        assert num_bytes > 0, "an allocation of no bytes"
        self.counts.allocations += 1
        free = self.free_bytes()
        fails = self._allocation_to_fail == 1
        self._allocation_to_fail = max(0, self._allocation_to_fail - 1)
        if fails or rounded(num_bytes) > free:
            raise OutOfMemoryError(f"The card has {free} bytes free, and {num_bytes} are needed.")
        return Address(self._memory.allocate(num_bytes))

    def free(self, address: Address) -> None:
        self._enter()
        self._orders.finish()
        self._memory.free(address)
        self.counts.frees += 1

    def upload(self, target: Address, source: Bytes) -> None:
        self._enter()
        self._orders.add("work", self._write(target, source))
        self.counts.uploads += 1
        self.counts.upload_bytes += source.size

    def download(self, target: Bytes, source: Address) -> None:
        self._enter()
        _check_host(target)
        assert target.flags.writeable
        self._orders.finish("work")
        target[:] = self._memory.part(source, target.size)
        self.counts.downloads += 1
        self.counts.download_bytes += target.size

    def copy(self, target: Address, source: Address, num_bytes: int) -> None:
        self._enter()
        assert target + num_bytes <= source or source + num_bytes <= target, "the two overlap"
        to, found = self._memory.part(target, num_bytes), self._memory.part(source, num_bytes)
        self._orders.add("work", lambda: np.copyto(to, found))
        self.counts.copies += 1
        self.counts.copy_bytes += num_bytes

    def fill(self, target: Address, value: int, num_bytes: int) -> None:
        self._enter()
        assert 0 <= value <= 255
        to = self._memory.part(target, num_bytes)
        self._orders.add("work", lambda: to.fill(value))
        self.counts.fills += 1

    def load(self, code: bytes, names: list[str]) -> dict[str, Kernel]:
        self._enter()
        if code not in _libraries:
            try:
                _libraries[code] = KernelLibrary(code)
            except OSError as error:
                raise CardFaultError(f"The card can't load the kernels: {error}.") from error
        return {name: Kernel(_libraries[code].kernel(name)) for name in names}

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
        """overlaps: whatever it is, a kernel begins when the one before has ended."""
        self._enter()
        assert isinstance(kernel, EmulatedKernel)
        given = ctypes.sizeof(arguments)
        assert given == kernel.size, f"{kernel.name} takes {kernel.size} bytes of arguments, not {given}"
        assert all(0 <= number < 1 << 32 for number in (*grid, block, shared_bytes))
        if self._recorded is not None:
            copy = type(arguments).from_buffer_copy(arguments)
            self._recorded.append((kernel, copy, grid, block, shared_bytes))
            return
        self.counts.launches[kernel.name] += 1
        self._raise_planned_fault()
        of_now = type(arguments).from_buffer_copy(arguments)
        self._orders.add("work", lambda: self._run(kernel, of_now, grid, block, shared_bytes))

    def record(self, work: Callable[[], None]) -> Recording:
        self._enter()
        self._recorded = []
        try:
            work()
            recording = Recording(tuple(self._recorded))
        finally:
            self._recorded = None
        self.recordings.append(recording)
        return recording

    def replay(self, recording: Recording) -> None:
        self._enter()
        assert any(recording is each for each in self.recordings), "it was discarded"
        self.counts.replays += 1
        for kernel, arguments, grid, block, shared_bytes in cast("tuple[Any, ...]", recording):
            self.launch(kernel, arguments, grid=grid, block=block, shared_bytes=shared_bytes)

    def discard(self, recording: Recording) -> None:
        index = next(i for i, each in enumerate(self.recordings) if each is recording)
        del self.recordings[index]

    def open_letterbox(self, num_bytes: int) -> Letterbox:
        self._enter()
        box = self._memory.open_letterbox(num_bytes)
        return Letterbox(Address(box.address), box.contents)

    def new_mark(self, *, ahead: bool = True) -> Mark:
        self._enter()
        return Mark(EmulatedMark())

    def wait(self, mark: Mark) -> None:
        self._enter()
        assert isinstance(mark, EmulatedMark)
        self._orders.wait(None, mark)
        self.counts.waits += 1

    def mark_work(self, mark: Mark) -> None:
        self._mark(mark, "work")

    def work_waits(self, mark: Mark) -> None:
        self._wait(mark, "work")

    def upload_ahead(self, target: Address, source: Bytes) -> None:
        self._enter()
        self._orders.add("uploads", self._write(target, source))
        self.counts.uploads_ahead += 1
        self.counts.ahead_bytes += source.size

    def mark_uploads(self, mark: Mark) -> None:
        self._mark(mark, "uploads")

    def uploads_wait(self, mark: Mark) -> None:
        self._wait(mark, "uploads")

    def synchronize(self) -> None:
        self._enter()
        self._orders.finish()
        self.counts.synchronizations += 1

    def close(self) -> None:
        """What isn't freed yet stays in `live`, for `check` to tell."""
        if self._fault is None:
            with suppress(CardFaultError):
                self._orders.finish()
        self._closed = True

    # How

    def _enter(self) -> None:
        caller = sys._getframe(1).f_code.co_name
        assert self._recorded is None or caller == "launch", f"{caller} while launches are recorded"
        assert threading.get_ident() == self._thread, "a driver belongs to the thread that opened it"
        assert not self._closed, "the driver is closed"
        self.counts.calls += 1
        if self._calls_until_loss == 1:
            self.lose()
        self._calls_until_loss = max(0, self._calls_until_loss - 1)
        if self._fault is not None:
            if isinstance(self._fault, CardLostError):
                remember_loss("the emulated card was lost")
            raise self._fault

    def _mark(self, mark: Mark, order: Order) -> None:
        self._enter()
        assert isinstance(mark, EmulatedMark)
        self._orders.set(order, mark)

    def _wait(self, mark: Mark, order: Order) -> None:
        self._enter()
        assert isinstance(mark, EmulatedMark)
        self._orders.wait(order, mark)

    def _write(self, target: Address, source: Bytes) -> Callable[[], None]:
        """The bytes that the source has now, later."""
        _check_host(source)
        to, found = self._memory.part(target, source.size), source.copy()
        return lambda: np.copyto(to, found)

    def _run(
        self,
        kernel: EmulatedKernel,
        arguments: ctypes.Structure,
        grid: tuple[int, int, int],
        block: int,
        shared_bytes: int,
    ) -> None:
        kernel.library.set_up(
            order_seed=self.order_seed,
            time_limit_s=self.time_limit_s,
            most_shared_bytes=_most_shared_bytes(self._compute_capability),
            multiprocessors=self._multiprocessors,
        )
        if kernel.launch(ctypes.addressof(arguments), *grid, block, shared_bytes) != 0:
            self._faulty_kernel = True
            self._break(kernel.library.error())
        guards = self._memory.guards()
        damaged = kernel.library.first_damaged(guards, GUARD)
        if damaged is not None:
            self._faulty_kernel = True
            self._break(f"kernel {kernel.name}: it wrote {self._memory.name_guard(int(guards[damaged]))}")

    def _break(self, reason: str) -> None:
        self._orders.drop()
        self._fault = CardFaultError(f"The card failed: {reason}.", "Load the model again.")
        raise self._fault

    def _raise_planned_fault(self) -> None:
        for kind, number in list(self._launches_until.items()):
            self._launches_until[kind] = number - 1
            if number == 1:
                del self._launches_until[kind]
                if kind == "fault":
                    self._break("the launch that was to fail")
                self.lose()
                self._enter()


def _most_shared_bytes(compute_capability: tuple[int, int]) -> int:
    """That a block may have, as NVIDIA's tables of compute capabilities say."""
    if (9, 0) <= compute_capability < (12, 0):
        return 227 << 10
    return (163 if compute_capability in ((8, 0), (8, 7)) else 99) << 10


def _check_host(values: Bytes) -> None:
    assert (values.dtype, values.ndim) == (np.uint8, 1), "not plain bytes"
    assert values.flags.c_contiguous, "bytes with gaps"
