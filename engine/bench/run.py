"""One benchmark, from a path to its figures."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from engine.backend import Backend
from engine.bench.bandwidth import read_bandwidth
from engine.bench.clocks import read_clocks
from engine.bench.configuration import read_configuration
from engine.bench.load_times import LoadTimes
from engine.bench.measurements import DecodeFigure, Measurements, Say, decode_json
from engine.bench.phases import phases_json, phases_of
from engine.bench.plan import Plan
from engine.bench.random_model import load_random
from engine.bench.traffic import Traffic, traffic_of
from engine.checkpoints.model_folder import open_model
from engine.config import EngineConfig
from engine.cuda.backend import CudaBackend
from engine.errors import SettingError
from engine.kv_geometry import KvGeometry
from engine.loading import load_model
from engine.notices import Notice
from engine.resolution import ResolvedConfig
from engine.weights.strip_shelf import StripShelf


class PlanFor(Protocol):
    def __call__(self, *, context: int) -> Plan:
        """What to measure of a model with such a context. Raises SettingError."""


@dataclass(frozen=True)
class Loaded:
    name: str
    backend: Backend
    config: ResolvedConfig
    notices: tuple[Notice, ...]
    shelf: StripShelf | None = None

    def settle(self) -> tuple[Notice, ...]:
        """What a load does behind it would take time from what is measured. Returns what went wrong there."""
        if self.shelf is None:
            return ()
        self.shelf.wait()
        return self.shelf.take_notices()


@dataclass(frozen=True)
class Figures:
    """json: as the command prints it, but for notices."""

    json: dict[str, Any]
    notices: tuple[Notice, ...]


def run_bench(
    path: Path,
    config: EngineConfig,
    plan_for: PlanFor,
    *,
    random_weights: bool,
    times: LoadTimes,
    say: Say,
    cancel: threading.Event,
) -> Figures:
    """Loads what is at a path and measures it. Raises EngineError, Cancelled."""
    if random_weights:
        loaded, plan = _load_random(path, config, plan_for, times, cancel)
    else:
        loaded, plan = _load_model(path, config, plan_for, times, cancel)
    times.finish()
    try:
        late = loaded.settle()
        found = _measured(loaded, plan, times, random_weights, say, cancel)
        return Figures(found, (*loaded.notices, *late))
    finally:
        loaded.backend.close()


def _load_random(
    path: Path, config: EngineConfig, plan_for: PlanFor, times: LoadTimes, cancel: threading.Event
) -> tuple[Loaded, Plan]:
    configuration = read_configuration(path)
    plan = _plan(plan_for, config, configuration.spec.context_length)
    load = load_random(configuration, config, on_progress=times, cancel=cancel)
    loaded = Loaded(configuration.name, load.backend, load.config, load.notices)
    return loaded, _for_device(plan, loaded)


def _load_model(
    path: Path, config: EngineConfig, plan_for: PlanFor, times: LoadTimes, cancel: threading.Event
) -> tuple[Loaded, Plan]:
    folder = open_model(path)
    try:
        plan = _plan(plan_for, config, folder.spec.context_length)
    except BaseException:
        folder.tensors.close()
        raise
    model = load_model(folder, config, on_progress=times, cancel=cancel)
    model.states.close()  # conversations have no part in this
    summary = model.summary
    loaded = Loaded(summary.name, model.backend, model.config, summary.notices, model.shelf)
    return loaded, _for_device(plan, loaded)


def _plan(plan_for: PlanFor, config: EngineConfig, longest: int) -> Plan:
    """Made before anything is loaded: a mistake is told at once. longest: context of the model."""
    return plan_for(context=longest if config.context is None else min(config.context, longest))


def _for_device(plan: Plan, loaded: Loaded) -> Plan:
    """Raises SettingError, and then the backend is closed."""
    why = ""
    if plan.phases and not isinstance(loaded.backend, CudaBackend):
        why = "the model runs on the CPU"
    elif plan.phases and isinstance(loaded.backend, CudaBackend) and loaded.backend.window is not None:
        why = "not all layers are in the card's memory at once"
    if why:
        loaded.backend.close()
        raise SettingError(f"The phases of a token can't be measured: {why}.", "Leave --phases out.")
    return plan


def _measured(
    loaded: Loaded, plan: Plan, times: LoadTimes, is_random: bool, say: Say, cancel: threading.Event
) -> dict[str, Any]:
    backend = loaded.backend
    geometry = KvGeometry.of(backend.spec, loaded.config.kv)
    traffic = traffic_of(backend, loaded.config.kv)
    clocks_before = _clocks(backend)
    say("reading memory")
    bandwidth = read_bandwidth(backend)
    measurements = Measurements(backend, geometry, plan, say=say, cancel=cancel)
    first_token = measurements.first_token()
    prefill = measurements.prefill()
    decode = measurements.decode()
    found: dict[str, Any] = {
        "model": loaded.name,
        "random_weights": is_random,
        "device": backend.device,
        "device_description": backend.description,
        "driver": backend.memory.driver.info.driver if isinstance(backend, CudaBackend) else None,
        "weights": loaded.config.weights,
        "weight_group": loaded.config.weight_group,
        "weight_bytes": backend.weight_bytes,
        "activations": loaded.config.activations,
        "kv": loaded.config.kv,
        "context": loaded.config.context,
        "repeats": plan.repeats,
        "load_seconds": times.total,
        "load_stages": times.stages,
        "bandwidth_bytes_per_second": bandwidth,
        "first_token": first_token,
        "prefill": prefill,
        "decode": [decode_json(figure, traffic, bandwidth) for figure in decode],
        **_copies(decode),
    }
    if plan.conversations:
        found["interleaved"] = measurements.interleaved()
    if plan.reused:
        found["reused"] = measurements.reused()
    if plan.phases and isinstance(backend, CudaBackend):
        found["phases"] = _phases(backend, measurements, decode, traffic, bandwidth, say)
    return found | {"clocks": {"before": clocks_before, "after": _clocks(backend)}}


def _copies(decode: list[DecodeFigure]) -> dict[str, float]:
    """Between the computer's memory and the card's, for a token: the most at any depth."""
    return {
        "h2d_per_token": max(figure.work.uploads / figure.tokens for figure in decode),
        "d2h_per_token": max(figure.work.downloads / figure.tokens for figure in decode),
    }


def _phases(
    backend: CudaBackend,
    measurements: Measurements,
    decode: list[DecodeFigure],
    traffic: Traffic,
    bandwidth: float | None,
    say: Say,
) -> list[dict[str, Any]]:
    found = []
    for figure in decode:
        say(f"phases at depth {figure.depth:,}")
        conversation = measurements.conversation()
        try:
            measurements.fill(conversation, figure.depth)
            phases = phases_of(backend, conversation, traffic)
        finally:
            conversation.close()
        seconds = figure.times.median
        found.append(phases_json(phases, depth=figure.depth, token_seconds=seconds, bandwidth=bandwidth))
    return found


def _clocks(backend: Backend) -> dict[str, Any] | None:
    if not isinstance(backend, CudaBackend):
        return None
    clocks = read_clocks(backend.memory.driver.info.name)
    return None if clocks is None else clocks.as_json()
