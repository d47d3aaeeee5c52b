"""One name for each tensor, whatever the checkpoint puts before it."""

from __future__ import annotations

import pytest

from engine.weights.names import canonical_name, left_out_kind


@pytest.mark.parametrize(
    "prefix", ["", "model.", "model.language_model.", "language_model.model.", "language_model."]
)
@pytest.mark.parametrize(
    "name", ["layers.0.self_attn.q_proj.weight", "embed_tokens.weight", "norm.weight", "lm_head.weight"]
)
def test_prefixes_are_dropped(prefix: str, name: str) -> None:
    assert canonical_name(prefix + name) == name
    assert left_out_kind(prefix + name) is None


@pytest.mark.parametrize(
    "name",
    [
        "model.visual.blocks.0.attn.qkv.weight",
        "visual.merger.mlp.0.bias",
        "vision_tower.blocks.0.norm1.weight",
        "model.vision_tower.patch_embed.weight",
        "multi_modal_projector.linear_1.weight",
        "mtp.layers.0.mlp.gate.weight",
        "model.mtp.norm.weight",
        "model.layers.3.self_attn.rotary_emb.inv_freq",
        "rotary_emb.inv_freq",
    ],
)
def test_what_a_text_model_has_no_use_for_is_left_out(name: str) -> None:
    assert left_out_kind(name) is not None


@pytest.mark.parametrize(
    "name", ["model.layers.0.mtp_like.weight", "model.visualizer.weight", "layers.0.mlp.gate.weight"]
)
def test_names_that_only_look_alike_are_kept(name: str) -> None:
    assert left_out_kind(name) is None
