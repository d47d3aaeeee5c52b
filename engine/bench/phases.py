"""Where a token's time goes on a card: every kind of launch by itself, over the weights of all layers, so
that none of them finds its bytes in a cache where a real token wouldn't.

The launches of one token are noted where they are made (`KernelSet.launch`). Those that are alike (the same
kernel and grid, arguments that differ in addresses alone) are a phase; they are recorded, and repeated by
themselves.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from engine.bench.conversation import Conversation
from engine.bench.traffic import Traffic, layer_maps, linear_bytes
from engine.cuda.backend import CudaBackend
from engine.cuda.kernel_set import KernelSet

_LAUNCHES_AT_ONCE = 64  # in a recording at least, so that starting it takes none of the time
_SECONDS = 0.05  # that a phase is measured for
_MOST_REPLAYS = 200


@dataclass(frozen=True)
class Launch:
    """One that was made: with a copy of its arguments, and whatever else it was made with."""

    kernel: str
    arguments: ctypes.Structure
    options: Mapping[str, Any]

    def again(self, kernels: KernelSet) -> None:
        kernels.launch(self.kernel, self.arguments, **self.options)


@dataclass
class Phase:
    """name: which matrix it reads, or "". num_bytes: of weights or cache, which all its launches read."""

    kernel: str
    name: str
    launches: list[Launch] = field(default_factory=list)
    num_bytes: int = 0
    seconds: float = 0.0  # of one launch

    def as_json(self, bandwidth: float | None) -> dict[str, Any]:
        count = len(self.launches)
        each = self.num_bytes / count
        least = None if bandwidth is None else each / bandwidth
        return {
            "kernel": self.kernel,
            "name": self.name,
            "launches": count,
            "microseconds": 1e6 * self.seconds,
            "bytes": round(each),
            "bandwidth_fraction": None if least is None else least / self.seconds,
            "lost_microseconds": None if least is None else 1e6 * (self.seconds - least),
        }


def phases_of(backend: CudaBackend, conversation: Conversation, traffic: Traffic) -> list[Phase]:
    """Of a token behind those of the conversation, in the order of their first launches, measured. The
    conversation's next row holds anything afterwards.
    """
    depth = conversation.length
    [token] = conversation.random_ids(1)
    conversation.reserve(depth + 1)
    backend.forget_recordings()
    with noted_launches(backend.kernels) as launches:  # of a recording, or one by one where there is none
        conversation.step(token)
    phases = _phases(backend, launches, traffic.cache(depth))
    for phase in phases:
        _restore(conversation, depth, token)
        phase.seconds = _seconds_of_one(backend, phase.launches)
    _restore(conversation, depth, token)
    conversation.rewind(depth)
    return phases


def _restore(conversation: Conversation, depth: int, token: int) -> None:
    """What a step finds on the card: launches that are repeated move its position on, and its draws."""
    conversation.begin_anew()
    conversation.rewind(depth)
    conversation.step(token)


def phases_json(
    phases: Sequence[Phase], *, depth: int, token_seconds: float, bandwidth: float | None
) -> dict[str, Any]:
    """token_seconds: of a whole token, as it was measured."""
    launches = sum(len(phase.launches) for phase in phases)
    alone = sum(len(phase.launches) * phase.seconds for phase in phases)
    num_bytes = sum(phase.num_bytes for phase in phases)
    lost = None if bandwidth is None else 1e6 * (token_seconds - num_bytes / bandwidth) / launches
    return {
        "depth": depth,
        "launches": launches,
        "microseconds_of_a_token": 1e6 * token_seconds,
        "microseconds_of_phases": 1e6 * alone,
        "lost_microseconds_per_launch": lost,
        "phases": [phase.as_json(bandwidth) for phase in phases],
    }


@contextmanager
def noted_launches(kernels: KernelSet) -> Iterator[list[Launch]]:
    """All that are made within it, by whomever: they go through an attribute of the object itself, which is
    in front of its method.
    """
    launches: list[Launch] = []
    launch = kernels.launch

    def note(kernel: str, arguments: ctypes.Structure, **options: Any) -> None:
        launches.append(Launch(kernel, type(arguments).from_buffer_copy(arguments), options))
        launch(kernel, arguments, **options)

    vars(kernels)["launch"] = note
    try:
        yield launches
    finally:
        del vars(kernels)["launch"]


def _phases(backend: CudaBackend, launches: Sequence[Launch], cache_bytes: int) -> list[Phase]:
    weights = _weights_by_address(backend)
    phases: dict[object, Phase] = {}
    for launch in launches:
        pointers, others = _fields(launch.arguments)
        names, num_bytes = [], 0
        for address in pointers:
            name, size = weights.get(address, ("", 0))
            if name and name not in names:
                names.append(name)
                num_bytes += size
        name = " + ".join(names)
        grid = tuple(launch.options.get("grid", ()))
        phase = phases.setdefault(
            (launch.kernel, name, grid, tuple(others)), Phase(launch.kernel, name or _role(launch.kernel))
        )
        phase.launches.append(launch)
        phase.num_bytes += num_bytes
    attending = [phase for phase in phases.values() if phase.name == _CACHE]
    readers = sum(len(phase.launches) for phase in attending)
    for phase in attending:
        phase.num_bytes += cache_bytes * len(phase.launches) // readers
    return list(phases.values())


_CACHE = "cache"


def _role(kernel: str) -> str:
    return _CACHE if kernel.startswith("attend") else ""


def _weights_by_address(backend: CudaBackend) -> dict[int, tuple[str, int]]:
    """Where weights begin on the card: the name of their map, and how much of them a token reads."""
    weights = backend.weights
    found: dict[int, tuple[str, int]] = {}
    for part in weights.head.parts:
        found[part.weights] = ("head", linear_bytes(weights.head) // len(weights.head.parts))
    for index in range(backend.spec.num_layers):
        with weights.layers.running(index) as layer:
            for name, linear, num_bytes in layer_maps(layer):
                for part in linear.parts:
                    found[part.weights] = (name, num_bytes // len(linear.parts))
    return found


def _fields(structure: ctypes.Structure) -> tuple[list[int], list[object]]:
    """Addresses, and what else a launch depends on. Of 64 bits but no address are offsets and strides, which
    differ from layer to layer.
    """
    pointers: list[int] = []
    others: list[object] = []
    for name, kind, *_ in structure._fields_:
        value = getattr(structure, name)
        if isinstance(value, ctypes.Structure):
            inner_pointers, inner_others = _fields(value)
            pointers += inner_pointers
            others += inner_others
        elif kind is ctypes.c_uint64:
            pointers.append(value)
            others.append(value == 0)
        elif ctypes.sizeof(kind) < ctypes.sizeof(ctypes.c_uint64):
            others.append(value if isinstance(value, int | float) else bytes(value))
    return pointers, others


def _seconds_of_one(backend: CudaBackend, launches: Sequence[Launch]) -> float:
    """Of launches that follow each other, the mean."""
    rounds = -(-_LAUNCHES_AT_ONCE // len(launches))
    driver = backend.memory.driver

    def all_rounds() -> None:
        for _ in range(rounds):
            for launch in launches:
                launch.again(backend.kernels)

    with backend.kernels.overlapping():  # as in a token
        recording = driver.record(all_rounds)
    try:

        def seconds(replays: int) -> float:
            driver.synchronize()
            start = time.perf_counter()
            for _ in range(replays):
                driver.replay(recording)
            driver.synchronize()
            return time.perf_counter() - start

        first = min(seconds(1), seconds(1))
        replays = max(1, min(_MOST_REPLAYS, round(_SECONDS / max(first, 1e-6))))
        return seconds(replays) / (replays * rounds * len(launches))
    finally:
        driver.discard(recording)
