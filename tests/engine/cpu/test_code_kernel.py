"""The compiled steps over the codes of a group are those of the plain path."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.cpu import code_kernel
from engine.cpu.code_kernel import improve
from engine.weights.code_descent import descend, improve_plainly
from engine.weights.input_statistics import InputObserver
from engine.weights.quantise import quantise
from engine.weights.strips import codes_of, dequantise


def group_of(size: int, rows: int, *, scale: float, seed: int = 0) -> tuple[torch.Tensor, ...]:
    """local, slopes, codes and scale; the codes are the nearest ones, and scales have either sign."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(2 * size, size, generator=generator) + torch.randn(size, generator=generator)
    local = x.t() @ x / len(x) + 0.1 * torch.eye(size)
    signs = torch.randint(0, 2, (rows,), generator=generator) * 2 - 1
    scales = (scale * (1 + torch.rand(rows, generator=generator)) * signs).half().float()
    wanted = 3 * torch.randn(size, rows, generator=generator)
    codes = wanted.round().clamp(-8, 7)
    return local, local @ ((wanted - codes) * scales), codes, scales


def test_the_kernel_can_be_compiled_here() -> None:
    pytest.importorskip("llvmlite")
    assert code_kernel._kernels() is not None


@given(
    size=st.sampled_from([32, 256]),
    rows=st.integers(1, 70),
    scale=st.sampled_from([2e-7, 1e-4, 0.02, 3.0, 2e4]),
    narrow=st.sampled_from([torch.float16, torch.float32]),
    seed=st.integers(0, 1000),
)
@settings(max_examples=40, deadline=None)
def test_both_paths_choose_the_same(
    size: int, rows: int, scale: float, narrow: torch.dtype, seed: int
) -> None:
    local, slopes, codes, scales = group_of(size, rows, scale=scale, seed=seed)
    values, kept_slopes = codes * scales, slopes.clone()
    plain_codes, plain_scales = codes.clone(), scales.clone()
    improve_plainly(local, slopes, plain_codes, plain_scales, narrow)
    assert torch.equal(slopes, kept_slopes)
    changes = improve(local, slopes, codes, scales, narrow)
    assert torch.equal(slopes, kept_slopes)
    torch.testing.assert_close(changes, codes * scales - values, rtol=1e-5, atol=1e-6 * scale)
    # A step of float16; of its subnormal numbers, which are as far from each other everywhere.
    torch.testing.assert_close(scales, plain_scales, rtol=2**-10, atol=2**-24)
    same = (codes == plain_codes).all(0)  # once one code of a row differs, those behind it may
    assert int((~same).sum()) <= 1 + rows // 10
    if narrow == torch.float16:
        assert torch.equal(scales.half().float(), scales)


@pytest.mark.parametrize("sign", [1, -1])
def test_scales_are_rounded_to_float16_as_torch_does(sign: int) -> None:
    """With one code of 1 and no correlation the best scale is the scale and the slope together, exactly."""
    generator = torch.Generator().manual_seed(0)
    scales = (2.0 ** torch.linspace(-26, 16.2, 20011)).mul_(sign)
    rows = len(scales)
    wanted = scales * (1 + torch.rand(rows, generator=generator) / 4)
    halfway = ((wanted.view(torch.int32) & -(2**13)) | 2**12).view(torch.float32)
    wanted = torch.where(torch.arange(rows) % 3 == 0, halfway, wanted)
    slopes, codes = torch.zeros(32, rows), torch.zeros(32, rows)
    slopes[5], codes[5] = wanted - scales, 1
    found, plain = scales.clone(), scales.clone()
    improve(torch.eye(32), slopes, codes.clone(), found, torch.float16)
    improve_plainly(torch.eye(32), slopes, codes.clone(), plain, torch.float16)
    assert torch.equal(found, plain)
    assert int((found != scales).sum()) > rows // 2


@pytest.mark.parametrize("size", [32, 256])
def test_a_row_has_the_same_bits_whatever_threads_and_rows_are_around_it(size: int) -> None:
    if code_kernel._kernels() is None:
        pytest.skip("torch's products say nothing of the order in which they add")
    local, slopes, codes, scales = group_of(size, 333, scale=0.02)
    threads = torch.get_num_threads()
    found = []
    try:
        for count in (1, 2, 3):
            torch.set_num_threads(count)
            own_codes, own_scales = codes.clone(), scales.clone()
            changes = improve(local, slopes, own_codes, own_scales, torch.float16)
            found.append((changes, own_codes, own_scales))
    finally:
        torch.set_num_threads(threads)
    part_codes, part_scales = codes[:, 37:90].contiguous(), scales[37:90].clone()
    changes = improve(local, slopes[:, 37:90].contiguous(), part_codes, part_scales, torch.float16)
    part = changes, part_codes, part_scales
    for others in found[1:]:
        assert all(torch.equal(*pair) for pair in zip(found[0], others, strict=True))
    assert all(torch.equal(a[..., 37:90], b) for a, b in zip(found[0], part, strict=True))


@pytest.mark.parametrize("rows", [1, 15, 17, 31])
def test_nothing_is_written_behind_the_last_row(rows: int) -> None:
    local, slopes, codes, scales = group_of(32, rows, scale=0.02)
    memory = torch.full((32 * rows + 16,), 77.0)
    scale_memory = torch.full((rows + 16,), 77.0)
    memory[:-16], scale_memory[:-16] = codes.flatten(), scales
    improve(local, slopes, memory[:-16].view(32, rows), scale_memory[:-16], torch.float16)
    assert bool((memory[-16:] == 77).all())
    assert bool((scale_memory[-16:] == 77).all())
    assert not torch.equal(memory[:-16], codes.flatten())


@pytest.mark.parametrize("group", [32, 256])
def test_a_matrix_costs_the_same_on_both_paths(group: int) -> None:
    generator = torch.Generator().manual_seed(2)
    x = torch.randn(900, 768, generator=generator) + torch.randn(768, generator=generator)
    observer = InputObserver(768, widest_block=512)
    observer.add(x)
    statistics = observer.statistics()
    assert statistics is not None
    weight = torch.randn(101, 768, generator=generator) * 0.02
    strip = quantise(weight, bits=4, group=group, importance=statistics.mean_squares)  # type: ignore[arg-type]
    plain, compiled = (
        descend(weight, strip, statistics, sweeps=2, improve=each) for each in (improve_plainly, improve)
    )
    assert float((codes_of(plain) != codes_of(compiled)).float().mean()) < 0.01
    costs = [
        float((x @ (weight - dequantise(each)).t()).square().mean()) for each in (strip, plain, compiled)
    ]
    assert costs[2] == pytest.approx(costs[1], rel=1e-3)
    assert costs[2] < 0.7 * costs[0]


def test_without_llvm_the_plain_path_does_the_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(code_kernel, "_kernels", lambda: None)
    local, slopes, codes, scales = group_of(32, 20, scale=0.02)
    plain_codes, plain_scales = codes.clone(), scales.clone()
    plain = improve_plainly(local, slopes, plain_codes, plain_scales, torch.float16)
    assert torch.equal(improve(local, slopes, codes, scales, torch.float16), plain)
    assert torch.equal(codes, plain_codes)
    assert torch.equal(scales, plain_scales)
