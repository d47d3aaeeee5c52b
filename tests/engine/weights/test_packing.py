"""Forms of parameters, by hand."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from engine.models.experts import ExpertLayout
from engine.models.parameters import decoder_parameters
from engine.models.spec import AttentionSpec, DenseSpec, LayerSpec, ModelSpec, MoeSpec, Parameter, RopeSpec
from engine.weights.packing import group_of, is_strip, stored_strip, strip_rows
from engine.weights.source import StoredStrip, TensorInfo
from engine.weights.strips import Bits


def spec_of(*, head_dim: int, inner: int, experts: int = 0) -> ModelSpec:
    attention = AttentionSpec(3, 1, head_dim, scale=1.0, rope=RopeSpec(1e4, head_dim))
    dense = DenseSpec(inner)
    moe = MoeSpec(experts, 1, inner, normalise_top_k=True)
    return ModelSpec("X", "X", 64, 50, 128, 1e-5, (LayerSpec(attention, moe if experts else dense),), False)


@pytest.mark.parametrize(
    ("head_dim", "inner", "qkv", "gate_up"),
    [
        (8, 96, (40,), (192,)),
        (4, 100, (20,), (200,)),
        (6, 96, (18, 6, 6), (192,)),
        (8, 98, (40,), (98, 98)),
        (2, 1, (6, 2, 2), (1, 1)),
    ],
)
@pytest.mark.parametrize("experts", [0, 3])
def test_members_are_fused_where_each_has_a_multiple_of_4_rows(
    head_dim: int, inner: int, qkv: tuple[int, ...], gate_up: tuple[int, ...], experts: int
) -> None:
    spec = spec_of(head_dim=head_dim, inner=inner, experts=experts)
    layout = ExpertLayout({}, fused=False, in_out=False)
    matrices = [each for each in decoder_parameters(spec, layout.parameters) if is_strip(each.name)]
    rows = {parameter.name.split(".")[-1]: strip_rows(spec, parameter) for parameter in matrices}
    assert rows["qkv"] == qkv
    assert rows["gate_up"] == gate_up
    assert rows["head"] == (50,)
    assert rows["down"] == rows["output"] == (64,)
    for parameter in matrices:
        stack = parameter.shape[0] if len(parameter.shape) == 3 else 1
        rest = parameter.num_elements // parameter.shape[-1] // stack
        assert math.fsum(strip_rows(spec, parameter)) == rest


@pytest.mark.parametrize(
    ("num_inputs", "wanted", "group"),
    [(32, 32, 32), (256, 32, 32), (256, 256, 256), (288, 256, 32), (100, 256, None), (100, 32, None)],
)
def test_groups_divide_the_inputs(num_inputs: int, wanted: int, group: int | None) -> None:
    assert group_of(num_inputs, wanted) == group  # type: ignore[arg-type]


@pytest.mark.parametrize("bits", [4, 8])
def test_stored_strips_are_taken_with_at_most_the_bits_that_are_asked_for(bits: Bits) -> None:
    spec = spec_of(head_dim=8, inner=96)
    qkv = next(each for each in decoder_parameters(spec) if each.name == "layers.0.qkv")

    def form(*strips: StoredStrip | None) -> StoredStrip | None:
        infos = {
            piece.source: TensorInfo(piece.shape, "Q8_0", 1, piece.source, strip=strip)
            for piece, strip in zip(qkv.pieces, strips, strict=True)
        }
        return stored_strip(qkv, infos, bits)

    four, eight, shifted = StoredStrip(4), StoredStrip(8), StoredStrip(4, offsets=True)
    assert form(four, four, four) == four
    assert form(four, shifted, four) == shifted
    assert form(four, eight, four) == (eight if bits == 8 else None)
    assert form(four, None, four) is None
    assert form(four, replace(four, group=256), four) is None
    turned = Parameter(qkv.name, qkv.shape, tuple(replace(piece, transpose=True) for piece in qkv.pieces))
    infos = {piece.source: TensorInfo(piece.shape, "Q4_0", 1, "x", strip=four) for piece in qkv.pieces}
    assert stored_strip(turned, infos, bits) is None
