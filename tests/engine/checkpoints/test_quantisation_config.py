"""What configs say of quantised weights: the known forms are read, all others are refused by their name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from quantised_folders import awq, fp8_blocks, fp8_rows, gptq, int8, packed

from engine.checkpoints.foreign_config import ConfigReader
from engine.checkpoints.quantisation_config import (
    Quantisation,
    QuantisationSettings,
    find_quantisation,
    read_quantisation,
)
from engine.errors import ModelFileError, UnsupportedModelError


def found(
    values: dict[str, Any], folder: Path = Path(), present: tuple[str, ...] = ()
) -> QuantisationSettings:
    settings = find_quantisation(ConfigReader(values, "config.json"), folder, set(present))
    assert settings is not None
    return settings


def read(**quantisation: Any) -> Quantisation:
    return read_quantisation(found({"quantization_config": quantisation}))


@pytest.mark.parametrize("absent", [{}, {"quantization_config": None}, {"quantization_config": {}}])
def test_no_quantisation_is_no_quantisation(absent: dict[str, Any]) -> None:
    assert find_quantisation(ConfigReader(absent, "config.json"), Path(), set()) is None


def test_known_forms_are_read() -> None:
    assert read(**gptq().config) == Quantisation("gptq", "GPTQ")
    assert not read(**gptq(v2=True).config).zeros_less_one
    assert read(**gptq(sym=True, desc_act=True).config) == Quantisation(
        "gptq", "GPTQ", symmetric=True, may_reorder=True
    )
    assert read(quant_method="gptq", bits=8, format="gptq_v2").zeros_less_one is False
    assert read(**awq().config) == Quantisation("awq", "AWQ", needs_zeros=True)
    assert read(quant_method="awq", w_bit=4, version="GEMM").method == "awq"
    assert read(**packed().config) == Quantisation("compressed-tensors", "compressed-tensors")
    assert read(**packed(actorder=True).config).may_reorder
    assert read(**packed(sym=False).config).needs_zeros
    assert read(**int8().config).beyond_weights == "activations"
    assert read(**fp8_rows().config).method == "compressed-tensors"
    assert read(**fp8_blocks().config) == Quantisation(
        "fp8", "FP8", block=(128, 128), beyond_weights="activations"
    )
    assert read(quant_method="modelopt", quant_algo="FP8", kv_cache_quant_algo="FP8").beyond_weights == (
        "activations and the cache"
    )
    assert read(quant_method="fbgemm_fp8").method == "fp8"


def test_a_vision_models_inner_config_and_the_older_key_count() -> None:
    inner = {"text_config": {"quantization_config": dict(awq().config)}}
    assert read_quantisation(found(inner)).method == "awq"
    assert (
        read_quantisation(found({"compression_config": dict(packed().config)})).method == "compressed-tensors"
    )


@pytest.mark.parametrize(
    ("name", "values", "method"),
    [
        ("quantize_config.json", {"bits": 4, "group_size": 128, "desc_act": False, "sym": True}, "gptq"),
        (
            "quant_config.json",
            {"w_bit": 4, "q_group_size": 128, "zero_point": True, "version": "GEMM"},
            "awq",
        ),
        ("hf_quant_config.json", {"producer": {}, "quantization": {"quant_algo": "FP8"}}, "fp8"),
    ],
)
def test_files_of_older_tools_count_where_config_is_silent(
    name: str, values: dict[str, Any], method: str, tmp_path: Path
) -> None:
    (tmp_path / name).write_text(json.dumps(values))
    assert read_quantisation(found({}, tmp_path, (name,))).method == method
    spoken = found({"quantization_config": dict(packed().config)}, tmp_path, (name,))
    assert spoken.method == "compressed-tensors"


@pytest.mark.parametrize("size", ["128x128", "128X128", [128, 128]])
def test_blocks_are_given_as_text_or_list(size: Any) -> None:
    config = dict(fp8_rows().config)
    config["config_groups"] = {
        "group_0": {
            "weights": {"num_bits": 8, "type": "float", "strategy": "block", "block_structure": size},
            "targets": ["Linear"],
        }
    }
    assert read(**config).block == (128, 128)


def compressed(**changes: Any) -> dict[str, Any]:
    return {**packed().config, **changes}


def with_weights(**weights: Any) -> dict[str, Any]:
    return compressed(config_groups={"group_0": {"targets": ["Linear"], "weights": weights}})


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, r"bitsandbytes \(load_in_4bit True\)"),
        ({"quant_method": "hqq", "nbits": 4}, "hqq"),
        ({"quant_method": "eetq", "weights": "int8"}, "eetq"),
        ({"quant_method": "quanto", "weights": "int4"}, r"quanto \(weights int4\)"),
        ({"quant_method": "torchao"}, "torchao"),
        ({"quant_method": "aqlm"}, "aqlm"),
        ({"quant_method": "mxfp4"}, "mxfp4"),
        ({"quant_method": "auto-round", "bits": 4}, "auto-round"),
        ({"quant_algo": "NVFP4"}, r"modelopt \(quant_algo NVFP4\)"),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, "NVFP4"),
        ({"bits": 4}, "a method without a name"),
        ({"quant_method": "gptq", "bits": 3}, "3 bits"),
        ({"quant_method": "gptq", "bits": 2, "group_size": 64}, r"gptq \(bits 2, group_size 64\)"),
        ({"quant_method": "gptq", "bits": 4, "checkpoint_format": "marlin"}, "'marlin'"),
        ({"quant_method": "gptq", "bits": 4, "is_marlin_format": True}, "'marlin'"),
        ({"quant_method": "gptq", "bits": 4, "pack_dtype": "int64"}, "int64"),
        ({"quant_method": "awq", "bits": 4, "version": "gemv"}, "version gemv"),
        ({"quant_method": "awq", "bits": 4, "version": "gemv_fast"}, "gemv_fast"),
        ({"quant_method": "awq", "bits": 3}, "3 bits"),
        ({"quant_method": "fp8", "expert_dtype": "fp4"}, "fp4"),
        (compressed(format="nvfp4-pack-quantized"), "nvfp4-pack-quantized"),
        (compressed(format="marlin-24"), "marlin-24"),
        (compressed(sparsity_config={"format": "sparse-24-bitmask"}), "sparse-24-bitmask"),
        (compressed(transform_config={"config_groups": {"R1": {"type": "hadamard"}}}), "transform_config"),
        (with_weights(num_bits=3, type="int"), "num_bits is 3"),
        (with_weights(num_bits=4, type="float"), "4 of type float"),
    ],
)
def test_other_forms_are_refused_by_name_with_what_to_take_instead(
    values: dict[str, Any], named: str
) -> None:
    with pytest.raises(UnsupportedModelError, match=named) as raised:
        read(**values)
    assert "GPTQ" in raised.value.hint
    assert "GGUF" in raised.value.hint


def test_mlx_and_words_instead_of_settings_are_named() -> None:
    with pytest.raises(UnsupportedModelError, match=r"MLX \(bits 4, group_size 64\)"):
        read_quantisation(found({"quantization": {"bits": 4, "group_size": 64}}))
    with pytest.raises(UnsupportedModelError, match="quantised by awful"):
        read_quantisation(found({"quantization_config": "awful"}))


@pytest.mark.parametrize(
    ("values", "key"),
    [
        ({"quant_method": "gptq", "bits": "four"}, "quantization_config.bits"),
        ({"quant_method": "gptq"}, "quantization_config.bits"),
        ({"quant_method": "gptq", "bits": 4, "sym": 1}, "quantization_config.sym"),
        ({"quant_method": "awq", "version": 2}, "quantization_config.version"),
        ({"quant_method": "fp8", "weight_block_size": [128]}, "quantization_config.weight_block_size"),
        ({"quant_method": "fp8", "weight_block_size": [0, 128]}, "quantization_config.weight_block_size"),
        ({"quant_method": "fp8", "weight_block_size": "128"}, "quantization_config.weight_block_size"),
        (compressed(config_groups=[]), "quantization_config.config_groups"),
        (with_weights(num_bits="8"), "config_groups.group_0.weights.num_bits"),
        (compressed(config_groups={"group_0": {"weights": 4}}), "config_groups.group_0.weights"),
    ],
)
def test_wrong_values_name_their_key(values: dict[str, Any], key: str) -> None:
    with pytest.raises(ModelFileError, match=key):
        read(**values)
