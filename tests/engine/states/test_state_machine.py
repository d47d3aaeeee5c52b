"""Conversations in any order, and everything going wrong: each answer is a cold run's, and no page leaks."""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
import threading
import time
from array import array
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import state_fakes
import torch
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from state_fakes import GEOMETRY, cold_logits, logits_of, new_home

from engine.backend import Sequence as PageTable
from engine.errors import Cancelled, DeviceFaultError, OutOfMemoryError
from engine.kv_geometry import PAGE
from engine.notices import Notice
from engine.states.kv_file import KvKey, write_kv_file
from engine.states.kv_folder import KvFolder
from engine.states.kv_writer import KvWriter
from engine.states.lease import Lease, StatesMoved
from engine.states.state import Home
from engine.states.store import StateStore
from engine.weights.part_file import PartFile

KEY = KvKey("model", "native", GEOMETRY)
CONTEXT = 4 * PAGE
SLOTS = 2
CAPACITY = 7  # pages: less than two states can grow to
RAM_PAGES = 3
DISK_PAGES = 8
DISK_BYTES = DISK_PAGES * (GEOMETRY.page_bytes + 8192)

conversations = st.sampled_from(["a", "b", "c", "d", ""])
named = st.sampled_from(["a", "b", "c", "d"])
# Around the borders of pages, where mistakes are made.
lengths = st.sampled_from([1, 2, 52, 63, 64, 65, 76, 127, 128, 129, 192, 200, CONTEXT - 1])
TEXTS = [array("I", [(7 * i + seed * (i // 50)) % 11 for i in range(CONTEXT)]) for seed in range(4)]
steps_taken = times_fled = 0


def text(which: int, length: int) -> list[int]:
    """The four texts have 50 ids in common."""
    return list(TEXTS[which][:length])


class Conversations(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.root = Path(tempfile.mkdtemp())
        self.disk_full = False
        self.prompts: dict[str, list[int]] = {}
        self.expected: dict[bytes, torch.Tensor] = {}
        self.starts = 0
        self.sync = PartFile.sync
        PartFile.sync = lambda file: self.sync_or_fail()  # type: ignore[method-assign]
        self.start()

    def start(self) -> None:
        self.starts += 1
        self.home = self.first_home = new_home(CAPACITY, ("cpu", "card")[self.starts % 2])
        self.folder = KvFolder(self.root / "states", KEY, context=CONTEXT, limit_bytes=DISK_BYTES)
        self.store = StateStore(
            self.home,
            slots=SLOTS,
            new_fallback=self.new_fallback,
            folder=self.folder,
            ram_budget=RAM_PAGES * GEOMETRY.page_bytes,
            refuge=self.flee,
        )
        self.open: dict[Lease, list[int]] = {}  # the ids that each is to hold
        self.fallback_pages = CONTEXT // PAGE

    def new_fallback(self) -> Home:
        return new_home(self.fallback_pages)

    def flee(self, fault: DeviceFaultError) -> tuple[Home, Notice]:
        global times_fled
        times_fled += 1
        failed, self.home = self.pool, new_home(CAPACITY)
        assert failed.device.failed
        self.pool.limit, self.pool.room_for_copies = failed.limit, failed.room_for_copies
        return self.home, Notice("moved", fault.message)

    def sync_or_fail(self) -> None:
        if self.disk_full:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def teardown(self) -> None:
        PartFile.sync = self.sync  # type: ignore[method-assign]
        self.folder.wait()
        for lease in list(self.open):
            self.store.give_back(lease)
        for name in "abcd":
            self.store.forget(name)
        self.folder.wait()
        assert self.pool.pages == {}, "a page leaked"
        assert list(self.folder.root.glob("*")) == []
        shutil.rmtree(self.root)

    @property
    def pool(self) -> state_fakes.FakePool:
        pool = self.home.ledger.pool
        assert isinstance(pool, state_fakes.FakePool)
        return pool

    def cold(self, ids: Sequence[int]) -> torch.Tensor:
        key = array("I", ids).tobytes()
        if key not in self.expected:
            self.expected[key] = cold_logits(ids)
        return self.expected[key]

    @rule(name=conversations, which=st.integers(0, 3), length=lengths)
    def begin(self, name: str, which: int, length: int) -> None:
        """Any prompt, perhaps in a conversation that had another one: its history was rewritten then."""
        self.take(name, text(which, length))

    @rule(name=named, cut=st.integers(0, 70), new=st.lists(st.integers(0, 10), max_size=3))
    def edit_or_regenerate(self, name: str, cut: int, new: list[int]) -> None:
        """The conversation's last prompt less its end, and something else; also exactly what is cached."""
        before = self.prompts.get(name, [1])
        prompt = [*before[: max(1, len(before) - cut)], *new][: CONTEXT - 1]
        self.take(name, prompt)

    def take(self, name: str, prompt: list[int]) -> None:
        """As many may be open as leaves one without a slot."""
        if len(self.open) > SLOTS:
            self.put_back(next(iter(self.open)))
        try:
            lease = self.store.take(name, prompt)
        except OutOfMemoryError:
            short_of_pages = min(self.fallback_pages, self.pool.limit) < CONTEXT // PAGE
            assert short_of_pages or self.pool.room_for_copies is not None
            return
        assert lease.reused < len(prompt)
        assert list(lease.ids) == prompt[: lease.reused]
        assert lease.total == len(prompt)
        self.open[lease] = prompt[: lease.reused]
        self.read(lease, prompt)
        if name:
            self.prompts[name] = prompt

    def read(self, lease: Lease, prompt: list[int]) -> None:
        before = list(lease.ids)
        try:
            logits = self.step(lambda: lease.prefill(prompt[lease.length :]))
        except OutOfMemoryError:
            assert list(lease.ids) == before, "a step that could not be done changed something"
            return
        self.open[lease] = prompt
        assert torch.equal(logits, self.cold(prompt))

    @precondition(lambda self: self.open)
    @rule(data=st.data(), tokens=st.lists(st.integers(0, 10), min_size=1, max_size=4))
    def answer(self, data: st.DataObject, tokens: list[int]) -> None:
        lease = data.draw(st.sampled_from(list(self.open)), label="lease")
        for token in tokens:
            ids = [*self.open[lease], token]
            if len(ids) > CONTEXT:
                return
            try:
                logits = self.step(lambda token=token: lease.decode(token))  # type: ignore[misc]
            except OutOfMemoryError:
                assert list(lease.ids) == self.open[lease]
                return
            self.open[lease] = ids
            assert torch.equal(logits, self.cold(ids))
            if lease.conversation:
                self.prompts[lease.conversation] = ids

    @precondition(lambda self: self.open)
    @rule(data=st.data(), length=st.integers(0, CONTEXT), new=st.integers(1, 100))
    def rewind_and_cancel(self, data: st.DataObject, length: int, new: int) -> None:
        """Rows behind the length are left over from both."""
        lease = data.draw(st.sampled_from(list(self.open)), label="lease")
        ids = self.open[lease] = self.open[lease][: length or None]
        lease.rewind(len(ids))
        if lease.state.live is None:
            return  # whose step is cancelled first runs what was lost
        backend = lease.home.backend
        backend.cancel_after = new // 2  # type: ignore[attr-defined]
        more = text(1, CONTEXT)[len(ids) : len(ids) + new]
        try:
            if more:
                lease.prefill(more)
        except (Cancelled, OutOfMemoryError, StatesMoved):
            pass
        backend.cancel_after = None  # type: ignore[attr-defined]
        if lease.state.live is not None:
            lease.home.backend.cancel_after = None  # type: ignore[attr-defined]  # it may have moved meanwhile
        done = lease.length - len(ids)
        assert done in (0, len(more), min(new // 2, len(more)))
        self.open[lease] = ids + more[:done]

    @precondition(lambda self: self.open)
    @rule(data=st.data())
    def fail_unforeseen(self, data: st.DataObject) -> None:
        """Nobody knows what the pages hold then; they are not read again."""
        lease = data.draw(st.sampled_from(list(self.open)), label="lease")
        first = lease.length // PAGE
        if lease.state.live is None:
            return
        for page in lease.state.live.sequence.pages[first:]:
            if lease.length % PAGE == 0 or not lease.home.ledger._is_shared(lease.state.live.sequence, first):
                lease.home.ledger.pool.pages[page].fill_(0xCC)  # type: ignore[attr-defined]
        del self.open[lease]
        self.store.give_back(lease, sound=False)

    @precondition(lambda self: self.open)
    @rule(data=st.data())
    def give_back(self, data: st.DataObject) -> None:
        self.put_back(data.draw(st.sampled_from(list(self.open)), label="lease"))

    def put_back(self, lease: Lease) -> None:
        del self.open[lease]
        self.store.give_back(lease)

    @rule(name=named, which=st.integers(0, 3), length=lengths)
    def turn(self, name: str, which: int, length: int) -> None:
        """What most answers are: nothing else happens meanwhile."""
        self.take(name, text(which, length))
        if self.open:
            self.put_back(list(self.open)[-1])

    @rule(source=named, to=named, length=st.none() | st.integers(0, CONTEXT))
    def fork(self, source: str, to: str, length: int | None) -> None:
        self.store.table()  # what files hold is known then
        if to in self.store._idle or to in self.store._current:
            return
        current = self.store._current.get(source)
        state = self.store._idle.get(source) if current is None else current.state
        tokens = 0 if state is None else state.length
        length = None if length is None else min(length, tokens)
        pool, copies = self.pool, self.pool.copies
        try:
            forked = self.store.fork(source, to, length)
        except OutOfMemoryError:
            return
        wanted = tokens if length is None else length
        assert forked in (0, wanted) or (forked < wanted and self.pool is not pool)
        assert pool.copies == copies, "a fork copies at its first step, and one page at most"
        self.prompts[to] = self.prompts.get(source, [1])

    @rule(to=named, which=st.integers(0, 3), length=lengths)
    def begin_with_what_there_is(self, to: str, which: int, length: int) -> None:
        self.store.table()
        if to in self.store._idle or to in self.store._current:
            return
        prompt = text(which, length)
        pool, copies = self.pool, self.pool.copies
        try:
            tokens = self.store.begin(to, prompt)
        except OutOfMemoryError:
            assert to not in self.store._idle
            return
        assert pool.copies == copies, "a fork copies at its first step, and one page at most"
        assert tokens < length
        if tokens:
            assert list(self.store._idle[to].ids) == prompt[:tokens]
            self.prompts[to] = prompt

    @rule(name=named)
    def forget(self, name: str) -> None:
        self.store.forget(name)
        self.folder.wait()
        names = {self.folder.path(name).name}
        assert not names & {path.name for path in self.folder.root.glob("*")}, "its file is still there"

    @rule()
    def free_by_hand(self) -> None:
        self.store.free_idle()
        self.folder.wait()
        busy = {lease.conversation for lease in self.open}
        assert {row.place for row in self.store.table() if row.conversation not in busy} <= {"disk"}

    @rule()
    def disk_catches_up(self) -> None:
        self.folder.wait()
        self.store.table()

    @rule(full=st.booleans())
    def fill_disk(self, full: bool) -> None:
        self.folder.wait()
        self.disk_full = full

    @rule(
        limit=st.integers(1, CAPACITY),
        fallback=st.integers(0, CONTEXT // PAGE),
        copies=st.none() | st.integers(0, 4),
    )
    def squeeze_memory(self, limit: int, fallback: int, copies: int | None) -> None:
        self.pool.limit, self.fallback_pages, self.pool.room_for_copies = limit, fallback, copies

    @rule(pool=st.just(CAPACITY))
    def free_memory(self, pool: int) -> None:
        self.pool.limit, self.fallback_pages, self.pool.room_for_copies = pool, CONTEXT // PAGE, None

    @rule(calls=st.integers(1, 12))
    def lose_device(self, calls: int) -> None:
        """Not at once, but in the middle of whatever asks for the last of so many calls. Once: the computer's
        own processor doesn't fail.
        """
        if self.home is self.first_home:
            self.pool.device.fails_after = calls

    @rule(lacks=st.booleans())
    def take_memory_of_steps(self, lacks: bool) -> None:
        self.first_home.backend.lacks_memory = lacks  # type: ignore[attr-defined]

    def step(self, run: Callable[[], torch.Tensor]) -> torch.Tensor:
        """Asked for again where everything moved away from a device that failed; that happens once."""
        try:
            return run()
        except StatesMoved:
            return run()

    @rule()
    def restart(self) -> None:
        self.store.close()
        for lease in list(self.open):
            self.store.give_back(lease)
        assert self.pool.pages == {}, "a page leaked"
        self.start()

    @rule(name=named, which=st.integers(0, 3))
    def crash_between_write_and_rename(self, name: str, which: int) -> None:
        """The process is gone: nothing of the store's was given back, and half of a file lies there."""
        self.folder.wait()
        was_full, self.disk_full = self.disk_full, False
        page = torch.full((GEOMETRY.page_bytes,), 7, dtype=torch.uint8)
        path = self.folder.path(name)
        part = write_kv_file(
            path,
            KEY,
            conversation=name,
            ids=TEXTS[which][:PAGE],
            pages=[page],
            stop=threading.Event(),
        )
        part._close()  # the system does that when a process ends
        self.disk_full = was_full
        self.start()
        self.store.table()
        assert list(self.folder.root.glob("*.part")) == []

    @rule(name=named, which=st.integers(0, 3), length=lengths)
    def another_window_answers(self, name: str, which: int, length: int) -> None:
        """Its file takes the place of ours, in whatever state we believe that to be."""
        ids = text(which, length)
        home, sequence = new_home(CONTEXT // PAGE), PageTable()
        assert home.ledger.make_writable(sequence, length)
        home.backend.prefill(ids, sequence, home.ledger.pool)
        window = KvFolder(self.folder.root, KEY, context=CONTEXT, limit_bytes=DISK_BYTES)
        window._writer = KvWriter()
        window._writer.limit_bytes = DISK_BYTES
        window.write(name, array("I", ids), home.ledger.read(sequence), used_ns=time.time_ns())
        window.wait()

    @rule(data=st.data(), at=st.floats(0, 1, exclude_max=True), cut=st.booleans())
    def damage_a_file(self, data: st.DataObject, at: float, cut: bool) -> None:
        self.folder.wait()
        files = sorted(self.folder.root.glob("*.safetensors"))
        if not files:
            return
        path = data.draw(st.sampled_from(files))
        raw = bytearray(path.read_bytes())
        if cut:
            del raw[int(at * len(raw)) :]
        elif raw:
            raw[int(at * len(raw))] ^= 0x10
        path.write_bytes(raw)

    @invariant()
    def everything_is_what_it_says(self) -> None:
        global steps_taken
        steps_taken += 1
        self.store.check()
        for lease, ids in self.open.items():
            assert list(lease.ids) == ids
        for state in [*self.store._idle.values(), *(lease.state for lease in self.open)]:
            if not state.length:
                continue
            if state.live is not None:
                pool = state.live.home.ledger.pool
                assert isinstance(pool, state_fakes.FakePool)
                pages = [pool.pages[page] for page in state.live.sequence.pages]
            elif state.ram is not None:
                pages = list(state.ram.pages)
            else:
                continue
            assert torch.equal(logits_of(pages, state.length), self.cold(state.ids))

    @invariant()
    def files_stay_within_the_budget(self) -> None:
        if self.folder.num_pending == 0:
            sizes = (path.stat().st_size for path in self.folder.root.glob("*.safetensors"))
            assert sum(sizes) <= DISK_BYTES


def test_any_ten_thousand_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    global steps_taken, times_fled
    steps_taken = times_fled = 0
    monkeypatch.setattr("engine.states.kv_folder.LEAST_FREE_BYTES", 0)
    run_state_machine_as_test(  # type: ignore[no-untyped-call]
        Conversations,
        settings=settings(
            max_examples=400,
            stateful_step_count=50,
            deadline=None,
            derandomize=True,
            database=None,
            suppress_health_check=list(HealthCheck),
            phases=[Phase.generate],  # shrinking takes minutes here; a failure's steps are told either way
        ),
    )
    assert steps_taken >= 10_000
    assert times_fled >= 100
