"""Rows as integer products see them: the bound of each form, and what has no number stays told."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from engine.cpu.activations import rounded
from engine.cpu.strip_matrix import StripMatrix
from engine.weights.quantise import quantise


def rows_of(seed: int, exponent: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(3, 96, generator=generator) * 2.0**exponent


@given(seed=st.integers(0, 2**16), exponent=st.integers(-60, 60))
def test_no_number_moves_by_more_than_half_a_step(seed: int, exponent: int) -> None:
    x = rows_of(seed, exponent)
    scales = x.view(3, 3, 32).abs().amax(-1, keepdim=True).expand(3, 3, 32).reshape(3, 96).double() / 127
    for form, steps in (("int8", 1), ("int8x2", 254)):
        moved = (rounded(x, form).double() - x.double()).abs() / scales  # type: ignore[arg-type]
        assert moved.max() <= 0.5 / steps + 1e-5
    assert rounded(x, "float") is x


@given(seed=st.integers(0, 2**16))
def test_a_second_plane_is_worth_eight_bits_more(seed: int) -> None:
    x = rows_of(seed, 0)
    coarse, fine = ((rounded(x, form) - x).norm() for form in ("int8", "int8x2"))  # type: ignore[arg-type]
    assert fine < coarse / 100


@pytest.mark.parametrize("form", ["int8", "int8x2"])
def test_groups_of_zeros_and_of_denormals_become_zeros(form: str) -> None:
    x = torch.zeros(1, 64)
    x[0, 40] = 1e-42
    assert torch.equal(rounded(x, form), torch.zeros(1, 64))  # type: ignore[arg-type]


@pytest.mark.parametrize("form", ["int8", "int8x2"])
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_what_is_no_number_is_none_afterwards(form: str, bad: float) -> None:
    x = torch.ones(2, 64)
    x[0, 3] = bad
    found = rounded(x, form)  # type: ignore[arg-type]
    assert found[0, :32].isnan().all()
    assert torch.equal(found[0, 32:], torch.ones(32))
    assert torch.equal(found[1], torch.ones(64))


def test_a_row_has_the_same_bits_beside_others() -> None:
    x = torch.randn(5, 96, generator=torch.Generator().manual_seed(1))
    for form in ("int8", "int8x2"):
        whole = rounded(x, form)  # type: ignore[arg-type]
        assert all(torch.equal(rounded(x[i : i + 1], form)[0], whole[i]) for i in range(5))  # type: ignore[arg-type]


def test_products_with_strips_take_the_rounded_rows() -> None:
    generator = torch.Generator().manual_seed(2)
    x, weight = torch.randn(4, 64, generator=generator), torch.randn(10, 64, generator=generator)
    strip = quantise(weight, bits=8, group=32)
    plain = StripMatrix(strip)
    for form in ("int8", "int8x2"):
        assert torch.equal(StripMatrix(strip, None, form)(x), plain(rounded(x, form)))  # type: ignore[arg-type]
