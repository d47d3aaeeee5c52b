"""What a driver holds of a card, and how it is given back: on the thread it belongs to or another, after any
fault, at the end of a thread or of the process.

PyCUDA keeps a stack of contexts for each thread, and ends the process, at once and without a word to Python,
if a thread or the process ends while there is one on it. So there is one only in `active`, around what makes
or unmakes PyCUDA's objects, which ask for it. For everything else the context is made current by the NVIDIA
driver's own means, which is no danger, and costs nothing at each call.
"""

from __future__ import annotations

import atexit
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from engine.cuda.driver_faults import card_fault, card_full_at, driver_words
from engine.cuda.lost_card import remember_loss
from engine.cuda.nvidia_library import Launcher, NvidiaError, NvidiaLibrary
from engine.cuda.staging import StagingRing


@dataclass
class LoadedKernel:
    """function: its handle; None once it was given back. most_shared_bytes: dynamic ones, unasked."""

    name: str
    function: int | None
    most_shared_bytes: int


@dataclass(eq=False)
class CardHoldings:
    """It outlives the driver that it was made for.

    library: the NVIDIA driver's; modules and graphs are handles of it. context: the primary one of the card
    of that ordinal. thread: to which all of it belongs. is_lost: nothing can be done with the context any
    more but to give it back.
    """

    cuda: Any
    library: NvidiaLibrary
    ordinal: int
    context: Any
    thread: int
    is_lost: bool = False
    stream: Any = None
    launcher: Launcher | None = None
    landing: Any = None
    ring: StagingRing | None = None
    ahead_stream: Any = None
    ahead_ring: StagingRing | None = None
    letterboxes: list[Any] = field(default_factory=list)
    events: list[Any] = field(default_factory=list)
    idle_events: list[Any] = field(default_factory=list)
    modules: list[int] = field(default_factory=list)
    kernels: list[LoadedKernel] = field(default_factory=list)
    graphs: list[int] = field(default_factory=list)
    allocations: dict[int, Any] = field(default_factory=dict)

    @classmethod
    def retain(cls, cuda: Any, library: NvidiaLibrary, ordinal: int) -> CardHoldings:
        """Nothing yet but the context. cuda: pycuda.driver. Raises OutOfMemoryError, CardFaultError."""
        try:
            cuda.init()
            context = cuda.Device(ordinal).retain_primary_context()
        except cuda.MemoryError as error:
            raise card_full_at("a context", None) from error
        except cuda.Error as error:
            raise card_fault(str(error), doing="a context", lost=False) from error
        held = cls(cuda, library, ordinal, context, threading.get_ident())
        _open_cards.add(held)
        return held

    @contextmanager
    def active(self) -> Iterator[None]:
        """PyCUDA's objects can be made and unmade. Afterwards its stack is empty, whatever happens."""
        assert threading.get_ident() == self.thread, "a card belongs to the thread that opened it"
        try:
            self.context.push()
            yield
        finally:
            self._empty_stack()

    def _empty_stack(self) -> None:
        """Also after an interruption at any point of `active`."""
        if self.cuda.Context.get_current() is None:
            return
        try:
            self.cuda.Context.pop()
        except self.cuda.Error as error:
            self.lose(error)
            self.context.detach()  # takes it off the stack, too, and can't fail
            raise

    def lose(self, error: Exception) -> None:
        """error: PyCUDA's, of a call after which nothing works any more."""
        self.is_lost = True
        remember_loss(driver_words(str(error)))

    def give_back(self) -> None:
        """Never raises. Where another thread calls, the one it belongs to must be through with the card."""
        _open_cards.discard(self)
        if threading.get_ident() == self.thread:
            self._free_everything()
            handle = self.context.handle
            self._detach()
            self._ask(self.library.leave, handle)
        elif self._detach():  # from here PyCUDA only forgets it, and has no way to release it
            self._ask(self.library.release_primary_context, self.ordinal)
        self._drop()

    def forget(self) -> None:
        """At the end of the process, on another thread: the one it belongs to may be at work. PyCUDA has to
        take the context for gone, or it complains of every object that is dropped; the system frees all.
        """
        self._detach()

    def _free_everything(self) -> None:
        """Others may hold the same context, so that it need not end with this. Of a lost one nothing is freed
        piece by piece: each attempt would fail, and PyCUDA print that.
        """
        if self.is_lost:
            return
        try:
            with self.active():
                self.cuda.Context.synchronize()
                for graph in self.graphs:
                    self._ask(self.library.destroy_graph, graph)
                for module in self.modules:
                    self._ask(self.library.unload_module, module)
                for allocation in self.allocations.values():
                    allocation.free()
                self._drop()
        except self.cuda.Error as error:
            self.lose(error)  # what ran before failed; everything goes with the context

    def _drop(self) -> None:
        """Lets go of PyCUDA's objects. While the context is there, only in `active`; once PyCUDA takes it for
        gone, anywhere: then they do nothing as they go.
        """
        for kernel in self.kernels:
            kernel.function = None
        self.stream = self.launcher = self.landing = self.ring = None
        self.ahead_stream = self.ahead_ring = None
        for things in (
            self.graphs,
            self.letterboxes,
            self.kernels,
            self.modules,
            self.idle_events,
            self.events,
            self.allocations,
        ):
            things.clear()

    def _detach(self) -> bool:
        """False where it had to be done before."""
        try:
            self.context.detach()
        except self.cuda.Error:
            return False
        return True

    def _ask(self, question: Callable[[int], None], argument: int) -> None:
        try:
            question(argument)
        except NvidiaError:
            pass  # a driver that shuts down, or a lost card: the system takes all of it back


_open_cards: weakref.WeakSet[CardHoldings] = weakref.WeakSet()


@atexit.register
def _forget_open_cards() -> None:
    """Of drivers that nobody closed."""
    for held in list(_open_cards):
        if threading.get_ident() == held.thread:
            held.give_back()
        else:
            held.forget()
