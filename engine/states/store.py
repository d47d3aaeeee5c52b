"""The states of all conversations: which there are, who uses one, and which serves a new prompt best.

The tokens are the truth. A state serves a prompt as far as their ids are equal from the start, whichever
conversation it belongs to; nothing else decides what is reused.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, TypeVar

from engine.errors import DeviceFaultError
from engine.generation import ReuseReason, SlotInfo
from engine.kv_geometry import pages_for
from engine.notices import Notice
from engine.states.keeper import Keeper, Refuge
from engine.states.kv_folder import KvFolder
from engine.states.lease import Lease
from engine.states.losses import Losses
from engine.states.parking import Parking, RamBudget
from engine.states.prefixes import best_prefix, reason_for
from engine.states.residence import Residence
from engine.states.state import Home, RamCopy, State, as_ids

if TYPE_CHECKING:
    from array import array

    import torch

    from engine.backend import Backend


_Got = TypeVar("_Got")


class StateStore:
    """The states of one model. To be used from one thread.

    A state is out of the store while an answer is computed with it, so nobody else can touch it, and comes
    back when the answer has ended. A second answer in the same conversation meanwhile has a state of its own,
    and that one is kept.
    """

    def __init__(
        self,
        home: Home,
        *,
        slots: int,
        new_fallback: Callable[[], Home],
        folder: KvFolder | None = None,
        ram_budget: RamBudget = 0,
        refuge: Refuge | None = None,
    ) -> None:
        """slots: states that may be in the home's pool at once. new_fallback: where a state is computed that
        finds no place there; that pool is its alone. folder: None keeps nothing on disk. ram_budget: bytes
        that parked states may take in memory. refuge: None where no other device is there.
        """
        assert slots >= 1
        self._idle: dict[str, State] = {}
        self._leases: list[Lease] = []
        self._current: dict[str, Lease] = {}  # of each conversation: the lease whose state will be kept
        self._losses = Losses()
        self._parking = Parking(folder, ram_budget=ram_budget, on_lost=self._on_lost)
        self._residence = Residence(
            home,
            slots=slots,
            new_fallback=new_fallback,
            parking=self._parking,
            idle=self._idle,
            leases=self._leases,
        )
        self._keeper = Keeper(
            self._residence,
            idle=self._idle,
            leases=self._leases,
            find=self._find,
            on_lost=self._on_lost,
            refuge=refuge,
        )
        self._indexed = False
        self._now_ns = 0

    def take(self, conversation: str, ids: Sequence[int]) -> Lease:
        """A state that has as much of the prompt `ids` as any has, less its last token, for the caller alone.

        The conversation's own state is rewound; another's is left as it is, and its pages are shared. ""
        stands for no conversation: its state is not kept. Raises OutOfMemoryError; nothing is taken then.
        """
        self._settle()
        self._look_for(conversation)
        prompt = as_ids(ids)
        return self._keeper.surviving(lambda: self._take(conversation, prompt))

    def _take(self, conversation: str, prompt: array[int]) -> Lease:
        had_own = conversation in self._idle
        source, length, pages = self._find(prompt, lambda: self._idle.get(conversation))
        served = source.ids[:] if source is not None else None
        own = self._idle.get(conversation)
        own_ids = own.ids[:] if own is not None else None
        state = self._open(conversation, prompt[:length], source=source, pages=pages)
        reason, diverged_at = reason_for(
            served,
            prompt,
            own=own_ids,
            lost=None if own is not None else self._why_lost(conversation, had_own=had_own),
        )
        enough = length == len(prompt) - 1
        lease = Lease(
            state,
            total=len(prompt),
            reason=None if enough else reason,
            diverged_at=None if enough else diverged_at,
            keeper=self._keeper,
        )
        self._hand_out(lease)
        return lease

    def give_back(self, lease: Lease, *, sound: bool = True) -> None:
        """Keep the state for its conversation's next answer. Twice is once.

        A state is let go instead when its conversation was forgotten or taken again meanwhile. sound: False
        after a step that went wrong in a way that nobody foresaw: of the state, only its file is kept.
        """
        if lease not in self._leases:
            return
        self._leases.remove(lease)
        lease.end()
        state, conversation = lease.state, lease.conversation
        is_current = self._current.get(conversation) is lease
        if is_current:
            del self._current[conversation]
        tokens = lease.length
        if not sound:
            state.fall_back_to_disk()
        if not is_current or not state.length:
            state.discard()
            if is_current and tokens:
                self._losses.add(conversation, tokens, told=True)  # by the error
            return
        state.used_ns = self._tick()
        self._idle[conversation] = state
        if state.live is not None and not self._residence.is_home(state):
            self._parking.park(state)
        self._settle()

    def fork(self, source: str, target: str, length: int | None = None) -> int:
        """Have `target`, of which there is nothing yet, begin as `source`, with its first `length` tokens or
        all. What it has is its own from then on: whatever becomes of the source, the target keeps it. Full
        pages are shared in the pool and in memory; what lies in a file is read into memory.

        Returns how many tokens it has: 0 where there is nothing to share. Raises OutOfMemoryError; nothing
        has changed then.
        """
        self._settle()
        lease = self._current.get(source)
        state = lease.state if lease is not None else self._idle.get(source)
        if state is None or (lease is not None and state.live is None):  # lost, and not computed anew yet
            return 0
        cut = state.length if length is None else length
        return self._keeper.surviving(lambda: self._share(state, target, min(cut, state.length)))

    def begin(self, conversation: str, ids: Sequence[int]) -> int:
        """`fork` from whichever state has most of the prompt `ids`; one that is being answered with counts.
        The last token is left to be run.
        """
        self._settle()
        prompt = as_ids(ids)
        while True:
            in_use = (lease.state for lease in self._leases if lease.state.live is not None)
            states = [*self._idle.values(), *in_use]
            state, length = best_prefix(None, states, prompt)
            if state is None:
                return 0
            try:
                shared = self._share(state, conversation, length)
            except DeviceFaultError as fault:
                self._keeper.flee(fault)  # and what is there then is looked for anew
            else:
                if shared:
                    return length

    def forget(self, conversation: str) -> None:
        """Free what is kept of a conversation, files too, and keep nothing of an answer that is being
        computed in it.
        """
        self._losses.end(conversation)
        lease = self._current.pop(conversation, None)
        if lease is not None:
            lease.drop_file()
        state = self._idle.pop(conversation, None)
        if state is not None:
            state.discard()
        self._parking.forget(conversation)

    def limit(self, *, ram_budget: RamBudget, disk_budget: int | None) -> None:
        """Other budgets (bytes) for what is not in the pool, from now on; a disk budget of None: the default.
        What is beyond them leaves memory and disk, the least recently used first.
        """
        self._settle()
        self._parking.limit(ram_budget=ram_budget, disk_budget=disk_budget)
        self._parking.settle(list(self._idle.values()), lose_none=True)

    def free_idle(self) -> None:
        """Every state that nobody uses leaves pool and memory for its file; without one, it is lost."""
        self._settle()
        self._keeper.surviving(lambda: self._parking.free(list(self._idle.values())))

    def known_ids(self) -> Iterator[Sequence[int]]:
        """The ids of every state that nobody uses."""
        self._settle()
        for state in self._idle.values():
            yield state.ids

    def table(self) -> tuple[SlotInfo, ...]:
        """What is kept of each conversation, and where; what was used last comes first."""
        self._settle()
        in_use = [lease.state for lease in self._leases]
        states = sorted([*in_use, *self._idle.values()], key=lambda state: -state.used_ns)
        return tuple(self._row(state) for state in states)

    def close(self) -> None:
        """Has everything written, for the next start, and frees pool and memory; what is being answered is
        taken as it is. The writing goes on behind it, see `wait`. The store is of no use afterwards.
        """
        self._settle()
        for lease in list(self._leases):
            self.give_back(lease)
        self._keeper.surviving(lambda: self._parking.keep(self._idle.values()))
        self._idle.clear()
        self._keeper.close()
        del self._residence  # and with it backend and pool, for whose memory somebody else may be waiting

    def wait(self) -> None:
        """Until nothing is left to be written."""
        self._parking.wait()

    def take_notices(self) -> tuple[Notice, ...]:
        """What went wrong with files since the last time this was asked, and with the device, unless
        `StatesMoved` told it.
        """
        return (*self._keeper.take_notices(), *self._parking.take_notices())

    def take_moves(self) -> tuple[Notice, ...]:
        """Of what `take_notices` gives, why `backend` is another now."""
        return self._keeper.take_notices()

    def surviving(self, attempt: Callable[[Backend], _Got]) -> _Got:
        """What `attempt` gives, which computes on a backend without any state; once more on the one where
        states are then, if its device fails. Raises DeviceFaultError where there is no other.
        """
        return self._keeper.surviving(lambda: attempt(self.backend))

    @property
    def backend(self) -> Backend:
        """Where states are computed: another one from the moment when a device has failed."""
        return self._residence.home.backend

    def check(self) -> None:
        """For tests: every page is somebody's, every copy says what its state does."""
        states = [*self._idle.values(), *(lease.state for lease in self._leases)]
        for state in states:
            state.check()
        self._residence.check(states)

    def _share(self, source: State, target: str, length: int) -> int:
        """How many tokens `target` has of the source then: `length`, or 0 if they can't be had any more."""
        assert target
        assert target not in self._idle
        assert target not in self._current
        if not length:
            return 0
        forked = State(target, ids=source.ids[:length])
        if source.live is not None:
            self._residence.share(source, forked)
        else:
            pages = self._parking.pages(source, pages_for(length))
            if pages is None:
                return 0
            forked.ram = RamCopy(self._residence.geometry, forked.ids[:], tuple(pages)).first(length)
        forked.used_ns = self._tick()
        self._idle[target] = forked
        self._losses.end(target)
        self._settle()
        return length

    def _find(
        self, prompt: array[int], find_own: Callable[[], State | None]
    ) -> tuple[State | None, int, list[torch.Tensor] | None]:
        """The idle state that serves the prompt best, for how many tokens, and its pages if it is parked. If
        none does, the conversation's own with no token, or None. find_own: gives that, as it is at any time.
        """
        while True:
            own = find_own()
            others = (state for state in self._idle.values() if state is not own)
            source, length = best_prefix(own, others, prompt)
            if source is None:
                return own, 0, [] if own is None or own.live is None else None
            if source.live is not None:
                return source, length, None
            pages = self._parking.pages(source, pages_for(length))
            if pages is not None:
                return source, length, pages

    def _open(
        self,
        conversation: str,
        ids: array[int],
        *,
        source: State | None,
        pages: list[torch.Tensor] | None,
    ) -> State:
        """The conversation's state, out of the store, in a pool and with `ids` alone."""
        own = self._idle.pop(conversation, None)
        if own is not None and own is source and own.live is not None:
            own.truncate(len(ids))
            return own
        tokens = 0 if own is None else own.length
        try:
            if own is not None and own is not source:
                own.discard()  # its room first, since the source has more
            if pages is not None:
                live = self._residence.load(pages, len(ids))
            else:
                assert source is not None
                live = self._residence.fork(source, len(ids))
        except BaseException:
            if own is not None and own.length:
                self._idle[conversation] = own
            elif tokens:
                self._losses.add(conversation, tokens, told=False)
            raise
        state = own if own is not None else State(conversation)
        state.move_to(live)
        state.ids = ids
        return state

    def _hand_out(self, lease: Lease) -> None:
        conversation, state = lease.conversation, lease.state
        self._leases.append(lease)
        if conversation:
            before = self._current.get(conversation)
            if before is not None:
                before.drop_file()  # what is written of the conversation from now on is the new one's
            self._current[conversation] = lease
        state.used_ns = self._tick()
        state.last_reuse = (lease.reused, lease.total)
        notice = self._losses.end(conversation)
        if notice is not None:
            lease.add_notice(notice)
        if not self._residence.is_home(state):
            lease.add_notice(self._residence.fallback_notice(lease.home))

    def _why_lost(self, conversation: str, *, had_own: bool) -> ReuseReason | None:
        """Why there is nothing of the conversation, if there was something once."""
        if had_own or conversation in self._losses:
            return ReuseReason.EVICTED
        if conversation and self._parking.is_of_other_model(conversation):
            return ReuseReason.OTHER_MODEL
        return None

    def _settle(self) -> None:
        if not self._indexed:
            self._indexed = True
            for state in self._parking.index():
                self._idle.setdefault(state.conversation, state)
        self._parking.settle(list(self._idle.values()))

    def _look_for(self, conversation: str) -> None:
        """A file that came after the index: another window's, or one of a program that was still writing it
        when this one began.
        """
        if not conversation or conversation in self._idle or conversation in self._current:
            return
        state = self._parking.find(conversation)
        if state is not None:
            self._idle[conversation] = state
            self._losses.end(conversation)

    def _on_lost(self, state: State, tokens: int, told: bool) -> None:
        if self._idle.get(state.conversation) is state:
            del self._idle[state.conversation]
            self._losses.add(state.conversation, tokens, told=told)

    def _row(self, state: State) -> SlotInfo:
        reused, total = state.last_reuse or (None, None)
        return SlotInfo(
            conversation=state.conversation,
            tokens=state.length,
            pages=state.num_pages,
            place="fallback" if state.live and not self._residence.is_home(state) else state.place,
            reused=reused,
            total=total,
        )

    def _tick(self) -> int:
        """The time, never the same twice and never earlier than before."""
        self._now_ns = max(time.time_ns(), self._now_ns + 1)
        return self._now_ns
