"""What the backend asks of a card, and nothing more: memory, copies, code, launches.

`pycuda_driver.py` speaks to a real one. Tests put another in its place, which runs the same kernels on the
processor, or one that refuses an allocation, loses the device or counts copies.

A driver belongs to the thread that opened it: every call comes from that thread, until `close`. Calls that
start work return before it is done, in the order in which they came; `download` and `synchronize` wait.
Addresses are plain numbers, as in kernels.

Uploads ahead are a second order of their own, beside all other work. One waits for the other only where a
mark says so: work may read what was uploaded ahead once it waits for a mark behind that upload, and an upload
ahead may go to where work has read once it waits for a mark behind that work.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NewType, Protocol

from engine.errors import DeviceFaultError
from engine.notices import Notice

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Bytes = npt.NDArray[np.uint8]  # contiguous, one axis

Address = NewType("Address", int)
NOWHERE = Address(0)
Kernel = NewType("Kernel", object)
"""A kernel that is ready to be launched. Every kernel takes one structure by value."""
Mark = NewType("Mark", object)
"""A point in what the card has to do. It may be set again and again: a wait is for where it was set last when
the wait was asked for, and for nothing where it never was.
"""
Recording = NewType("Recording", object)
"""Launches that were recorded, to be repeated as one."""


class CardFaultError(DeviceFaultError):
    """The card, or what ran on it, failed. What it holds can't be trusted any more."""

    code = "card-fault"


class CardLostError(CardFaultError):
    """The card doesn't answer: nothing can be read back from it."""

    code = "card-lost"


@dataclass(frozen=True)
class Letterbox:
    """Memory of the computer's that kernels write into, in which they leave a few bytes. address: by which
    kernels know it. contents: what the computer sees; what a kernel has written is there once the caller has
    waited for a mark behind it.
    """

    address: Address
    contents: Bytes


@dataclass(frozen=True)
class CardInfo:
    """name: as its maker calls it. compute_capability: (9, 0), for example. total_bytes: of its memory.
    multiprocessors: its processors, each with blocks of its own. driver: version, in the driver's words.
    """

    name: str
    compute_capability: tuple[int, int]
    total_bytes: int
    multiprocessors: int
    driver: str


class CardDriver(Protocol):
    """Every method may raise CardFaultError, also for something that went wrong in work of before."""

    @property
    def info(self) -> CardInfo: ...

    def free_bytes(self) -> int:
        """What is free of the card's memory, whoever has the rest."""

    def allocate(self, num_bytes: int) -> Address:
        """At a multiple of 256, with anything at all in it. Raises OutOfMemoryError, and then nothing has
        changed.
        """

    def free(self, address: Address) -> None:
        """What `allocate` gave. Waits for all work, and for all uploads ahead."""

    def upload(self, target: Address, source: Bytes) -> None:
        """The source may be changed as soon as this returns."""

    def download(self, target: Bytes, source: Address) -> None:
        """Behind all work of before; waits for it."""

    def copy(self, target: Address, source: Address, num_bytes: int) -> None:
        """Within the card. The two don't overlap."""

    def fill(self, target: Address, value: int, num_bytes: int) -> None:
        """Every byte becomes `value`."""

    def load(self, code: bytes, names: list[str]) -> dict[str, Kernel]:
        """Kernels of these names, from what a `KernelCompiler` made for this card."""

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
        """block: threads, in one axis. shared_bytes: of dynamic shared memory. overlaps: directly behind
        another launch, it may begin while that one still runs, since the kernel itself waits
        (`wait_for_previous`) before it touches what that one reads or writes. It makes no difference behind
        anything else, to the first of a recording, and on a card that can't do it.
        """

    def record(self, work: Callable[[], None]) -> Recording:
        """What `work` launches, with the arguments of now. Nothing of it runs. `work` asks for nothing but
        launches.
        """

    def replay(self, recording: Recording) -> None:
        """Starts all of it, in its order."""

    def discard(self, recording: Recording) -> None:
        """It is not needed any more; what was started of it runs to its end."""

    def open_letterbox(self, num_bytes: int) -> Letterbox:
        """Of zeros, until `close`. Raises OutOfMemoryError."""

    def new_mark(self, *, ahead: bool = True) -> Mark:
        """Until `close`. ahead: for uploads ahead, too. Raises OutOfMemoryError."""

    def mark_work(self, mark: Mark) -> None:
        """Sets it behind all work so far, uploads ahead apart."""

    def wait(self, mark: Mark) -> None:
        """Of the caller: returns when what is before the mark is done. Other threads go on meanwhile."""

    def work_waits(self, mark: Mark) -> None:
        """Of the card, not of the caller: work from now on begins when what is before the mark is done."""

    def upload_ahead(self, target: Address, source: Bytes) -> None:
        """Behind other uploads ahead, beside all other work. Needs a mark for them to be there. The source
        may be changed as soon as this returns.
        """

    def mark_uploads(self, mark: Mark) -> None:
        """Sets it behind all uploads ahead so far."""

    def uploads_wait(self, mark: Mark) -> None:
        """Uploads ahead from now on begin when what is before the mark is done."""

    def synchronize(self) -> None:
        """Returns when all work and all uploads ahead are done."""

    def close(self) -> None:
        """Gives everything back. Does nothing the second time. Never raises."""


class KernelCompiler(Protocol):
    """From the text of kernels to code for one card."""

    @property
    def notices(self) -> tuple[Notice, ...]:
        """What the person should know of what was compiled."""

    def compile(self, sources: dict[str, str], main: str, *, card: CardInfo) -> bytes:
        """sources: the files by name, `main` the one that includes the others. Raises CardFaultError with
        the compiler's first complaint.
        """


def as_bytes(values: Any) -> Bytes:
    """A contiguous array's or CPU tensor's memory, seen as bytes."""
    import numpy as np

    array = values.numpy() if hasattr(values, "numpy") else values
    flat: Bytes = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    return flat
