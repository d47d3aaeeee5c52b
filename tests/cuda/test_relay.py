"""Where codes and scales come to lie on the card, place by place as `kernels/tiles.cuh` says."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from workbench import Workbench, strip_of

from engine.cpu.strip_matrix import StripMatrix
from engine.cuda.matrices import DeviceLinear, linear_image
from engine.cuda.memory import Use
from engine.cuda.tile_layout import most_chains
from engine.weights.strips import Strip


def cut(blocks: int, most_chains: int) -> tuple[int, int]:
    """Blocks of a stretch, of which each chain has four, and chains: as short stretches as suffice."""
    stretch = 1
    while 4 * most_chains * stretch < blocks:
        stretch += 1
    chains = 1
    while 4 * chains * stretch < blocks:
        chains += 1
    return stretch, chains


def expected_codes(strip: Strip, most_chains: int) -> np.ndarray:
    """(tiles, stages, units of 512 bytes, 4 stretches, 8 rows, 16 bytes)"""
    blocks = strip.columns // 32
    pieces = strip.bits // 4
    stretch, chains = cut(blocks, most_chains)
    stored = strip.codes.numpy().view(np.uint8).reshape(strip.rows, blocks, pieces, 16)
    found = np.zeros((-(-strip.rows // 16), chains * stretch, 2 * pieces, 4, 8, 16), np.uint8)
    for row in range(strip.rows):
        half, r = divmod(row % 16, 8)
        for block in range(blocks):
            chain, place = divmod(block, 4 * stretch)
            q, step = divmod(place, stretch)
            for piece in range(pieces):
                unit = half * pieces + piece
                found[row // 16, chain * stretch + step, unit, q, r ^ 2 * q] = stored[row, block, piece]
    return found


def expected_scales(scales: torch.Tensor, strip: Strip, most_chains: int) -> np.ndarray:
    """(tiles, stages, 4 stretches, 8 rows, 2); or, where 256 inputs share one, (tiles, groups, 8 rows, 2)"""
    tiles, groups = -(-strip.rows // 16), strip.columns // strip.group
    stretch, chains = cut(strip.columns // 32, most_chains)
    if strip.group == 32:
        found = np.zeros((tiles, chains * stretch, 4, 8, 2), np.float32)
    else:
        found = np.zeros((tiles, groups, 8, 2), np.float32)
    for row in range(strip.rows):
        half, r = divmod(row % 16, 8)
        for group in range(groups):
            value = scales[row, group].item()
            if strip.group == 32:
                chain, place = divmod(group, 4 * stretch)
                q, step = divmod(place, stretch)
                found[row // 16, chain * stretch + step, q, r, half] = value
            else:
                found[row // 16, group, r, half] = value
    return found


def check(workbench: Workbench, linear: DeviceLinear, strips: list[Strip], most_chains: int) -> None:
    [part] = linear.parts
    codes = np.stack([expected_codes(each, most_chains) for each in strips])
    assert codes.nbytes == len(strips) * part.layout.code_bytes
    found = workbench.get(part.weights, codes.size, dtype=torch.uint8).numpy()
    assert np.array_equal(found.reshape(codes.shape), codes)
    dtype = torch.float16 if part.narrow_scales else torch.float32

    def compare(address: int, numbers: list[torch.Tensor]) -> None:
        pairs = zip(numbers, strips, strict=True)
        wanted = np.stack([expected_scales(each, strip, most_chains) for each, strip in pairs])
        assert wanted.size == len(strips) * part.layout.num_scales
        found = workbench.get(address, wanted.size, dtype=dtype).float().numpy()
        assert np.array_equal(found.reshape(wanted.shape), wanted)

    compare(part.scales, [each.scales for each in strips])
    if strips[0].offsets is None:
        assert not part.offsets
    else:
        compare(part.offsets, [each.offsets for each in strips if each.offsets is not None])


SHAPES = [(1, 32), (16, 128), (21, 96), (35, 576), (17, 1056), (9, 4128)]


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize(("rows", "columns"), SHAPES)
def test_each_code_and_scale_has_its_place_and_around_them_are_zeros(
    rows: int, columns: int, bits: Any, count: int, workbench: Workbench
) -> None:
    strips = [strip_of(rows, columns, bits=bits, seed=seed) for seed in range(count)]
    linear = workbench.linear(*map(StripMatrix, strips))
    assert linear.parts[0].narrow_scales
    check(workbench, linear, strips, most_chains(strips[0].rows, len(strips)))


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("narrow", [False, True])
@pytest.mark.parametrize(("group", "columns"), [(32, 160), (256, 256), (256, 2304)])
def test_so_have_scales_and_offsets_of_any_kind(
    group: Any, columns: int, narrow: bool, bits: Any, workbench: Workbench
) -> None:
    more = {"group": group, "offsets": True, "narrow": narrow}
    strips = [strip_of(21, columns, bits=bits, seed=seed, **more) for seed in (1, 2)]
    linear = workbench.linear(*map(StripMatrix, strips))
    assert linear.parts[0].narrow_scales == narrow
    check(workbench, linear, strips, most_chains(strips[0].rows, len(strips)))


@pytest.mark.parametrize("chains", [1, 2, 5])
@pytest.mark.parametrize("columns", [96, 1056])
def test_rows_are_cut_into_no_more_chains_than_they_may(
    columns: int, chains: int, workbench: Workbench
) -> None:
    strip = strip_of(21, columns, bits=4)
    image = linear_image([StripMatrix(strip)], chains=chains)
    raw, laid = (workbench.memory.allocate(each, Use.WEIGHTS) for each in (image.raw_bytes, image.num_bytes))
    image.send(raw, workbench.card.upload)
    linear = image.lay(raw, laid, workbench.kernels, workbench.card)
    assert linear == image.at(laid)
    check(workbench, linear, [strip], chains)
