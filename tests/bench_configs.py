"""Small configurations of every family, as config.json has them, for models of random weights."""

from __future__ import annotations

from typing import Any

from engine.bench.configuration import Configuration, read_text_model

_SIZES: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "vocab_size": 320,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
}
_EXPERTS = {"num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "norm_topk_prob": True}
_ROPE_SCALING = {"rope_type": "default", "mrope_section": [4, 2, 2], "mrope_interleaved": True}


def _vision(model_type: str, text: dict[str, Any]) -> dict[str, Any]:
    return {"model_type": model_type, "text_config": {**_SIZES, "rope_scaling": _ROPE_SCALING, **text}}


CONFIGS: dict[str, dict[str, Any]] = {
    "llama": {"model_type": "llama", **_SIZES},
    "mistral": {"model_type": "mistral", **_SIZES, "sliding_window": 128},
    "qwen2": {"model_type": "qwen2", **_SIZES, "head_dim": None, "tie_word_embeddings": True},
    "qwen3": {"model_type": "qwen3", **_SIZES},
    "qwen3_moe": {"model_type": "qwen3_moe", **_SIZES, **_EXPERTS},
    "qwen3_vl": _vision("qwen3_vl", {}),
    "qwen3_vl_moe": _vision("qwen3_vl_moe", _EXPERTS),
}


def configuration(values: dict[str, Any]) -> Configuration:
    return read_text_model(values, "config.json", name="tiny")
