"""Products with strips against their definition, by both paths."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import llvmlite.binding as llvm
import pytest
import torch

from engine.cpu import compiler
from engine.cpu import strip_matrix as matrix_module
from engine.cpu.compiler import optimised_module
from engine.cpu.strip_ir import KERNELS, kernel_text
from engine.cpu.strip_kernels import (
    StripDot,
    StripKernels,
    compile_kernels,
    strip_kernels,
)
from engine.cpu.strip_matrix import StripMatrix
from engine.weights.strips import Strip, dequantise, pack, take_rows

ROOT = Path(__file__).resolve().parents[3]
SHAPES = [(1, 32), (3, 96), (4, 288), (37, 576), (130, 256), (65, 1536)]
TOKENS = [1, 2, 3, 16, 33, 65]


def random_strip(rows: int, columns: int, *, bits: int, group: int = 32, offsets: bool = False) -> Strip:
    limit = 8 if bits == 4 else 128
    codes = torch.randint(1 - limit, limit, (rows, columns), dtype=torch.int8)
    scales = torch.randn(rows, columns // group) / limit
    shifts = torch.randn(rows, columns // group) if offsets else None
    return Strip(bits, group, pack(codes) if bits == 4 else codes, scales, shifts)  # type: ignore[arg-type]


def assert_is_product(y: torch.Tensor, x: torch.Tensor, weight: torch.Tensor) -> None:
    """Within 1e-6 of the sum of magnitudes, which is what rounding each step to float32 may cost."""
    exact = x.double() @ weight.double().T
    bound = 1e-6 * (x.double().abs() @ weight.double().abs().T) + 1e-30
    assert y.shape == exact.shape
    assert bool(((y - exact).abs() <= bound).all())


@pytest.fixture(params=["kernels", "plain"])
def path(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "plain":
        monkeypatch.setattr(matrix_module, "strip_kernels", lambda: None)
    else:
        assert strip_kernels() is not None
    return request.param


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("offsets", [False, True])
def test_product_is_that_of_the_definition(
    shape: tuple[int, int], bits: int, offsets: bool, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(matrix_module, "_SCRATCH_BYTES", 4 * shape[1] * 16)  # sixteen rows at a time
    strip = random_strip(*shape, bits=bits, offsets=offsets)
    bias = torch.randn(shape[0])
    for num_tokens in TOKENS:
        x = torch.randn(num_tokens, shape[1])
        assert_is_product(StripMatrix(strip)(x), x, dequantise(strip))
        with_bias = StripMatrix(strip, bias)(x)
        torch.testing.assert_close(with_bias, StripMatrix(strip)(x) + bias, rtol=0, atol=0)


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("num_tokens", [1, 5])
def test_wide_groups_share_their_scale(bits: int, num_tokens: int, path: str) -> None:
    strip = random_strip(21, 768, bits=bits, group=256, offsets=True)
    x = torch.randn(num_tokens, 768)
    assert_is_product(StripMatrix(strip)(x), x, dequantise(strip))


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("offsets", [False, True])
@pytest.mark.parametrize("group", [32, 256])
def test_widened_rows_are_the_definition_bit_for_bit(bits: int, offsets: bool, group: int) -> None:
    strip = random_strip(19, 512, bits=bits, group=group, offsets=offsets)
    out = torch.full((19, 512), torch.nan)
    kernels = strip_kernels()
    assert kernels is not None
    kernels.widen(strip, out)
    assert torch.equal(out, dequantise(strip))


def test_every_code_has_its_value() -> None:
    codes = torch.arange(-8, 8, dtype=torch.int8).repeat(2).view(1, 32)
    for strip in (Strip(4, 32, pack(codes), torch.ones(1, 1)), Strip(8, 32, codes * 8, torch.ones(1, 1) / 8)):
        y = torch.cat([StripMatrix(strip)(row[None]) for row in torch.eye(32)])
        assert torch.equal(y[:, 0], codes[0].float())


@pytest.mark.parametrize("threads", [1, 2, 3, 7])
@pytest.mark.parametrize("open_mp", [True, False])
@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("offsets", [True, False])
def test_a_row_has_the_same_bits_whoever_computes_it(
    threads: int, open_mp: bool, bits: int, offsets: bool
) -> None:
    """Also where torch's threads can't be had, as on Windows, and where there are fewer rows than shares."""
    strip, x = random_strip(38, 288, bits=bits, offsets=offsets), torch.randn(1, 288)
    compiled = strip_kernels()
    assert compiled is not None
    expected = torch.cat([StripDot(compiled, take_rows(strip, i, i + 1))(x) for i in range(38)], dim=1)
    kernels = compiled if open_mp else StripKernels(compiled.engine, None)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        assert torch.equal(StripDot(kernels, strip)(x), expected)
    finally:
        torch.set_num_threads(before)


def test_a_team_smaller_than_wanted_still_does_all_rows() -> None:
    """OpenMP may give fewer threads than it is asked for; no row may be left as it lay."""
    program = (
        "import torch\n"
        "from engine.cpu.strip_matrix import StripMatrix\n"
        "from engine.weights.strips import Strip\n"
        "torch.set_num_threads(4)\n"
        "strip = Strip(8, 32, torch.ones(40, 32, dtype=torch.int8), torch.ones(40, 1))\n"
        "for _ in range(20):\n"
        "    assert bool((StripMatrix(strip)(torch.ones(1, 32)) == 32).all())\n"
        "    torch.full((1, 40), 7.0)\n"
    )
    environment = {**os.environ, "OMP_THREAD_LIMIT": "2"}
    subprocess.run([sys.executable, "-c", program], check=True, env=environment, timeout=120, cwd=ROOT)


def test_rows_do_not_depend_on_how_many_there_are() -> None:
    strip, x = random_strip(100, 576, bits=4), torch.randn(65, 576)
    together = StripMatrix(strip)(x)
    for count in (2, 7, 64):
        assert torch.equal(StripMatrix(strip)(x[:count]), together[:count])


def test_slices_of_a_wider_x_are_fine() -> None:
    strip, x = random_strip(10, 64, bits=8), torch.randn(1, 128)
    assert torch.equal(StripMatrix(strip)(x[:, 32:96]), StripMatrix(strip)(x[:, 32:96].clone()))


def test_rows_of_zeros_give_zero() -> None:
    for bits in (4, 8):
        strip = Strip(
            bits,
            32,
            torch.zeros(5, 64 * bits // 8, dtype=torch.uint8 if bits == 4 else torch.int8),
            torch.ones(5, 2),
        )  # type: ignore[arg-type]
        for num_tokens in (1, 3):
            assert not StripMatrix(strip)(torch.randn(num_tokens, 64)).any()


def test_without_llvm_there_are_no_kernels_and_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "llvmlite.binding", None)
    assert compiler._compiled_once.__wrapped__(kernel_text()) is None


def has_feature(name: str) -> bool:
    return bool(llvm.get_host_cpu_features().get(name, False))


@pytest.mark.parametrize(
    ("cpu", "feature"), [("x86-64", "sse2"), ("x86-64-v3", "avx2"), ("x86-64-v4", "avx512f")]
)
@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("offsets", [False, True])
def test_kernels_for_older_processors_are_right(cpu: str, feature: str, bits: int, offsets: bool) -> None:
    """Registers of 128, 256 and 512 bits; those that can multiply and add in one step give the same bits."""
    compiled = strip_kernels()
    assert compiled is not None
    if not has_feature(feature):
        pytest.skip(f"this processor has no {feature}")
    kernels = compile_kernels(cpu)
    for shape in SHAPES:
        strip, x = random_strip(*shape, bits=bits, offsets=offsets), torch.randn(1, shape[1])
        y = StripDot(kernels, strip)(x)
        assert_is_product(y, x, dequantise(strip))
        if cpu != "x86-64" and has_feature("fma"):
            assert torch.equal(y, StripDot(compiled, strip)(x))
        out = torch.full(shape, torch.nan)
        kernels.widen(strip, out)
        assert torch.equal(out, dequantise(strip))


@pytest.mark.parametrize(
    ("triple", "multiply_and_add"),
    [("aarch64-unknown-linux-gnu", "fmla"), ("x86_64-unknown-linux-gnu", "mulps")],
)
def test_kernels_compile_for_other_processors(triple: str, multiply_and_add: str) -> None:
    """To text only, since nothing here could run it; with vectors, not number by number."""
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    machine = llvm.Target.from_triple(triple).create_target_machine(opt=3)
    assembly = machine.emit_assembly(optimised_module(kernel_text(), machine))
    for name in KERNELS:
        assert f"\n{name}:" in assembly
        assert f"\n{name}_share:" in assembly
    assert multiply_and_add in assembly
