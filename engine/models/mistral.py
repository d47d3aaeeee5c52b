"""Mistral 7B and its successors: Llama without biases, the first ones with a window over all layers."""

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
    read_window,
    require_silu,
)
from engine.models.parameters import decoder_parameters
from engine.models.rope import read_rope
from engine.models.spec import AttentionSpec, DenseSpec, LayerSpec, ModelSpec, Parameter

DEFAULT_WINDOW = 4096  # the class's own; configs of models without a window say null


def read_spec(config: ConfigReader, heading: Heading) -> ModelSpec:
    require_silu(config)
    heads = read_heads(config, default_kv_heads=8)
    rope = read_rope(
        config,
        head_dim=heads.head_dim,
        context_length=read_context_length(config),
        default_theta=10_000.0,
    )
    attention = AttentionSpec(
        heads.num_heads,
        heads.num_kv_heads,
        heads.head_dim,
        scale=heads.head_dim**-0.5,
        rope=rope,
        window=read_window(config, DEFAULT_WINDOW),
    )
    layers = (LayerSpec(attention, DenseSpec(config.integer("intermediate_size"))),) * read_num_layers(config)
    return decoder(config, heading, layers=layers, rope=rope)


def parameters(spec: ModelSpec, stored: StoredTensors) -> tuple[Parameter, ...]:
    return decoder_parameters(spec)


FAMILY = Family("Mistral", ("mistral",), ("MistralForCausalLM",), read_spec, parameters)
