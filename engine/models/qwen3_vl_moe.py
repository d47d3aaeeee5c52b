"""The text model of Qwen3-VL-MoE. Its router always renormalises, whatever `norm_topk_prob` says."""

from __future__ import annotations

from engine.checkpoints.foreign_config import ConfigReader
from engine.checkpoints.foreign_files import shown
from engine.models.experts import ExpertLayout
from engine.models.family import (
    Family,
    Heading,
    StoredTensors,
    decoder,
    read_context_length,
    read_heads,
    require_silu,
)
from engine.models.parameters import decoder_parameters
from engine.models.qwen3 import attention_spec
from engine.models.qwen3_moe import feed_forwards, read_moe
from engine.models.rope import read_rope
from engine.models.spec import LayerSpec, ModelSpec, Parameter
from engine.notices import Notice


def read_spec(config: ConfigReader, heading: Heading) -> ModelSpec:
    require_silu(config)
    heads = read_heads(config, default_kv_heads=16)
    rope = read_rope(
        config,
        head_dim=heads.head_dim,
        context_length=read_context_length(config),
        default_theta=500_000.0,
        multimodal=True,
    )
    attention = attention_spec(config, heads, rope=rope)
    if not config.boolean("norm_topk_prob", True):
        config.notices.append(
            Notice(
                "setting-without-effect",
                f"{shown(config.file)} sets norm_topk_prob to false, which this family never follows.",
            )
        )
    moe = read_moe(config, normalise_top_k=True)
    layers = tuple(LayerSpec(attention, feed_forward) for feed_forward in feed_forwards(config, moe))
    return decoder(config, heading, layers=layers, rope=rope)


def parameters(spec: ModelSpec, stored: StoredTensors) -> tuple[Parameter, ...]:
    layout = ExpertLayout(stored, fused=True, in_out=True)
    return decoder_parameters(spec, layout.parameters)


FAMILY = Family(
    "Qwen3-VL-MoE",
    ("qwen3_vl_moe", "qwen3_vl_moe_text"),
    ("Qwen3VLMoeForConditionalGeneration", "Qwen3VLMoeForCausalLM"),
    read_spec,
    parameters,
)
