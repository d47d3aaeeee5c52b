"""The text model of Qwen3-VL: Qwen3 without windows. Its M-RoPE is plain RoPE as long as there are no
images.
"""

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
from engine.models.qwen3 import attention_spec
from engine.models.rope import read_rope
from engine.models.spec import DenseSpec, LayerSpec, ModelSpec, Parameter


def read_spec(config: ConfigReader, heading: Heading) -> ModelSpec:
    require_silu(config)
    heads = read_heads(config, default_kv_heads=32, default_head_dim=128)
    rope = read_rope(
        config,
        head_dim=heads.head_dim,
        context_length=read_context_length(config),
        default_theta=500_000.0,
        multimodal=True,
    )
    layer = LayerSpec(
        attention_spec(config, heads, rope=rope), DenseSpec(config.integer("intermediate_size"))
    )
    return decoder(config, heading, layers=(layer,) * read_num_layers(config), rope=rope)


def parameters(spec: ModelSpec, stored: StoredTensors) -> tuple[Parameter, ...]:
    return decoder_parameters(spec)


FAMILY = Family(
    "Qwen3-VL",
    ("qwen3_vl", "qwen3_vl_text"),
    ("Qwen3VLForConditionalGeneration", "Qwen3VLForCausalLM"),
    read_spec,
    parameters,
)
