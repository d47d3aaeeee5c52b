from __future__ import annotations

import pytest
import torch

from engine.cpu import matrices
from engine.cpu.matrices import Embedding, matrix


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("rows_at_once", [1, 7, 1000])
@pytest.mark.parametrize("num_tokens", [1, 5])
@pytest.mark.parametrize("with_bias", [True, False])
def test_how_a_weight_is_stored_does_not_change_the_product(
    dtype: torch.dtype, rows_at_once: int, num_tokens: int, with_bias: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(matrices, "_WIDEN_BYTES", rows_at_once * 4 * 24)
    weight = torch.randn(30, 24).to(dtype)
    bias = torch.randn(30) if with_bias else None
    x = torch.randn(num_tokens, 24)
    expected = torch.nn.functional.linear(x, weight.float(), bias)
    torch.testing.assert_close(matrix(weight, bias)(x), expected, atol=1e-5, rtol=1e-5)


def test_half_width_weights_stay_half_width() -> None:
    assert matrix(torch.zeros(4, 8, dtype=torch.bfloat16)).num_bytes == 4 * 8 * 2


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_embedding_rows_are_float32_and_nobody_elses(dtype: torch.dtype) -> None:
    weight = torch.randn(10, 6).to(dtype)
    rows = Embedding(weight).rows(torch.tensor([3, 3, 9]))
    assert torch.equal(rows, weight[[3, 3, 9]].float())
    rows.zero_()  # the caller adds to them in place
    assert weight[3].float().abs().sum() > 0


def test_tied_head_is_the_embedding() -> None:
    embedding = Embedding(torch.randn(10, 6))
    x = torch.randn(2, 6)
    torch.testing.assert_close(embedding.as_head()(x), x @ embedding.rows(torch.arange(10)).T)
