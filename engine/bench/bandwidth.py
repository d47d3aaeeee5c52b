"""How fast the memory is that a model's weights lie in: a pass that does nothing but read."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

from engine.backend import Backend
from engine.cpu.memory import RESERVE_BYTES, available_bytes
from engine.cuda.arguments import Reading
from engine.cuda.backend import CudaBackend
from engine.cuda.driver import Address
from engine.cuda.memory import Use

_MOST_CARD_BYTES = 4 * 2**30
_CARD_PART = 32  # of the card's memory: some ten times its caches
_LEAST_CARD_BYTES = 2**20
_BLOCKS_A_PROCESSOR = (1, 2, 4, 8, 16)
_RAM_BYTES = 256 * 2**20
_PASSES = 5
_UNIT = 16  # bytes, of one read
_WORD = 4


def read_bandwidth(backend: Backend) -> float | None:
    """Bytes a second, the best of several ways and passes; None where there is no memory for it. Takes what
    memory there is for as long as it runs.
    """
    return _of_card(backend) if isinstance(backend, CudaBackend) else _of_ram()


def _of_card(backend: CudaBackend) -> float | None:
    memory = backend.memory
    room = memory.available() // 2  # it is given back at once
    num_bytes = min(_MOST_CARD_BYTES, memory.driver.info.total_bytes // _CARD_PART, room) // _UNIT * _UNIT
    if num_bytes < _LEAST_CARD_BYTES:
        return None
    address = memory.allocate(num_bytes + _UNIT, Use.WORKSPACE)
    try:
        memory.driver.fill(address, 0, num_bytes + _UNIT)
        reading = Reading(source=address, found=Address(address + num_bytes), count=num_bytes // _UNIT)
        processors = memory.driver.info.multiprocessors

        def read(blocks: int) -> Callable[[], None]:
            def once() -> None:
                for _ in range(_PASSES):  # in a row, so that starting them takes none of the time
                    backend.kernels.launch("read_memory", reading, grid=(blocks, 1, 1))
                memory.driver.synchronize()

            return once

        best = min(_best_time(read(each * processors), 2) for each in _BLOCKS_A_PROCESSOR)
        return _PASSES * num_bytes / best
    finally:
        memory.free(address)


def _of_ram() -> float | None:
    num_bytes = min(_RAM_BYTES, (available_bytes() - RESERVE_BYTES) // 2)
    if num_bytes < _LEAST_CARD_BYTES:
        return None
    numbers = torch.ones(num_bytes // _WORD)  # zeros may all be one page, until somebody writes to them
    return numbers.nbytes / _best_time(lambda: float(numbers.sum()), _PASSES)


def _best_time(work: Callable[[], object], repeats: int) -> float:
    """Seconds, behind one time that isn't counted."""
    work()
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return min(times)
