"""Makes quantised model folders out of the tiny checkpoints, in the layouts in which people download them.

Everything is written out number by number in numpy, from what the formats say and from nothing of the engine.
Beside each folder stands its twin: the same numbers as plain float32.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from model_files import WEIGHTS, RawTensor, Tensors, copy_model, read_tensors, set_config, write_tensors

Array = np.ndarray[Any, Any]
Parts = dict[str, RawTensor]
"""The tensors of one matrix by the end of their names: ".qweight", ".scales" …"""

AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)  # the output in each place of a word, the lowest first


@dataclass(frozen=True)
class Recipe:
    """How matrices are stored. `pack` gives the tensors of a matrix (N, K) and what they stand for."""

    pack: Callable[[Array], tuple[Parts, Array]]
    config: Mapping[str, Any]
    kept: tuple[str, ...] = ("lm_head", "embed_tokens", "mlp.gate.", "visual.", "norm")  # as they are
    also: Mapping[str, Any] = field(default_factory=dict)  # further settings of config.json


@dataclass(frozen=True)
class Quantised:
    """Unsigned codes (N, K); zero points and scales (N, groups); the group of each input (K,)."""

    codes: Array
    zeros: Array
    scales: Array
    group_of: Array

    @property
    def values(self) -> Array:
        steps = self.scales.astype(np.float64)[:, self.group_of]
        exact = (self.codes.astype(np.float64) - self.zeros.astype(np.float64)[:, self.group_of]) * steps
        return exact.astype(np.float32)


def make_folder(model: str, target: Path, recipe: Recipe) -> tuple[Path, Path]:
    """The quantised folder and its plain float32 twin, both new below `target`."""
    folder, twin = copy_model(model, target / "quantised"), copy_model(model, target / "plain")
    packed: Tensors = {}
    plain: Tensors = {}
    for name, tensor in read_tensors(folder / WEIGHTS).items():
        if len(tensor.shape) < 2 or any(part in name for part in recipe.kept):
            packed[name] = plain[name] = tensor
            continue
        weight = numbers(tensor)
        parts, values = recipe.pack(weight)
        stem = name.removesuffix(".weight")
        for ending, part in parts.items():
            packed[(stem if name.endswith(".weight") else name) + ending] = part
        plain[name] = stored(values.astype(np.float32), "F32")
    write_tensors(folder / WEIGHTS, packed)
    write_tensors(twin / WEIGHTS, plain)
    set_config(folder, quantization_config=dict(recipe.config), **recipe.also)
    return folder, twin


# --- recipes


def gptq(
    bits: int = 4,
    group: int = 32,
    *,
    sym: bool = False,
    v2: bool = False,
    desc_act: bool = False,
    **also: Any,
) -> Recipe:
    def pack(weight: Array) -> tuple[Parts, Array]:
        made = quantised(weight, bits, group, sym=sym, shuffled=desc_act)
        zeros = made.zeros if v2 else (made.zeros - 1) % 2**bits
        return {
            ".qweight": words(made.codes.T, bits, axis=0),
            ".qzeros": words(zeros.T, bits, axis=1),
            ".scales": stored(made.scales.T, "F16"),
            ".g_idx": RawTensor("I32", (weight.shape[1],), made.group_of.astype("<i4").tobytes()),
        }, made.values

    config = {
        "quant_method": "gptq", "bits": bits, "group_size": group, "sym": sym, "desc_act": desc_act,
        "damp_percent": 0.01, "true_sequential": True, "checkpoint_format": "gptq_v2" if v2 else "gptq",
    }  # fmt: skip
    return Recipe(pack, config, **also)


def awq(group: int = 32) -> Recipe:
    def pack(weight: Array) -> tuple[Parts, Array]:
        made = quantised(weight, 4, group)
        return {
            ".qweight": words(_in_awq_order(made.codes.T), 4, axis=1),
            ".qzeros": words(_in_awq_order(made.zeros.T), 4, axis=1),
            ".scales": stored(made.scales.T, "F16"),
        }, made.values

    config = {
        "quant_method": "awq", "bits": 4, "group_size": group, "zero_point": True, "version": "gemm",
        "modules_to_not_convert": None,
    }  # fmt: skip
    return Recipe(pack, config)


def packed(
    bits: int = 4, group: int = 32, *, sym: bool = True, actorder: bool = False, **also: Any
) -> Recipe:
    """compressed-tensors, "pack-quantized". A group of -1: one scale a row."""

    def pack(weight: Array) -> tuple[Parts, Array]:
        made = quantised(weight, bits, group, sym=sym, shuffled=actorder, dtype="BF16")
        parts = {
            ".weight_packed": words(made.codes, bits, axis=1),
            ".weight_scale": stored(made.scales, "BF16"),
            ".weight_shape": RawTensor("I64", (2,), np.array(weight.shape, "<i8").tobytes()),
        }
        if not sym:
            parts[".weight_zero_point"] = words(made.zeros, bits, axis=0)
        if actorder:
            group_of = made.group_of.astype("<i4")
            parts[".weight_g_idx"] = RawTensor("I32", group_of.shape, group_of.tobytes())
        return parts, made.values

    weights = _weights(bits, "int", "channel" if group == -1 else "group", symmetric=sym)
    weights |= {"group_size": None if group == -1 else group, "actorder": "group" if actorder else None}
    return Recipe(pack, _compressed("pack-quantized", weights), **also)


def int8(*, sym: bool = True, static_inputs: bool = True) -> Recipe:
    """compressed-tensors, "int-quantized": one scale a row, activations quantised as well."""

    def pack(weight: Array) -> tuple[Parts, Array]:
        made = quantised(weight, 8, -1, sym=sym, dtype="BF16")
        codes = (made.codes.astype(np.int16) - 128).astype(np.int8)
        parts = {
            ".weight": RawTensor("I8", weight.shape, codes.tobytes()),
            ".weight_scale": stored(made.scales, "BF16"),
        }
        if not sym:
            zeros = (made.zeros.astype(np.int16) - 128).astype(np.int8)
            parts[".weight_zero_point"] = RawTensor("I8", zeros.shape, zeros.tobytes())
        if static_inputs:
            parts[".input_scale"] = stored(np.array([0.1]), "BF16")
        return parts, made.values

    weights = _weights(8, "int", "channel", symmetric=sym)
    inputs = _weights(8, "int", "tensor" if static_inputs else "token", symmetric=True)
    return Recipe(pack, _compressed("int-quantized", weights, inputs))


def fp8_blocks(block: tuple[int, int] = (128, 128), **also: Any) -> Recipe:
    """As DeepSeek and Qwen publish it. A stack of matrices (E, N, K) has its scales as a stack."""

    def pack(weight: Array) -> tuple[Parts, Array]:
        stack = weight if weight.ndim == 3 else weight[None]
        codes, scales, values = zip(*(_fp8_blocks(matrix, block) for matrix in stack), strict=True)
        shape = weight.shape[:-2]
        grid = np.stack(scales).reshape(*shape, *scales[0].shape)
        name = ".weight" if weight.ndim == 2 else ""
        return {
            name: RawTensor("F8_E4M3", weight.shape, np.stack(codes).tobytes()),
            f"{name}_scale_inv": stored(grid, "F32"),
        }, np.stack(values).reshape(weight.shape)

    config = {
        "quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic",
        "weight_block_size": list(block), "modules_to_not_convert": ["lm_head"],
    }  # fmt: skip
    return Recipe(pack, config, **also)


def fp8_rows(strategy: str = "channel") -> Recipe:
    """compressed-tensors, "float-quantized": one scale a row, or for all ("tensor")."""

    def pack(weight: Array) -> tuple[Parts, Array]:
        largest = np.abs(weight).max(axis=1 if strategy == "channel" else None, keepdims=True)
        scales = rounded(largest / 448, "BF16")
        codes = fp8_codes(weight / scales)
        values = fp8_numbers()[codes] * scales
        shown = scales if strategy == "channel" else scales.reshape(1)
        return {
            ".weight": RawTensor("F8_E4M3", weight.shape, codes.tobytes()),
            ".weight_scale": stored(shown, "BF16"),
        }, values

    inputs = _weights(8, "float", "token", symmetric=True)
    return Recipe(pack, _compressed("float-quantized", _weights(8, "float", strategy), inputs))


# --- numbers


def quantised(
    weight: Array, bits: int, group: int, *, sym: bool = False, shuffled: bool = False, dtype: str = "F16"
) -> Quantised:
    """Plain rounding, each group from its least to its largest number. A group of -1 is the whole row."""
    rows, columns = weight.shape
    size = columns if group == -1 else group
    position = np.random.default_rng(columns).permutation(columns) if shuffled else np.arange(columns)
    group_of = position // size
    top = 2**bits - 1
    zeros = np.zeros((rows, columns // size), np.int64)
    scales = np.zeros((rows, columns // size))
    for number in range(columns // size):
        part = weight[:, group_of == number].astype(np.float64)
        low, high = np.minimum(part.min(1), 0), np.maximum(part.max(1), 0)
        if sym:
            scales[:, number] = np.maximum(-low, high) / (top // 2)
            zeros[:, number] = top // 2 + 1
        else:
            scales[:, number] = (high - low) / top
            zeros[:, number] = np.rint(-low / scales[:, number])
    scales = rounded(scales, dtype)
    codes = np.clip(np.rint(weight / scales[:, group_of]) + zeros[:, group_of], 0, top)
    return Quantised(codes.astype(np.uint8), zeros, scales, group_of)


def words(codes: Array, bits: int, *, axis: int) -> RawTensor:
    """Codes packed along an axis into int32, the first in the lowest bits, the end filled with zeros."""
    moved = np.moveaxis(codes, axis, -1).astype(np.uint64)
    per_word = 32 // bits
    missing = -moved.shape[-1] % per_word
    moved = np.pad(moved, [(0, 0)] * (moved.ndim - 1) + [(0, missing)])
    grouped = moved.reshape(*moved.shape[:-1], -1, per_word)
    joined = sum(grouped[..., place] << np.uint64(bits * place) for place in range(per_word))
    back = np.ascontiguousarray(np.moveaxis(np.asarray(joined), -1, axis)).astype("<u4")
    return RawTensor("I32", back.shape, back.tobytes())


def rounded(values: Array, dtype: str) -> Array:
    """float32 of what the type can hold."""
    return numbers(stored(values, dtype))


def stored(values: Array, dtype: str) -> RawTensor:
    single = np.ascontiguousarray(values, "<f4")
    if dtype == "BF16":
        raw = single.view("<u4").astype(np.uint64)
        data = ((raw + 0x7FFF + ((raw >> 16) & 1)) >> 16).astype("<u2")
    else:
        data = single.astype({"F16": "<f2", "F32": "<f4"}[dtype])
    return RawTensor(dtype, values.shape, data.tobytes())


def numbers(tensor: RawTensor) -> Array:
    if tensor.dtype == "BF16":
        raw = np.frombuffer(tensor.data, "<u2").astype("<u4") << 16
        return raw.view("<f4").reshape(tensor.shape)
    kind = {"F16": "<f2", "F32": "<f4"}[tensor.dtype]
    return np.frombuffer(tensor.data, kind).astype(np.float32).reshape(tensor.shape)


def fp8_numbers() -> Array:
    """What each of the 256 codes of E4M3 stands for: sign, 4 bits of exponent (bias 7), 3 of mantissa."""
    values = []
    for code in range(256):
        exponent, mantissa = code >> 3 & 15, code & 7
        size = mantissa / 8 * 2.0**-6 if exponent == 0 else (1 + mantissa / 8) * 2.0 ** (exponent - 7)
        values.append(np.nan if code & 127 == 127 else -size if code & 128 else size)
    return np.array(values, np.float32)


def fp8_codes(values: Array) -> Array:
    """The nearest code of each number; beyond 448 the largest."""
    positive = fp8_numbers()[:127]
    middles = (positive[1:] + positive[:-1]) / 2
    codes = np.searchsorted(middles, np.abs(values)).astype(np.uint8)
    return codes | np.where(np.signbit(values), 128, 0).astype(np.uint8)


def _fp8_blocks(weight: Array, block: tuple[int, int]) -> tuple[Array, Array, Array]:
    """Codes, scales and values of one matrix."""
    rows, columns = weight.shape
    grid = np.ones((-(-rows // block[0]), -(-columns // block[1])), np.float32)
    spread = np.empty_like(weight)
    for i in range(grid.shape[0]):
        for j in range(grid.shape[1]):
            part = np.s_[i * block[0] : (i + 1) * block[0], j * block[1] : (j + 1) * block[1]]
            grid[i, j] = np.abs(weight[part]).max() / 448
            spread[part] = grid[i, j]
    codes = fp8_codes(weight / spread)
    return codes, grid, fp8_numbers()[codes] * spread


def _in_awq_order(codes: Array) -> Array:
    """(A, N) with the eight outputs of each word in the order in which AWQ packs them."""
    return codes.reshape(len(codes), -1, 8)[:, :, list(AWQ_ORDER)].reshape(codes.shape)


def _weights(bits: int, kind: str, strategy: str, *, symmetric: bool = True) -> dict[str, Any]:
    return {
        "num_bits": bits, "type": kind, "strategy": strategy, "symmetric": symmetric, "dynamic": False,
        "group_size": None, "block_structure": None, "actorder": None, "observer": "minmax",
    }  # fmt: skip


def _compressed(
    form: str, weights: Mapping[str, Any], inputs: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    group = {
        "targets": ["Linear"],
        "weights": dict(weights),
        "input_activations": inputs,
        "output_activations": None,
    }
    return {
        "quant_method": "compressed-tensors", "format": form, "quantization_status": "compressed",
        "config_groups": {"group_0": group}, "ignore": ["lm_head"], "kv_cache_scheme": None,
        "global_compression_ratio": 1.9,
    }  # fmt: skip


def quantisation_of(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "config.json").read_text())["quantization_config"]
    return found
