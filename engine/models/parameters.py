"""The tensors that a decoder's layers are made of, under the names that all these families share."""

from __future__ import annotations

from collections.abc import Callable

from engine.models.spec import AttentionSpec, DenseSpec, ModelSpec, MoeSpec, Parameter, Piece

ExpertParameters = Callable[[str, int, MoeSpec], tuple[Parameter, Parameter]]
# (layer prefix, hidden size, experts) -> experts.gate_up, experts.down


def decoder_parameters(
    spec: ModelSpec, expert_parameters: ExpertParameters | None = None
) -> tuple[Parameter, ...]:
    """Every parameter of the model, in the order in which they are used. `expert_parameters` serves MoE
    layers.
    """
    hidden = spec.hidden_size
    found = [_parameter("embed", ("embed_tokens.weight",), (spec.vocab_size, hidden))]
    for index, layer in enumerate(spec.layers):
        prefix = f"layers.{index}."
        found.append(_norm(f"{prefix}attention_norm", f"{prefix}input_layernorm.weight", hidden))
        found += _attention(prefix, hidden, layer.attention)
        found.append(_norm(f"{prefix}feed_forward_norm", f"{prefix}post_attention_layernorm.weight", hidden))
        if isinstance(layer.feed_forward, DenseSpec):
            found += _dense(prefix, hidden, layer.feed_forward)
        else:
            assert expert_parameters is not None, "a family with MoE layers says how its experts are stored"
            shape = (layer.feed_forward.num_experts, hidden)
            found.append(_parameter(f"{prefix}router", (f"{prefix}mlp.gate.weight",), shape))
            found += expert_parameters(prefix, hidden, layer.feed_forward)
    found.append(_norm("final_norm", "norm.weight", hidden))
    if not spec.tied_embeddings:
        found.append(_parameter("head", ("lm_head.weight",), (spec.vocab_size, hidden)))
    return tuple(found)


def _attention(prefix: str, hidden: int, attention: AttentionSpec) -> list[Parameter]:
    stem = f"{prefix}self_attn."
    rows = (attention.q_dim, attention.kv_dim, attention.kv_dim)
    found = [_joined(f"{prefix}qkv", stem, ("q_proj", "k_proj", "v_proj"), rows, hidden)]
    if attention.qkv_bias:
        found.append(_joined(f"{prefix}qkv_bias", stem, ("q_proj", "k_proj", "v_proj"), rows, None))
    if attention.qk_norm:
        found.append(_norm(f"{prefix}q_norm", f"{stem}q_norm.weight", attention.head_dim))
        found.append(_norm(f"{prefix}k_norm", f"{stem}k_norm.weight", attention.head_dim))
    found.append(_parameter(f"{prefix}output", (f"{stem}o_proj.weight",), (hidden, attention.q_dim)))
    if attention.output_bias:
        found.append(_norm(f"{prefix}output_bias", f"{stem}o_proj.bias", hidden))
    return found


def _dense(prefix: str, hidden: int, dense: DenseSpec) -> list[Parameter]:
    stem = f"{prefix}mlp."
    size = dense.intermediate_size
    found = [_joined(f"{prefix}gate_up", stem, ("gate_proj", "up_proj"), (size, size), hidden)]
    if dense.bias:
        found.append(_joined(f"{prefix}gate_up_bias", stem, ("gate_proj", "up_proj"), (size, size), None))
    found.append(_parameter(f"{prefix}down", (f"{stem}down_proj.weight",), (hidden, size)))
    if dense.bias:
        found.append(_norm(f"{prefix}down_bias", f"{stem}down_proj.bias", hidden))
    return found


def _parameter(name: str, sources: tuple[str, ...], shape: tuple[int, ...]) -> Parameter:
    return Parameter(name, shape, tuple(Piece(source, shape) for source in sources))


def _norm(name: str, source: str, size: int) -> Parameter:
    """One vector: a norm's weight or a bias."""
    return _parameter(name, (source,), (size,))


def _joined(
    name: str, stem: str, parts: tuple[str, ...], rows: tuple[int, ...], inputs: int | None
) -> Parameter:
    """Several matrices (or, without `inputs`, biases) laid one after the other along the rows."""
    tail = () if inputs is None else (inputs,)
    ending = "bias" if inputs is None else "weight"
    pieces = tuple(Piece(f"{stem}{part}.{ending}", (n, *tail)) for part, n in zip(parts, rows, strict=True))
    return Parameter(name, (sum(rows), *tail), pieces)
