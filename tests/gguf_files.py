"""Writes GGUF files for tests out of the tiny checkpoints, in the row order and with the names of
llama.cpp.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt
import torch
from model_files import TINY_MODELS, WEIGHTS
from safetensors.torch import load_file

ARCHITECTURES = {"llama": "llama", "qwen2": "qwen2", "qwen3": "qwen3", "qwen3_moe": "qwen3moe"}

_NAMES = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
}
_LAYER_NAMES = {
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "mlp.gate": "ffn_gate_inp",
}

Array = npt.NDArray[np.float32]


def write_gguf(
    model: str, path: Path, *, kind: str = "F32", settings: Mapping[str, Any] | None = None, **extra: Array
) -> Path:
    """`kind` is the type of all matrices whose rows are whole blocks of it. `settings` adds to or replaces
    the metadata (None removes a key); `extra` adds tensors, with "__" for "." in their names."""
    config = json.loads((TINY_MODELS / model / "config.json").read_text(encoding="utf-8"))
    arch = ARCHITECTURES[config["model_type"]]
    writer = gguf.GGUFWriter(path, arch)
    for key, value in (_settings(config, arch) | dict(settings or {})).items():
        _add(writer, key, value)
    for name, array in _tensors(model, config, arch).items():
        _add_tensor(writer, name, array, kind)
    for name, array in extra.items():
        writer.add_tensor(name.replace("__", "."), array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _settings(config: Mapping[str, Any], arch: str) -> dict[str, Any]:
    heads = config["num_attention_heads"]
    head_dim = config.get("head_dim") or config["hidden_size"] // heads
    settings: dict[str, Any] = {
        "block_count": config["num_hidden_layers"],
        "context_length": config["max_position_embeddings"],
        "embedding_length": config["hidden_size"],
        "feed_forward_length": config["intermediate_size"],
        "attention.head_count": heads,
        "attention.head_count_kv": config["num_key_value_heads"],
        "attention.key_length": head_dim,
        "attention.value_length": head_dim,
        "attention.layer_norm_rms_epsilon": float(config["rms_norm_eps"]),
        "rope.freq_base": float(config["rope_theta"]),
    }
    if arch == "qwen3moe":
        settings["expert_count"] = config["num_experts"]
        settings["expert_used_count"] = config["num_experts_per_tok"]
        settings["expert_feed_forward_length"] = config["moe_intermediate_size"]
    tokens = [f"token{i}" for i in range(config["vocab_size"])]
    return {f"{arch}.{key}": value for key, value in settings.items()} | {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "qwen2",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [1] * len(tokens),
        "tokenizer.ggml.merges": ["t o"],
        "tokenizer.ggml.eos_token_id": config["eos_token_id"],
        "tokenizer.chat_template": "{{ messages }}",
    }


def _add(writer: gguf.GGUFWriter, key: str, value: Any) -> None:
    if isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, int):
        writer.add_uint32(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    elif isinstance(value, str):
        writer.add_string(key, value)
    elif isinstance(value, list):
        writer.add_array(key, value)
    else:
        assert value is None, f"{key}: {value!r}"


def _add_tensor(writer: gguf.GGUFWriter, name: str, array: Array, kind: str) -> None:
    quant_type = gguf.GGMLQuantizationType[kind]
    block_size, _ = gguf.GGML_QUANT_SIZES[quant_type]
    if array.ndim == 1 or kind == "F32" or array.shape[-1] % block_size:
        writer.add_tensor(name, array)
    else:
        writer.add_tensor(name, gguf.quants.quantize(array, quant_type), raw_dtype=quant_type)


def _tensors(model: str, config: Mapping[str, Any], arch: str) -> dict[str, Array]:
    stored = load_file(TINY_MODELS / model / WEIGHTS)
    found: dict[str, Array] = {}
    for name, tensor in stored.items():
        if ".experts." not in name:
            found[gguf_name(name)] = tensor.to(torch.float32).numpy()
    for layer in range(config["num_hidden_layers"]):
        for part, gguf_part in (("gate_proj", "ffn_gate"), ("up_proj", "ffn_up"), ("down_proj", "ffn_down")):
            names = [
                f"model.layers.{layer}.mlp.experts.{e}.{part}.weight"
                for e in range(config.get("num_experts", 0))
            ]
            if names and names[0] in stored:
                stacked = torch.stack([stored[name] for name in names]).to(torch.float32)
                found[f"blk.{layer}.{gguf_part}_exps.weight"] = stacked.numpy()
        if arch == "llama":
            for part, key in (("q", "num_attention_heads"), ("k", "num_key_value_heads")):
                name = f"blk.{layer}.attn_{part}.weight"
                found[name] = interleave_rows(found[name], config[key])
    return found


def gguf_name(name: str) -> str:
    """llama.cpp's name of a tensor of a Hugging Face checkpoint."""
    if name in _NAMES:
        return _NAMES[name]
    _, _, layer, rest = name.split(".", 3)
    stem, ending = rest.rsplit(".", 1)
    return f"blk.{layer}.{_LAYER_NAMES[stem]}.{ending}"


def interleave_rows(weight: Array, heads: int) -> Array:
    """Rows i and i + D/2 of each head become neighbours, as the converter of llama.cpp lays them."""
    head_dim = weight.shape[0] // heads
    order = [
        h * head_dim + i + half * head_dim // 2
        for h in range(heads)
        for i in range(head_dim // 2)
        for half in (0, 1)
    ]
    return np.ascontiguousarray(weight[order])
