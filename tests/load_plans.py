"""How a model would be loaded, on a card with room for all of it."""

from __future__ import annotations

from engine.load_plan import LoadPlan

GB = 10**9

PLAN = LoadPlan(
    device="cuda",
    weights="q8",
    kv="int8",
    context=8192,
    layers=30,
    window=None,
    weight_bytes=4 * GB,
    workspace_bytes=GB,
    cache_bytes=2 * GB,
    free_bytes=20 * GB,
    total_bytes=24 * GB,
    tokens=8192,
    ram_bytes=4 * GB,
    ram_free_bytes=30 * GB,
)
