"""Where one loaded model keeps its conversations' states: which pool, how much memory, which files."""

from __future__ import annotations

from pathlib import Path

from engine.backend import Backend
from engine.cpu.memory import RESERVE_BYTES, available_bytes
from engine.default_folders import states_folder
from engine.errors import DeviceFaultError
from engine.kv_geometry import KvFormat, KvGeometry, pages_for
from engine.notices import Notice
from engine.states.kv_file import KvKey
from engine.states.kv_folder import KvFolder
from engine.states.pages import PageLedger
from engine.states.state import Home
from engine.states.store import StateStore

_RAM_FRACTION = 0.25  # of the memory that is free beside the weights, for states out of the pool
_MAX_RAM_BYTES = 4 * 2**30


def default_ram_budget(taken: int = 0) -> int:
    """Bytes: a quarter of the memory that is free or `taken` by states already, but no more than 4 GiB."""
    free = max(0, available_bytes() - RESERVE_BYTES) + taken
    return min(_MAX_RAM_BYTES, int(_RAM_FRACTION * free))


def open_states(
    backend: Backend,
    *,
    model: str,
    numerics: str,
    kv: KvFormat,
    context: int,
    slots: int,
    ram_budget: int | None = None,
    disk_budget: int | None = None,
    root: Path | None = None,
    fallback: Backend | None = None,
) -> StateStore:
    """The states of a model on its backend, and those that earlier runs of the program left on disk.

    model, numerics: see `KvKey`; a model of "" keeps nothing on disk. context: tokens. The budgets
    (bytes) are of what is not in the pool; None: the default. root: the folder
    of the files; None: in the person's data folder. fallback: what computes states that the pool has no room
    for, and all of them once the backend's device has failed; None: the backend itself. Takes no memory and
    reads no file yet.
    """
    geometry = KvGeometry.of(backend.spec, kv)
    elsewhere = backend if fallback is None else fallback
    pages = pages_for(context)

    def new_home(backend: Backend, num_states: int) -> Home:
        return Home(backend, PageLedger(backend.new_pool(geometry, num_states * pages)))

    def refuge(fault: DeviceFaultError) -> tuple[Home, Notice]:
        return new_home(elsewhere, slots), moved_notice(fault)

    key = KvKey(model, numerics, geometry)
    folder = None
    if model:
        folder = KvFolder(root or states_folder(), key, context=context, limit_bytes=disk_budget)
    return StateStore(
        new_home(backend, slots),
        slots=slots,
        new_fallback=lambda: new_home(elsewhere, 1),
        folder=folder,
        ram_budget=default_ram_budget if ram_budget is None else ram_budget,
        refuge=None if elsewhere is backend else refuge,
    )


def moved_notice(fault: DeviceFaultError) -> Notice:
    return Notice(
        "card-lost-meanwhile",
        f"From here on the model runs on the CPU, and nothing of the conversation is lost: {fault.message}",
        fault.hint,
    )
