"""The settings of a GGUF file in the words of `config.json`, so that the family files serve both formats.

A setting that would change the mathematics and can't be followed is refused by name. One that isn't known
at all is reported in a notice.
"""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from engine.checkpoints.foreign_config import ConfigReader
from engine.checkpoints.foreign_files import shown, some_names
from engine.errors import ModelFileError, UnsupportedModelError
from engine.models.family import MAX_HEAD_DIM, MAX_HEADS, MAX_LAYERS
from engine.models.rope import MAX_CONTEXT, MAX_FACTOR
from engine.notices import Notice
from engine.weights.gguf_header import GgufHeader, GgufTensor
from engine.weights.gguf_source import FREQUENCY_FACTORS, GgufSource

# general.architecture -> model_type and class of the Hugging Face folder that it was converted from
_ARCHITECTURES = {
    "llama": ("llama", "LlamaForCausalLM"),
    "qwen2": ("qwen2", "Qwen2ForCausalLM"),
    "qwen3": ("qwen3", "Qwen3ForCausalLM"),
    "qwen3moe": ("qwen3_moe", "Qwen3MoeForCausalLM"),
}

# Settings (behind "llama." and so on) that are followed here.
_KNOWN = frozenset(
    {
        "block_count", "context_length", "embedding_length", "feed_forward_length", "vocab_size",
        "attention.head_count", "attention.head_count_kv", "attention.key_length", "attention.value_length",
        "attention.layer_norm_rms_epsilon", "rope.freq_base", "rope.dimension_count", "rope.scale_linear",
        "rope.scaling.type", "rope.scaling.factor", "rope.scaling.original_context_length",
        "rope.scaling.finetuned", "rope.scaling.attn_factor", "rope.scaling.yarn_attn_factor",
        "rope.scaling.yarn_beta_fast", "rope.scaling.yarn_beta_slow", "expert_count", "expert_used_count",
        "expert_feed_forward_length", "tensor_data_layout",
    }
)  # fmt: skip

# Settings that are followed only by being as they are in every model of these families.
_FIXED: Mapping[str, tuple[Any, ...]] = {
    "attention.causal": (True,),
    "attention.clamp_kqv": (0.0,),
    "attention.scale": (0.0,),
    "attention.sliding_window": (0,),
    "attn_logit_softcapping": (0.0,),
    "embedding_scale": (0.0, 1.0),
    "expert_gating_func": (1,),  # softmax
    "expert_group_count": (0, 1),
    "expert_group_used_count": (0, 1),
    "expert_shared_count": (0,),
    "expert_weights_norm": (True,),
    "expert_weights_scale": (0.0, 1.0),
    "final_logit_softcapping": (0.0,),
    "leading_dense_block_count": (0,),
    "logit_scale": (0.0, 1.0),
    "nextn_predict_layers": (0,),
    "pooling_type": (0,),  # others are embedding models
    "residual_scale": (0.0, 1.0),
    "rope.scaling.yarn_ext_factor": (1.0,),
    "rope.scaling.yarn_log_multiplier": (0.0,),
    "use_parallel_residual": (False,),
}

_SHARD_NAME = re.compile(r"-\d{5}-of-\d{5}\.gguf$", re.IGNORECASE)


@dataclass(frozen=True)
class GgufConfig:
    """`values` is shaped like `config.json`; `interleaved_heads` as `GgufSource.set_interleaved_heads`
    wants it.
    """

    architecture: str
    values: Mapping[str, Any]
    interleaved_heads: Mapping[str, int]
    frequency_factors: tuple[float, ...]


def gguf_architecture(source: GgufSource, file: str) -> str:
    """The class that the file's `general.architecture` stands for. Refuses what isn't one whole language
    model.
    """
    settings = ConfigReader(source.header.metadata, file)
    parts = settings.values.get("split.count", 0)
    if (isinstance(parts, int) and parts > 1) or _SHARD_NAME.search(file):
        raise UnsupportedModelError(
            f"{shown(file)} is one part of a GGUF file that was split.",
            "Join the parts first, with `llama-gguf-split --merge FIRST-PART WHOLE-FILE`.",
        )
    kind = settings.text("general.type", "model")
    if kind != "model":
        raise UnsupportedModelError(
            f"{shown(file)} holds {shown(kind, 40)!r} (general.type), not a language model.",
            "Pick the file of the model itself.",
        )
    name = settings.text("general.architecture")
    if name not in _ARCHITECTURES:
        raise UnsupportedModelError(
            f"This engine doesn't have the architecture {shown(name, 80)} of {shown(file)}.",
            f"Pick a GGUF file of {', '.join(_ARCHITECTURES)}.",
        )
    return _ARCHITECTURES[name][1]


def gguf_config(source: GgufSource, file: str, notices: list[Notice]) -> GgufConfig:
    """Raises EngineError for what is missing, wrong or can't be followed."""
    header = source.header
    architecture = gguf_architecture(source, file)
    arch = ConfigReader(header.metadata, file).text("general.architecture")
    settings = ConfigReader(
        {key[len(arch) + 1 :]: value for key, value in header.metadata.items() if key.startswith(f"{arch}.")},
        file,
        path=f"{arch}.",
        notices=notices,
    )
    _check_settings(settings)
    num_heads = _same_everywhere(settings, "attention.head_count", None, MAX_HEADS)
    num_kv_heads = _same_everywhere(settings, "attention.head_count_kv", num_heads, MAX_HEADS)
    num_layers = settings.integer("block_count", maximum=MAX_LAYERS)
    head_dim = _head_dim(settings, num_heads)
    values: dict[str, Any] = {
        "model_type": _ARCHITECTURES[arch][0],
        "architectures": [architecture],
        "hidden_size": settings.integer("embedding_length"),
        "num_hidden_layers": num_layers,
        "num_attention_heads": num_heads,
        "num_key_value_heads": num_kv_heads,
        "head_dim": head_dim,
        "max_position_embeddings": settings.integer("context_length", maximum=MAX_CONTEXT),
        "rms_norm_eps": settings.number("attention.layer_norm_rms_epsilon", above=0.0, at_most=1.0),
        "vocab_size": _vocab_size(header, file),
        "tie_word_embeddings": "output.weight" not in header.tensors,
        "attention_bias": "blk.0.attn_q.bias" in header.tensors,
        "mlp_bias": "blk.0.ffn_up.bias" in header.tensors,
        "use_sliding_window": False,
        "rope_scaling": _rope_scaling(settings),
    }
    if "rope.freq_base" in settings:
        values["rope_theta"] = settings.number("rope.freq_base", above=1.0)
    values |= _feed_forward(settings, arch)
    return GgufConfig(
        architecture,
        values,
        _interleaved(num_layers, num_heads, num_kv_heads) if arch == "llama" else {},
        _frequency_factors(source, file, head_dim),
    )


def _check_settings(settings: ConfigReader) -> None:
    for key, neutral in _FIXED.items():
        if key in settings and settings.values[key] not in neutral:
            raise UnsupportedModelError(
                f"{shown(settings.file)} sets {settings.name_of(key)} to {shown(settings.values[key], 40)}, "
                "which this engine can't follow for this family.",
                "Pick another model, or a safetensors folder of this one.",
            )
    unknown = [settings.name_of(key) for key in settings.values if key not in _KNOWN and key not in _FIXED]
    if unknown:
        settings.notices.append(
            Notice(
                "settings-unknown",
                f"{shown(settings.file)} has settings that this engine doesn't know: {some_names(unknown)}.",
                "If answers make no sense, pick another file of this model.",
            )
        )


def _same_everywhere(settings: ConfigReader, key: str, default: int | None, maximum: int) -> int:
    """A setting that newer files may give layer by layer; layers that differ aren't possible here."""
    value = settings.values.get(key)
    if isinstance(value, list):
        if not value or value.count(value[0]) != len(value):
            raise UnsupportedModelError(
                f"{shown(settings.file)} has layers that differ in {settings.name_of(key)}.",
                "Pick another model.",
            )
        settings = ConfigReader({key: value[0]}, settings.file, path=settings.name_of(""))
    return settings.integer(key, default, maximum=maximum)


def _head_dim(settings: ConfigReader, num_heads: int) -> int:
    hidden_size = settings.integer("embedding_length")
    if "attention.key_length" not in settings and hidden_size % num_heads:
        raise settings.wrong("attention.head_count", f"is {num_heads}; it must divide {hidden_size}")
    head_dim = settings.integer("attention.key_length", hidden_size // num_heads, maximum=MAX_HEAD_DIM)
    for key in ("attention.value_length", "rope.dimension_count"):
        if settings.integer(key, head_dim, maximum=MAX_HEAD_DIM) != head_dim:
            raise UnsupportedModelError(
                f"{shown(settings.file)} sets {settings.name_of(key)} to {settings.values[key]}; "
                f"this engine needs it to be the head size, {head_dim}.",
                "Pick another model, or a safetensors folder of this one.",
            )
    return head_dim


def _vocab_size(header: GgufHeader, file: str) -> int:
    embedding = header.tensors.get("token_embd.weight")
    if embedding is None or len(embedding.shape) != 2:
        raise ModelFileError(
            f"{shown(file)} has no embedding (token_embd.weight).", "Download that file again."
        )
    return embedding.shape[0]


def _feed_forward(settings: ConfigReader, arch: str) -> dict[str, Any]:
    if arch != "qwen3moe":
        if settings.integer("expert_count", 0, minimum=0):
            raise UnsupportedModelError(
                f"{shown(settings.file)} is a mixture of experts ({settings.name_of('expert_count')}), "
                f"which this engine doesn't have for {arch}.",
                "Pick another model.",
            )
        return {"intermediate_size": _same_everywhere(settings, "feed_forward_length", None, 2**24)}
    return {
        "num_experts": settings.integer("expert_count"),
        "num_experts_per_tok": settings.integer("expert_used_count"),
        "moe_intermediate_size": settings.integer("expert_feed_forward_length"),
        "norm_topk_prob": True,  # the format has no other for this family
    }


def _rope_scaling(settings: ConfigReader) -> dict[str, Any] | None:
    """`rope_scaling` as Hugging Face writes it."""
    key = "rope.scaling.factor" if "rope.scaling.factor" in settings else "rope.scale_linear"
    factor = settings.number(key, 1.0, above=0.0, at_most=MAX_FACTOR)
    kind = settings.text("rope.scaling.type", "linear" if factor != 1.0 else "none")
    if kind == "none":
        return None
    scaling: dict[str, Any] = {"rope_type": kind, "factor": factor}
    if kind == "yarn":
        scaling["original_max_position_embeddings"] = settings.integer(
            "rope.scaling.original_context_length", maximum=MAX_CONTEXT
        )
        attention = math.prod(
            settings.number(f"rope.scaling.{name}", 1.0, above=0.0, at_most=MAX_FACTOR)
            for name in ("attn_factor", "yarn_attn_factor")
        )
        # The format's factor comes on top of YaRN's own; config.json's replaces it.
        scaling["attention_factor"] = attention * (0.1 * math.log(factor) + 1.0 if factor > 1.0 else 1.0)
        for name in ("beta_fast", "beta_slow"):
            if f"rope.scaling.yarn_{name}" in settings:
                scaling[name] = settings.number(f"rope.scaling.yarn_{name}", above=0.0, at_most=MAX_FACTOR)
    return scaling


def _interleaved(num_layers: int, num_heads: int, num_kv_heads: int) -> dict[str, int]:
    """llama files have the rows of q and k in pairs of neighbours; the other architectures don't."""
    return {
        f"layers.{layer}.self_attn.{part}_proj.{ending}": heads
        for layer in range(num_layers)
        for part, heads in (("q", num_heads), ("k", num_kv_heads))
        for ending in ("weight", "bias")
    }


def _frequency_factors(source: GgufSource, file: str, head_dim: int) -> tuple[float, ...]:
    """Llama 3's rotary scaling, which the format stores as one divisor for each frequency."""
    tensor: GgufTensor | None = source.header.tensors.get(FREQUENCY_FACTORS)
    if tensor is None:
        return ()
    if tensor.dtype != "F32" or tensor.shape != (head_dim // 2,):
        raise ModelFileError(
            f"{FREQUENCY_FACTORS} of {shown(file)} should be {head_dim // 2} numbers of type F32.",
            "Download that file again.",
        )
    factors = struct.unpack(f"<{head_dim // 2}f", source.read_raw(tensor))
    if not all(math.isfinite(factor) and factor > 0 for factor in factors):
        raise ModelFileError(
            f"{FREQUENCY_FACTORS} of {shown(file)} holds something that can't divide a frequency.",
            "Download that file again.",
        )
    return factors
