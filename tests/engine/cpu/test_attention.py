from __future__ import annotations

import pytest
import torch

from engine.cpu.attention import CausalMasks, attend_block, attend_one
from engine.models.spec import AttentionSpec, RopeSpec

WINDOWS = [None, 1, 2, 31, 63, 64, 65, 200]


def make_spec(num_heads: int, num_kv_heads: int, head_dim: int, window: int | None) -> AttentionSpec:
    rope = RopeSpec(1e4, head_dim)
    return AttentionSpec(num_heads, num_kv_heads, head_dim, scale=0.3, rope=rope, window=window)


def plain_attention(
    spec: AttentionSpec, q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, start: int
) -> torch.Tensor:
    """The definition, with the whole matrix, in float64."""
    num_tokens = q.shape[0]
    query = q.double().transpose(0, 1)
    share = spec.num_heads // spec.num_kv_heads
    key, value = (part.double().repeat_interleave(share, dim=0) for part in (keys, values))
    scores = query @ key.transpose(1, 2) * spec.scale
    for row in range(num_tokens):
        position = start + row
        scores[:, row, position + 1 :] = float("-inf")
        if spec.window is not None:
            scores[:, row, : max(0, position - spec.window + 1)] = float("-inf")
    return (scores.softmax(-1) @ value).transpose(0, 1).reshape(num_tokens, -1).float()


@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize(
    ("start", "num_tokens"), [(0, 2), (0, 64), (0, 65), (0, 200), (5, 130), (64, 64), (127, 70)]
)
def test_blocks_equal_the_whole_matrix(window: int | None, start: int, num_tokens: int) -> None:
    spec = make_spec(6, 2, 16, window)
    q = torch.randn(num_tokens, spec.num_heads, spec.head_dim)
    keys, values = torch.randn(2, 2, start + num_tokens, 16).unbind(0)
    out = attend_block(spec, q, keys, values, start, CausalMasks(window))
    torch.testing.assert_close(out, plain_attention(spec, q, keys, values, start), atol=1e-5, rtol=0.0)


@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("length", [1, 2, 63, 64, 65, 300])
@pytest.mark.parametrize(("num_heads", "num_kv_heads"), [(4, 4), (6, 2), (5, 1)])
def test_one_query_equals_the_whole_matrix(
    num_heads: int, num_kv_heads: int, length: int, window: int | None
) -> None:
    spec = make_spec(num_heads, num_kv_heads, 24, window)
    q = torch.randn(1, spec.num_heads, spec.head_dim)
    keys, values = torch.randn(2, num_kv_heads, length, 24).unbind(0)
    expected = plain_attention(spec, q, keys, values, length - 1)
    torch.testing.assert_close(attend_one(spec, q[0], keys, values), expected, atol=1e-5, rtol=0.0)


@pytest.mark.parametrize("num_tokens", [1, 70])
def test_keys_before_the_window_are_not_read(num_tokens: int) -> None:
    """NaN would spread through any product that it takes part in, masked or not."""
    spec = make_spec(4, 2, 16, window=40)
    start = 300
    q = torch.randn(num_tokens, spec.num_heads, spec.head_dim)
    kv = torch.randn(2, 2, start + num_tokens, 16)
    kv[:, :, :200] = float("nan")
    keys, values = kv.unbind(0)
    if num_tokens == 1:
        out = attend_one(spec, q[0], keys, values)
    else:
        out = attend_block(spec, q, keys, values, start, CausalMasks(40))
    assert out.isfinite().all()


def test_one_band_serves_every_position() -> None:
    masks = CausalMasks(None)
    near = masks.view(0, rows=(0, 64), keys=(0, 64)).clone()
    far = masks.view(6400, rows=(6400, 6464), keys=(6400, 6464))
    assert torch.equal(near, far)
    assert torch.equal(near == 0, torch.ones(64, 64).tril().bool())
