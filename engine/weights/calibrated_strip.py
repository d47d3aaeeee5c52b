"""One matrix into a strip, with all that is known of its inputs."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from engine.weights.code_descent import Improve, descend, improve_plainly
from engine.weights.quantise import quantise
from engine.weights.strips import Bits, Group, Strip

if TYPE_CHECKING:
    from engine.weights.input_statistics import InputStatistics
    from engine.weights.quantise import WeightRows

_SWEEP_WORK = 1.0  # how much longer one sweep over the codes takes than the search for scales


def calibrated_strip(
    weight: WeightRows,
    statistics: InputStatistics | None,
    *,
    bits: Bits,
    group: Group,
    sweeps: int,
    improve: Improve = improve_plainly,
    on_rows: Callable[[float], None],
) -> Strip:
    """Strip of `weight` (N, K): scales by `quantise`; of 4 bits, where moments are known, codes by `descend`.

    improve: what `descend` does its steps by. on_rows: called on this thread, every few milliseconds, with
    how many rows' worth of the work was done since the last time: N in all. Raises what `quantise` raises.
    """
    moments_known = statistics is not None and statistics.moments is not None
    descends = bits == 4 and moments_known and sweeps > 0
    search = 1 / (1 + _SWEEP_WORK * sweeps) if descends else 1.0
    strip = quantise(
        weight,
        bits=bits,
        group=group,
        importance=None if statistics is None else statistics.mean_squares,
        on_rows=lambda count: on_rows(search * count),
    )
    if not descends:
        return strip
    assert statistics is not None
    rows = (1 - search) * weight.shape[0]
    return descend(
        weight,
        strip,
        statistics,
        sweeps=sweeps,
        improve=improve,
        on_share=lambda share: on_rows(rows * share),
    )
