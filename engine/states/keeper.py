"""What leases ask for between two tokens; and how every state leaves a device that failed.

What a failed device held is gone, but nothing of it was more than the tokens: copies in memory and files
count as before, and the rest is computed again.
"""

from __future__ import annotations

import threading
from array import array
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Protocol, TypeVar

from engine.errors import DeviceFaultError
from engine.notices import Notice
from engine.states.lease import Lease
from engine.states.parking import OnLost
from engine.states.residence import Residence
from engine.states.state import Home, State, as_ids

if TYPE_CHECKING:
    import torch

_Got = TypeVar("_Got")

Refuge = Callable[[DeviceFaultError], tuple[Home, Notice]]
"""Where all states are computed once their device has failed, and what the person is told."""


class Find(Protocol):
    """Whose state has most of some ids: `StateStore._find`."""

    def __call__(
        self, prompt: array[int], find_own: Callable[[], State | None]
    ) -> tuple[State | None, int, list[torch.Tensor] | None]: ...


class Keeper:
    """A `LeaseKeeper`, of one store."""

    def __init__(
        self,
        residence: Residence,
        *,
        idle: Mapping[str, State],
        leases: Iterable[Lease],
        find: Find,
        on_lost: OnLost,
        refuge: Refuge | None,
    ) -> None:
        """idle, leases: the store's own, as they are at any time. refuge: None where no other device is."""
        self._residence = residence
        self._idle = idle
        self._leases = leases
        self._find = find
        self._on_lost = on_lost
        self._refuge = refuge
        self._notices: list[Notice] = []

    def make_writable(self, lease: Lease, num_tokens: int, cancel: threading.Event | None) -> None:
        self._residence.make_writable(lease, num_tokens, cancel)

    def leave_pool(self, lease: Lease) -> bool:
        return self._residence.leave_pool(lease)

    def leave_device(self, fault: DeviceFaultError) -> Notice:
        if self._refuge is None:
            raise fault
        failed = self._residence.home
        home, notice = self._refuge(fault)
        self._refuge = None
        self._residence.move(home)
        for lease in self._leases:
            if lease.state.live is not None and lease.state.live.home is failed:
                lease.lose_pages()
        for state in list(self._idle.values()):
            if state.live is not None:
                tokens = state.length
                state.fall_back_to_disk()
                if not state.length:
                    self._on_lost(state, tokens, True)
        return notice

    def reopen(self, lease: Lease) -> None:
        state, wanted = lease.state, lease.ids[:]
        behind = as_ids([*wanted, 0])  # of a prompt, the last token would not count
        try:
            source, length, pages = self._find(behind, lambda: state)
            if source is not state:
                state.discard()
            if pages is not None:
                live = self._residence.load(pages, length)
            else:
                assert source is not None
                live = self._residence.fork(source, length)
        except BaseException:
            if state.ids != wanted[: state.length]:
                state.discard()  # its file was another window's by then
            raise
        state.move_to(live)
        state.ids = wanted[:length]
        if not self._residence.is_home(state):
            lease.add_notice(self._residence.fallback_notice(lease.home))

    def surviving(self, attempt: Callable[[], _Got]) -> _Got:
        """What `attempt` gives; once more, elsewhere, if the device fails."""
        try:
            return attempt()
        except DeviceFaultError as fault:
            self.flee(fault)
            return attempt()

    def flee(self, fault: DeviceFaultError) -> None:
        """`leave_device`, where the notice has to wait for whoever asks."""
        self._notices.append(self.leave_device(fault))

    def take_notices(self) -> tuple[Notice, ...]:
        found, self._notices = tuple(self._notices), []
        return found

    def close(self) -> None:
        """Holds no device any more."""
        self._refuge = None
        del self._residence
