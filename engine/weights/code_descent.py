"""Codes of 4 bits chosen together: what one weight's rounding costs, others of its row make good.

`quantise` finds a scale for each group and rounds every weight to the nearest code, as if the inputs of a
row had nothing to do with each other. They have: hidden states lie around a mean and along few directions, in
which errors of rounding add up. With the second moments H = E[x xᵀ] of the inputs, a row's errors e cost

    e H eᵀ = E[(what the row yields - what it should yield) ** 2]

and that is brought down here, one number at a time: from the nearest codes on, group after group, the scale
and then each code is set to what is best while all others stay. No step raises the cost. It takes away about
half of what 4 bits cost a model. Error feedback (Frantar et al., "GPTQ", 2022) looks at each weight once and
moves on; from the few tokens that a load has time for it gained less, and nothing where scales had been
chosen well.

H is taken in blocks of neighbouring inputs, for the time it takes, and its diagonal is raised, for it comes
from few tokens. The sums are torch's products, so one machine always makes the same strips, and another may
make others that are as good.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from engine.weights.strips import LARGEST_CODE, SMALLEST_CODE, Strip, pack, scales_fit, unpack

if TYPE_CHECKING:
    import torch

    from engine.weights.input_statistics import InputStatistics
    from engine.weights.quantise import WeightRows

_ROWS = 512  # at a time: enough for the products, and 2 MB a block
# What is added to the diagonal of H, in parts of its mean: the less, the more tokens were seen.
_DAMPING, _DAMPING_TOKENS = 0.1, 400.0
FURTHEST = 1.5  # a scale may become larger or smaller by less than this factor in one step


def improve_plainly(
    local: torch.Tensor, slopes: torch.Tensor, codes: torch.Tensor, scale: torch.Tensor, narrow: torch.dtype
) -> torch.Tensor:
    """The best scale for one group of all rows, then one code after the other -> how much values grow (G, R).

    local (G, G): the group's part of H. slopes (G, R): half of how fast the cost falls as a value grows.
    codes (G, R) and scale (R,) are changed in place. All float32. narrow: float16 or float32, what scales are
    rounded to.
    """
    import torch

    values = codes * scale
    slopes = _rescale(local, slopes, codes, scale, narrow)
    steps = 1 / (local.diagonal()[:, None] * scale)  # from slopes to codes
    lowest, highest = SMALLEST_CODE[4], LARGEST_CODE[4]
    for row, code, slope, step in zip(local, codes, slopes, steps, strict=True):
        best = torch.addcmul(code, slope, step).round_().clamp_(lowest, highest)
        slopes.addr_(row, (best - code).mul_(scale), alpha=-1)
        code.copy_(best)
    return (codes * scale).sub_(values)


Improve = Callable[
    ["torch.Tensor", "torch.Tensor", "torch.Tensor", "torch.Tensor", "torch.dtype"], "torch.Tensor"
]
"""What does as `improve_plainly` does, up to rounding. It gets contiguous tensors, but for `local`."""


def descend(
    weight: WeightRows,
    strip: Strip,
    statistics: InputStatistics,
    *,
    sweeps: int,
    improve: Improve = improve_plainly,
    on_share: Callable[[float], None] = lambda share: None,
) -> Strip:
    """A strip of 4 bits that stands for `weight` (N, K) as `strip` does, with a lower cost (see above).

    statistics: of the inputs, with moments. sweeps: how often every code is looked at. Scales stay within
    float16 if those of `strip` do. on_share: called on this thread every few milliseconds with which further
    share of the work is done, in all 1; what it raises ends the work.
    """
    import torch

    assert strip.bits == 4
    assert statistics.moments is not None
    narrow = torch.float16 if scales_fit(strip, torch.float16) else torch.float32
    damping = _DAMPING + _DAMPING_TOKENS / statistics.num_tokens
    blocks = [
        _Block(moments, damping, group=strip.group, narrow=narrow, improve=improve)
        for moments in statistics.moments
    ]
    packed, scales = torch.empty_like(strip.codes), strip.scales.clone()
    for start in range(0, strip.rows, _ROWS):
        rows = slice(start, min(start + _ROWS, strip.rows))
        wanted, codes = weight[rows], unpack(strip.codes[rows])
        first = 0
        for block in blocks:
            columns = slice(first, first + block.width)
            groups = slice(columns.start // strip.group, columns.stop // strip.group)
            first = columns.stop
            share = block.width * len(codes) / (strip.rows * strip.columns)
            found, found_scales = block.descend(
                wanted[:, columns].t(),
                codes[:, columns].t().contiguous().float(),
                scales[rows, groups].t().contiguous(),
                sweeps=sweeps,
                on_share=lambda part, share=share: on_share(part * share),  # type: ignore[misc]
            )
            codes[:, columns] = found.t().to(torch.int8)
            scales[rows, groups] = found_scales.t()
        packed[rows] = pack(codes)
    return Strip(4, strip.group, packed, scales)


class _Block:
    """Some neighbouring inputs, (W, R) of any rows at a time: one input's weights side by side."""

    def __init__(
        self, moments: torch.Tensor, damping: float, *, group: int, narrow: torch.dtype, improve: Improve
    ) -> None:
        self.width = len(moments)
        self._moments = moments.clone()
        # Where all inputs are 0, any codes will do: only the division has to have a result.
        self._moments.diagonal().add_(damping * float(moments.diagonal().mean()) + 1e-30)
        self._group = group
        self._narrow = narrow
        self._improve = improve

    def descend(
        self,
        wanted: torch.Tensor,
        codes: torch.Tensor,
        scales: torch.Tensor,
        *,
        sweeps: int,
        on_share: Callable[[float], None],
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """wanted (W, R), of any float type and strides; codes (W, R) and scales (W / G, R), float32 and
        contiguous -> codes and scales, changed in place.
        """
        import torch

        values = (torch.unflatten(codes, 0, (-1, self._group)) * scales[:, None]).flatten(0, 1)
        errors = torch.sub(wanted, values, out=values)
        slopes = self._moments @ errors  # half of how fast the cost falls as a value grows
        for sweep in range(sweeps):
            for index in range(len(scales)):
                inputs = slice(index * self._group, (index + 1) * self._group)
                local = self._moments[inputs, inputs]
                changes = self._improve(local, slopes[inputs], codes[inputs], scales[index], self._narrow)
                # In the last sweep, groups that are done need no slopes any more.
                ahead = slice(inputs.stop if sweep == sweeps - 1 else 0, None)
                slopes[ahead].addmm_(self._moments[ahead, inputs], changes, alpha=-1)
                on_share(1 / (sweeps * len(scales)))
        return codes, scales


def _rescale(
    local: torch.Tensor, slopes: torch.Tensor, codes: torch.Tensor, scale: torch.Tensor, narrow: torch.dtype
) -> torch.Tensor:
    """Sets the best scale for the codes as they are, where that is near and has the same sign -> the slopes
    with it.
    """
    import torch

    pull = local @ codes
    curvature = (codes * pull).sum(0)
    best = scale + (codes * slopes).sum(0) / curvature.clamp_min(torch.finfo(torch.float32).tiny)
    best = best.to(narrow).float()
    change = best / scale
    near = (change < FURTHEST) & (change > 1 / FURTHEST) & (curvature > 0)
    best = torch.where(near, best, scale)
    found = torch.addcmul(slopes, pull, best - scale, value=-1)
    scale.copy_(best)
    return found
