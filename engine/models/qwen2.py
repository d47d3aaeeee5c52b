"""Qwen2 and Qwen2.5: Llama with biases on q, k and v, and windows that most configs leave switched off."""

from __future__ import annotations

from engine.checkpoints.foreign_config import ConfigReader
from engine.models.family import (
    Family,
    Heading,
    StoredTensors,
    decoder,
    layer_windows,
    read_context_length,
    read_heads,
    require_silu,
)
from engine.models.parameters import decoder_parameters
from engine.models.rope import read_rope
from engine.models.spec import AttentionSpec, DenseSpec, LayerSpec, ModelSpec, Parameter


def read_spec(config: ConfigReader, heading: Heading) -> ModelSpec:
    require_silu(config)
    heads = read_heads(config, default_kv_heads=32)
    rope = read_rope(
        config,
        head_dim=heads.head_dim,
        context_length=read_context_length(config),
        default_theta=10_000.0,
    )
    dense = DenseSpec(config.integer("intermediate_size"))
    layers = tuple(
        LayerSpec(
            AttentionSpec(
                heads.num_heads,
                heads.num_kv_heads,
                heads.head_dim,
                scale=heads.head_dim**-0.5,
                rope=rope,
                qkv_bias=True,
                window=window,
            ),
            dense,
        )
        for window in layer_windows(config)
    )
    return decoder(config, heading, layers=layers, rope=rope)


def parameters(spec: ModelSpec, stored: StoredTensors) -> tuple[Parameter, ...]:
    return decoder_parameters(spec)


FAMILY = Family("Qwen2", ("qwen2",), ("Qwen2ForCausalLM",), read_spec, parameters)
