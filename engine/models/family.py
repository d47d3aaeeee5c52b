"""What a family file provides, and what all of them share: sizes, windows, and which tensors a layer is
made of.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from engine.checkpoints.foreign_config import ConfigReader
from engine.checkpoints.foreign_files import shown
from engine.errors import UnsupportedModelError
from engine.models.rope import MAX_CONTEXT, extended_context
from engine.models.spec import LayerSpec, ModelSpec, Parameter, RopeSpec
from engine.weights.source import TensorInfo

MAX_LAYERS = 1024
MAX_HEADS = 4096
MAX_HEAD_DIM = 4096

StoredTensors = Mapping[str, TensorInfo]  # by canonical name; empty when only a config is known


@dataclass(frozen=True)
class Family:
    """One kind of checkpoint. `architectures` are the class names that `config.json` may give, the usual
    first.

    `read_spec` gets the text model's config and whether the head is the embedding. `parameters` gets what the
    files hold, because some families store their experts in more than one layout.
    """

    name: str  # for people
    model_types: tuple[str, ...]
    architectures: tuple[str, ...]
    read_spec: Callable[[ConfigReader, Heading], ModelSpec]
    parameters: Callable[[ModelSpec, StoredTensors], tuple[Parameter, ...]]


@dataclass(frozen=True)
class Heading:
    """What the whole config says beside the text model's part of it."""

    architecture: str
    family: str
    tied_embeddings: bool


@dataclass(frozen=True)
class Heads:
    """Sizes of the attention: A query heads over G key/value heads of D features."""

    num_heads: int
    num_kv_heads: int
    head_dim: int


def read_heads(
    config: ConfigReader, *, default_kv_heads: int | None = None, default_head_dim: int | None = None
) -> Heads:
    """Head counts and size. Without defaults: as many key/value heads as heads, hidden size / heads
    features.
    """
    hidden_size = config.integer("hidden_size")
    num_heads = config.integer("num_attention_heads", maximum=MAX_HEADS)
    kv_default = default_kv_heads
    if kv_default is None or config.given("num_key_value_heads"):  # null means as many as heads, everywhere
        kv_default = num_heads
    num_kv_heads = config.integer("num_key_value_heads", kv_default, maximum=MAX_HEADS)
    if num_heads % num_kv_heads:
        raise config.wrong("num_key_value_heads", f"is {num_kv_heads}; it must divide the {num_heads} heads")
    if "head_dim" not in config and default_head_dim is None and hidden_size % num_heads:
        raise config.wrong(
            "num_attention_heads", f"is {num_heads}; it must divide hidden_size ({hidden_size})"
        )
    head_dim = config.integer("head_dim", default_head_dim or hidden_size // num_heads, maximum=MAX_HEAD_DIM)
    return Heads(num_heads, num_kv_heads, head_dim)


def read_num_layers(config: ConfigReader) -> int:
    return config.integer("num_hidden_layers", maximum=MAX_LAYERS)


def read_context_length(config: ConfigReader) -> int:
    return config.integer("max_position_embeddings", maximum=MAX_CONTEXT)


def require_silu(config: ConfigReader) -> None:
    """These families know one activation; another would be computed wrongly without a word."""
    activation = config.text("hidden_act", "silu")
    if activation not in ("silu", "swish"):
        raise UnsupportedModelError(
            f"{shown(config.file)} asks for the activation {shown(activation, 40)!r} (hidden_act); "
            "this engine has silu for this family.",
            "Pick another model.",
        )


def layer_windows(config: ConfigReader) -> list[int | None]:
    """The attention window of each layer, as Qwen2 and Qwen3 configs give it.

    `use_sliding_window` switches windows on; `layer_types` or `max_window_layers` (the first that many
    layers see everything) says where.
    """
    num_layers = read_num_layers(config)
    window = read_window(config) if config.boolean("use_sliding_window", False) else None
    if "layer_types" not in config:
        first = config.integer("max_window_layers", 28, minimum=0)
        return [window if window is not None and i >= first else None for i in range(num_layers)]
    types = config.texts("layer_types")
    if len(types) != num_layers:
        raise config.wrong("layer_types", f"names {len(types)} layers; there are {num_layers}")
    for kind in types:
        if kind not in ("full_attention", "sliding_attention"):
            raise UnsupportedModelError(
                f"{shown(config.file)} has layers of type {shown(kind, 40)!r} (layer_types), "
                "which this engine doesn't have for this family.",
                "Pick another model.",
            )
    if window is None and "sliding_attention" in types:
        raise config.wrong("layer_types", "asks for sliding attention, but no sliding window is switched on")
    return [window if kind == "sliding_attention" else None for kind in types]


def read_window(config: ConfigReader, default: int | None = None) -> int | None:
    """`sliding_window` in tokens; None when it is null. `default` counts only when the key is not there at
    all.
    """
    if not config.given("sliding_window"):
        return default
    return config.integer("sliding_window", maximum=MAX_CONTEXT) if "sliding_window" in config else None


def decoder(
    config: ConfigReader, heading: Heading, *, layers: tuple[LayerSpec, ...], rope: RopeSpec
) -> ModelSpec:
    """The model around the layers."""
    return ModelSpec(
        architecture=heading.architecture,
        family=heading.family,
        hidden_size=config.integer("hidden_size"),
        vocab_size=config.integer("vocab_size"),
        context_length=extended_context(rope, read_context_length(config)),
        norm_eps=config.number("rms_norm_eps", above=0.0, at_most=1.0),
        layers=layers,
        tied_embeddings=heading.tied_embeddings,
    )
