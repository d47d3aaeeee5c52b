"""Matrices into strips: for each row and group the scale with the least error, weighted by what the inputs
are like.

Plain rounding takes the scale from the largest weight of a group. Here some twenty scales are tried for
each group: the largest weight is let beyond the range of codes by degrees, on both of its ends (codes of 4
bits reach -8 on one side and only 7 on the other, so the sign of the scale matters), then the best scale is
refined. What counts is

    sum over k of importance[k] * (weight[k] - code[k] * scale) ** 2

With importance[k] = E[x_k ** 2], the mean square of the matrix's k-th input over some text, this is the
mean square error that the group makes in the output, but for the correlation between inputs. It is the
weighting that makes the difference: without it such a search costs a model more than plain rounding does.

Every step works on single numbers or adds them in an order that is written out, and each is rounded as IEEE
754 says. So a strip has the same bits whatever the chunks, the number of threads or the processor.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Protocol

from engine.errors import ModelFileError
from engine.weights.strips import LARGEST_CODE, Bits, Group, Strip, check_width
from engine.weights.worker_threads import worker_threads

if TYPE_CHECKING:
    import torch

    from engine.weights.scale_search import Floats, ScaleDtype, ScaleSearch

QUANTISER_VERSION = 2
"""Raised whenever the same weights would become other strips, or strips get other names: those that were kept
by an earlier version are made again then.
"""

CHUNK_ELEMENTS = 2**18  # at a time and thread: long enough for numpy, and its buffers stay in the cache
LARGEST_WEIGHT = 2.0**120  # a product with more is soon no float32

_SMALLEST_NORMAL = 2.0**-14  # of float16
_LARGEST_PLAIN = 2.0**15  # scales above the plain one are tried, too, and 65504 is the end


class WeightRows(Protocol):
    """A matrix (N, K) of which some rows at a time are looked at: a tensor, or what makes them then."""

    @property
    def shape(self) -> Sequence[int]: ...

    def __getitem__(self, rows: slice, /) -> torch.Tensor: ...


def quantise(
    weight: WeightRows,
    *,
    bits: Bits,
    group: Group = 32,
    importance: torch.Tensor | None = None,
    scale_dtype: ScaleDtype = "float16",
    on_rows: Callable[[int], None] = lambda _: None,
) -> Strip:
    """Strip of `weight` (N, K), of 16, 32 or 64 bits, on the CPU. Uses as many threads as torch would.

    importance: (K,), finite and not negative. Only ratios within a group matter, and a group where it is 0
    throughout counts as unweighted. None: all inputs alike. The weighted error of a group is at most that
    of plain rounding (the largest weight at LARGEST_CODE or, for 4 bits, at -8) with scales of the same
    type.

    scale_dtype: a type that holds every scale exactly, though strips keep them as float32; codes are chosen
    for the scale as rounded. Some matrices get float32 scales though float16 was asked for: see
    `_narrowing`.

    A group whose codes are all 0 has the scale 1, and scales of 8 bits are positive.

    on_rows: called on this thread with how many more rows are finished, every few milliseconds and at first
    with 0. What it raises ends the work: nothing of it goes on in the background.

    Beside the strip and `weight` it takes less than 32 bytes for each of CHUNK_ELEMENTS inputs (or of one
    row, where that is more) and thread.

    Raises ModelFileError for weights that are no numbers or are beyond LARGEST_WEIGHT (the caller names the
    tensor), and ValueError where K isn't a multiple of `group`.
    """
    import torch

    num_rows, num_inputs = weight.shape
    check_width(num_inputs, group)
    chunk_rows = max(1, min(num_rows, CHUNK_ELEMENTS // num_inputs))
    starts = range(0, num_rows, chunk_rows)

    def chunk(start: int) -> torch.Tensor:
        found = weight[start : start + chunk_rows].detach()
        assert found.is_floating_point()
        return found

    codes = torch.empty(num_rows, num_inputs * bits // 8, dtype=torch.int8 if bits == 8 else torch.uint8)
    scales = torch.empty(num_rows, num_inputs // group)
    num_threads = max(1, min(torch.get_num_threads(), len(starts)))
    with worker_threads(num_threads, "quantise") as pool:
        peak = 0.0
        for found in pool.map(lambda start: _peak(chunk(start)), starts):
            peak = max(peak, found)
            on_rows(0)
        if peak > LARGEST_WEIGHT:
            raise ModelFileError("Some of its numbers are not finite, or too large to be computed with.")
        work = _Quantiser(
            bits, group, importance, _narrowing(scale_dtype, peak, bits), (chunk_rows, num_inputs)
        )

        def fill(start: int) -> int:
            rows = slice(start, start + chunk_rows)
            work(chunk(start), codes[rows], scales[rows])
            return len(codes[rows])

        for num_done in pool.map(fill, starts):
            on_rows(num_done)
    return Strip(bits, group, codes, scales)


def _narrowing(wanted: ScaleDtype, peak: float, bits: Bits) -> ScaleDtype:
    """The type of a matrix's scales, by the plain scale of its largest weight.

    With float16 and that scale in its normal range, the steps of 2 ** -24 between the smallest scales move
    no weight by more than 2 ** -25, a thousandth of what rounding does to the largest group: groups of
    small weights are coarser than with float32, but the matrix is not. So rows of tiny numbers, as unused
    tokens have, don't keep a backend from narrowing all scales. If the whole matrix is that small (or too
    large), float16 would cost accuracy, and it gets float32. The rule looks at the matrix, not at groups:
    one odd scale is enough to make a backend keep all of them wide.
    """
    scale = peak / LARGEST_CODE[bits]
    if wanted == "float16" and peak > 0 and not _SMALLEST_NORMAL <= scale <= _LARGEST_PLAIN:
        return "float32"
    return wanted


def _peak(chunk: torch.Tensor) -> float:
    """The largest magnitude, infinity if one is no number. Magnitudes are in the order of their bits."""
    import torch

    kind = {2: torch.int16, 4: torch.int32, 8: torch.int64}[chunk.element_size()]
    highest = int((chunk.view(kind).numpy() & torch.iinfo(kind).max).max())
    peak = float(torch.tensor(highest, dtype=kind).view(chunk.dtype))
    return math.inf if math.isnan(peak) else peak


class _Quantiser:
    """Called with chunks of one matrix, from any number of threads at a time."""

    def __init__(
        self,
        bits: Bits,
        group: Group,
        importance: torch.Tensor | None,
        scale_dtype: ScaleDtype,
        chunk_shape: tuple[int, int],
    ) -> None:
        self._bits: Bits = bits
        self._group = group
        self._max_groups = math.prod(chunk_shape) // group
        self._scale_dtype: ScaleDtype = scale_dtype
        self._importance = None if importance is None else _spread(importance, group, chunk_shape)
        self._idle: SimpleQueue[ScaleSearch] = SimpleQueue()

    def __call__(self, chunk: torch.Tensor, codes: torch.Tensor, scales: torch.Tensor) -> None:
        """Fills the chunk's codes and scales."""
        import torch

        from engine.weights.scale_search import packed

        num_groups = chunk.numel() // self._group
        importance = None if self._importance is None else self._importance[:, :num_groups]
        search = self._taken()
        _widen(chunk.reshape(num_groups, self._group), search.x[:, :num_groups])
        found, found_scales = search.run(num_groups, importance)
        self._idle.put(search)
        if self._bits == 4:
            codes.view(num_groups, -1).copy_(torch.from_numpy(packed(found)).t())
        else:
            codes.view(num_groups, -1).copy_(torch.from_numpy(found).t())
        scales.view(-1).copy_(torch.from_numpy(found_scales))

    def _taken(self) -> ScaleSearch:
        """Buffers that no other thread uses now. They are as many as there are threads."""
        from engine.weights.scale_search import ScaleSearch

        try:
            return self._idle.get_nowait()
        except Empty:
            return ScaleSearch(self._bits, self._group, self._max_groups, self._scale_dtype)


def _widen(chunk: torch.Tensor, out: Floats) -> None:
    """`chunk` (M, G) -> float32 (G, M). torch turns matrices fastest, numpy needs no threads of its own to
    widen.
    """
    import numpy as np
    import torch

    if chunk.dtype == torch.float32:
        torch.from_numpy(out).copy_(chunk.t())
    elif chunk.dtype == torch.bfloat16:
        bits = chunk.view(torch.int16).t().contiguous().numpy().view(np.uint16)
        np.left_shift(bits, 16, out=out.view(np.uint32), dtype=np.uint32)
    else:
        np.copyto(out, chunk.t().contiguous().numpy(), casting="same_kind")


def _spread(importance: torch.Tensor, group: int, chunk_shape: tuple[int, int]) -> Floats:
    """(K,) -> (G, M) for the groups of a chunk, in [0, 1]: over its largest in each group, 1 in a group of
    zeros.
    """
    import numpy as np
    import torch

    num_rows, num_inputs = chunk_shape
    if importance.shape != (num_inputs,):
        raise ValueError(f"{num_inputs} inputs need as many importances, not {tuple(importance.shape)}.")
    groups = importance.detach().double().view(-1, group)
    if not bool((groups.isfinite() & (groups >= 0)).all()):
        raise ValueError("Importances have to be finite and not negative.")
    largest = groups.amax(1, keepdim=True)
    ratios = torch.where(largest > 0, groups / largest, 1.0).float()
    spread: Floats = np.tile(ratios.t().numpy(), num_rows)
    return spread
