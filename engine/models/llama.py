"""Llama 1 to 3.3, and the many models that use its class unchanged (SmolLM2, Yi, TinyLlama, …)."""

from __future__ import annotations

from engine.checkpoints.foreign_config import ConfigReader
from engine.models.family import (
    Family,
    Heading,
    StoredTensors,
    decoder,
    read_context_length,
    read_heads,
    read_num_layers,
    require_silu,
)
from engine.models.parameters import decoder_parameters
from engine.models.rope import read_rope
from engine.models.spec import AttentionSpec, DenseSpec, LayerSpec, ModelSpec, Parameter


def read_spec(config: ConfigReader, heading: Heading) -> ModelSpec:
    require_silu(config)
    heads = read_heads(config)
    rope = read_rope(
        config,
        head_dim=heads.head_dim,
        context_length=read_context_length(config),
        default_theta=10_000.0,
    )
    bias = config.boolean("attention_bias", False)
    attention = AttentionSpec(
        heads.num_heads,
        heads.num_kv_heads,
        heads.head_dim,
        scale=heads.head_dim**-0.5,
        rope=rope,
        qkv_bias=bias,
        output_bias=bias,
    )
    dense = DenseSpec(config.integer("intermediate_size"), bias=config.boolean("mlp_bias", False))
    layers = (LayerSpec(attention, dense),) * read_num_layers(config)
    return decoder(config, heading, layers=layers, rope=rope)


def parameters(spec: ModelSpec, stored: StoredTensors) -> tuple[Parameter, ...]:
    return decoder_parameters(spec)


FAMILY = Family("Llama", ("llama",), ("LlamaForCausalLM",), read_spec, parameters)
