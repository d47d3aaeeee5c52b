"""Qwen3-MoE: Qwen3's attention, and softmax-routed experts in some or all layers."""

from __future__ import annotations

from engine.checkpoints.foreign_config import ConfigReader
from engine.models.experts import ExpertLayout
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
from engine.models.qwen3 import attention_spec
from engine.models.rope import read_rope
from engine.models.spec import DenseSpec, LayerSpec, ModelSpec, MoeSpec, Parameter

MAX_EXPERTS = 4096
MAX_EXPERTS_IN_ALL = 2**17  # layers x experts; the largest published models have some 25,000


def read_spec(config: ConfigReader, heading: Heading) -> ModelSpec:
    require_silu(config)
    heads = read_heads(config, default_kv_heads=4)
    rope = read_rope(
        config,
        head_dim=heads.head_dim,
        context_length=read_context_length(config),
        default_theta=10_000.0,
    )
    window = read_window(config) if config.boolean("use_sliding_window", False) else None
    attention = attention_spec(config, heads, rope=rope, window=window)
    moe = read_moe(config, normalise_top_k=config.boolean("norm_topk_prob", False))
    layers = tuple(LayerSpec(attention, feed_forward) for feed_forward in feed_forwards(config, moe))
    return decoder(config, heading, layers=layers, rope=rope)


def read_moe(config: ConfigReader, *, normalise_top_k: bool) -> MoeSpec:
    """The experts of a sparse layer. transformers 5 calls their number `num_local_experts`, too."""
    key = "num_experts" if "num_experts" in config else "num_local_experts"
    num_experts = config.integer(key if key in config else "num_experts", maximum=MAX_EXPERTS)
    if num_experts * read_num_layers(config) > MAX_EXPERTS_IN_ALL:
        raise config.wrong(key, f"is {num_experts:,} in each of {read_num_layers(config):,} layers, too many")
    return MoeSpec(
        num_experts,
        top_k=config.integer("num_experts_per_tok", maximum=num_experts),
        intermediate_size=config.integer("moe_intermediate_size"),
        normalise_top_k=normalise_top_k,
    )


def feed_forwards(config: ConfigReader, moe: MoeSpec) -> list[DenseSpec | MoeSpec]:
    """Layer i is sparse when i + 1 is a multiple of `decoder_sparse_step` and `mlp_only_layers` doesn't
    name i.
    """
    num_layers = read_num_layers(config)
    step = config.integer("decoder_sparse_step", 1)
    dense_layers = set(config.integers("mlp_only_layers"))
    sparse = [i not in dense_layers and (i + 1) % step == 0 for i in range(num_layers)]
    if all(sparse):
        return [moe] * num_layers
    dense = DenseSpec(config.integer("intermediate_size"))
    return [moe if is_sparse else dense for is_sparse in sparse]


def parameters(spec: ModelSpec, stored: StoredTensors) -> tuple[Parameter, ...]:
    layout = ExpertLayout(stored, fused=False, in_out=False)
    return decoder_parameters(spec, layout.parameters)


FAMILY = Family("Qwen3-MoE", ("qwen3_moe",), ("Qwen3MoeForCausalLM",), read_spec, parameters)
