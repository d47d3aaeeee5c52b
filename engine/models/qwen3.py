"""Qwen3, dense: RMSNorm over each head of q and k, and heads whose size has nothing to do with the hidden
size.
"""

from __future__ import annotations

from engine.checkpoints.foreign_config import ConfigReader
from engine.models.family import (
    Family,
    Heading,
    Heads,
    StoredTensors,
    decoder,
    layer_windows,
    read_context_length,
    read_heads,
    require_silu,
)
from engine.models.parameters import decoder_parameters
from engine.models.rope import read_rope
from engine.models.spec import AttentionSpec, DenseSpec, LayerSpec, ModelSpec, Parameter, RopeSpec


def read_spec(config: ConfigReader, heading: Heading) -> ModelSpec:
    require_silu(config)
    heads = read_heads(config, default_kv_heads=32, default_head_dim=128)
    rope = read_rope(
        config,
        head_dim=heads.head_dim,
        context_length=read_context_length(config),
        default_theta=10_000.0,
    )
    dense = DenseSpec(config.integer("intermediate_size"))
    layers = tuple(
        LayerSpec(attention_spec(config, heads, rope=rope, window=window), dense)
        for window in layer_windows(config)
    )
    return decoder(config, heading, layers=layers, rope=rope)


def attention_spec(
    config: ConfigReader, heads: Heads, *, rope: RopeSpec, window: int | None = None
) -> AttentionSpec:
    """The attention of all Qwen3 families."""
    bias = config.boolean("attention_bias", False)
    return AttentionSpec(
        heads.num_heads,
        heads.num_kv_heads,
        heads.head_dim,
        scale=heads.head_dim**-0.5,
        rope=rope,
        qkv_bias=bias,
        output_bias=bias,
        qk_norm=True,
        window=window,
    )


def parameters(spec: ModelSpec, stored: StoredTensors) -> tuple[Parameter, ...]:
    return decoder_parameters(spec)


FAMILY = Family("Qwen3", ("qwen3",), ("Qwen3ForCausalLM",), read_spec, parameters)
