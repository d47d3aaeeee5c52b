from __future__ import annotations

import pytest
import torch

from engine.cpu import ops


@pytest.mark.parametrize("rows", [1, 2, 3, 17, 64, 65])
@pytest.mark.parametrize(("outputs", "inputs"), [(1, 1), (7, 33), (96, 576), (513, 64)])
def test_matrix_product_is_exact_to_float32(rows: int, outputs: int, inputs: int) -> None:
    x, weight = torch.randn(rows, inputs), torch.randn(outputs, inputs)
    exact = x.double() @ weight.double().T
    # A sum of K products of unit normals is off by some sqrt(K) roundings; bfloat16 would be off a thousand
    # times that.
    assert (ops.matrix_product(x, weight) - exact).abs().max() < 2e-6 * inputs**0.5 * 10


@pytest.mark.parametrize("rows", [2, 3, 64, 100])
def test_a_row_does_not_depend_on_how_many_run_with_it(rows: int) -> None:
    x, weight = torch.randn(128, 192), torch.randn(80, 192)
    whole = ops.matrix_product(x, weight)
    assert torch.equal(ops.matrix_product(x[:rows], weight), whole[:rows])


def test_a_product_in_half_precision_is_not_taken_for_exact() -> None:
    def halved(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return (x.bfloat16() @ weight.bfloat16().T).float()

    assert ops.is_exact(torch.nn.functional.linear)
    assert not ops.is_exact(halved)


def test_a_product_that_is_missing_or_changed_is_not_used() -> None:
    def missing(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        raise NotImplementedError("not built")

    assert not ops.is_exact(missing)
    assert not ops.is_exact(lambda x: x)  # type: ignore[misc, arg-type]


def test_rms_norm_gives_unit_mean_square_times_weight() -> None:
    x, weight = 50 * torch.randn(5, 48), torch.rand(48) + 0.5
    normed = ops.rms_norm(x, weight, 1e-6)
    torch.testing.assert_close((normed / weight).square().mean(-1), torch.ones(5))
    torch.testing.assert_close(normed / weight * (x.norm(dim=-1, keepdim=True) / 48**0.5), x)


def test_rms_norm_of_one_row_is_that_of_the_row_among_others() -> None:
    """One row takes a way of its own; only the last bits may differ."""
    x, weight = 100 * torch.randn(5, 577), torch.randn(577)
    together = ops.rms_norm(x, weight, 1e-6)
    for row, expected in zip(x, together, strict=True):
        torch.testing.assert_close(ops.rms_norm(row[None], weight, 1e-6)[0], expected, rtol=1e-6, atol=1e-7)


def test_rms_norm_of_zeros_is_zero_and_of_no_numbers_no_number() -> None:
    for rows in (1, 2):
        assert not ops.rms_norm(torch.zeros(rows, 8), torch.ones(8), 1e-6).any()
        assert bool(ops.rms_norm(torch.full((rows, 8), torch.nan), torch.ones(8), 1e-6).isnan().all())
        assert not bool(ops.rms_norm(torch.full((rows, 8), torch.inf), torch.ones(8), 1e-6).isfinite().any())


def test_rms_norm_adds_eps_to_the_mean_square() -> None:
    x = torch.tensor([[1e-3, -1e-3]])
    torch.testing.assert_close(ops.rms_norm(x, torch.ones(2), 3e-6), x / (1e-6 + 3e-6) ** 0.5)


def test_rms_norm_leaves_its_input_alone() -> None:
    x = torch.randn(3, 8)
    before = x.clone()
    ops.rms_norm(x, torch.ones(8), 1e-6)
    assert torch.equal(x, before)
