"""Rotary settings in every layout. The values are those that transformers 5.24 gives for the same configs."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch

from engine.checkpoints.foreign_config import ConfigReader
from engine.cpu.rope import inverse_frequencies
from engine.errors import ModelFileError, UnsupportedModelError
from engine.models.rope import extended_context, read_rope
from engine.models.spec import RopeSpec


def read(
    config: dict[str, Any], *, multimodal: bool = False, partial: bool = False, context_length: int = 4096
) -> RopeSpec:
    return read_rope(
        ConfigReader(config, "config.json"),
        head_dim=64,
        context_length=context_length,
        default_theta=10_000.0,
        multimodal=multimodal,
        partial=partial,
    )


@pytest.mark.parametrize(
    ("config", "theta"),
    [
        ({"rope_theta": 5e5}, 5e5),
        ({"rope_theta": 500000}, 5e5),
        ({"rope_theta": 5e5, "rope_scaling": None}, 5e5),
        ({"rope_parameters": {"rope_theta": 7e5, "rope_type": "default"}}, 7e5),
        ({"rope_parameters": {"rope_theta": 7e5}}, 7e5),
        ({"rope_theta": 5e5, "rope_parameters": {"rope_theta": 7e5}}, 7e5),
        ({"rope_theta": 5e5, "rope_parameters": {"rope_type": "default"}}, 5e5),
        ({"rope_theta": 5e5, "rope_scaling": {"type": "linear", "factor": 2.0, "rope_theta": 7e5}}, 7e5),
        ({"rope_scaling": {"type": "linear", "factor": 2.0}, "rope_parameters": {"rope_theta": 7e5}}, 1e4),
    ],
)
def test_theta_is_found_wherever_it_stands(config: dict[str, Any], theta: float) -> None:
    rope = read(config)
    assert rope.theta == theta
    expected = 1.0 / theta ** (torch.arange(0, 64, 2).float() / 64)
    assert torch.allclose(inverse_frequencies(RopeSpec(rope.theta, rope.dim)), expected)


def test_an_absent_theta_is_told() -> None:
    reader = ConfigReader({}, "config.json")
    rope = read_rope(reader, head_dim=64, context_length=4096, default_theta=500_000.0)
    assert rope.theta == 500_000.0
    assert [notice.code for notice in reader.notices] == ["rope-theta-assumed"]
    assert "500,000" in reader.notices[0].message


@pytest.mark.parametrize("key", ["type", "rope_type"])
@pytest.mark.parametrize("section", ["rope_scaling", "rope_parameters"])
def test_both_names_of_the_kind_count(key: str, section: str) -> None:
    rope = read({"rope_theta": 1e4, section: {key: "linear", "factor": 4}})
    assert (rope.kind, rope.factor) == ("linear", 4.0)


@pytest.mark.parametrize("kind", ["dynamic", "longrope", "su", "proportional", "ntk", "mrope", ""])
def test_other_kinds_are_refused_by_name(kind: str) -> None:
    with pytest.raises(UnsupportedModelError, match=f"'{kind}'"):
        read({"rope_theta": 1e4, "rope_scaling": {"rope_type": kind, "factor": 2.0}})


def test_mrope_is_plain_on_text() -> None:
    scaling = {"type": "mrope", "rope_type": "default", "mrope_section": [8, 12, 12]}
    assert read({"rope_theta": 1e6, "rope_scaling": scaling}, multimodal=True) == RopeSpec(1e6, 64)


def test_kinds_that_contradict_each_other_are_refused() -> None:
    with pytest.raises(ModelFileError, match="rope_type"):
        read({"rope_theta": 1e4, "rope_scaling": {"type": "linear", "rope_type": "yarn", "factor": 2.0}})


def test_settings_for_each_kind_of_layer_are_refused() -> None:
    nested = {"full_attention": {"rope_type": "default", "rope_theta": 1e6}}
    with pytest.raises(UnsupportedModelError, match="full_attention"):
        read({"rope_parameters": nested})


LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}


@pytest.mark.parametrize(
    ("beside", "inside", "expected"),
    [(None, 8192, 8192), (64, 8192, 64), (64, None, 64), (None, None, 4096)],
)
def test_original_context_is_found_as_transformers_finds_it(
    beside: int | None, inside: int | None, expected: int
) -> None:
    key = "original_max_position_embeddings"
    rope = read({"rope_theta": 5e5, key: beside, "rope_scaling": {**LLAMA3, key: inside}})
    assert rope.original_context_length == expected


@pytest.mark.parametrize("key", ["factor", "low_freq_factor", "high_freq_factor"])
def test_llama3_needs_its_factors(key: str) -> None:
    scaling = {name: value for name, value in LLAMA3.items() if name != key}
    with pytest.raises(ModelFileError, match=f"rope_scaling.{key}"):
        read({"rope_theta": 5e5, "rope_scaling": scaling})


def test_llama3_bands_must_be_in_order() -> None:
    with pytest.raises(ModelFileError, match="high_freq_factor"):
        read({"rope_theta": 5e5, "rope_scaling": {**LLAMA3, "high_freq_factor": 1.0}})


YARN: dict[str, Any] = {"rope_type": "yarn", "factor": 40.0, "original_max_position_embeddings": 256}


@pytest.mark.parametrize(
    ("settings", "attention_factor"),
    [
        ({}, 0.1 * math.log(40) + 1),
        ({"factor": 0.5}, 1.0),
        ({"attention_factor": 1.3}, 1.3),
        ({"mscale": 0.707, "mscale_all_dim": 1.0}, (0.0707 * math.log(40) + 1) / (0.1 * math.log(40) + 1)),
        ({"mscale": 0.707}, 0.1 * math.log(40) + 1),
        ({"mscale": 0.707, "mscale_all_dim": 0}, 0.1 * math.log(40) + 1),
        ({"mscale": 0.707, "mscale_all_dim": 0.707}, 1.0),
        ({"factor": None}, 0.1 * math.log(16) + 1),
    ],
)
def test_yarn_attention_factor(settings: dict[str, Any], attention_factor: float) -> None:
    rope = read({"rope_theta": 1e6, "rope_scaling": {**YARN, **settings}})
    assert rope.attention_factor == pytest.approx(attention_factor, rel=1e-12)


def test_yarn_defaults_and_values() -> None:
    rope = read({"rope_theta": 1e6, "rope_scaling": {**YARN, "beta_fast": 0, "beta_slow": None}})
    assert (rope.beta_fast, rope.beta_slow, rope.truncate) == (32.0, 1.0, True)
    rope = read(
        {"rope_theta": 1e6, "rope_scaling": {**YARN, "beta_fast": 16, "beta_slow": 2, "truncate": False}}
    )
    assert (rope.beta_fast, rope.beta_slow, rope.truncate) == (16.0, 2.0, False)


def test_yarn_frequencies_are_those_of_transformers() -> None:
    """From `_compute_yarn_parameters` of transformers 5.24 for this config; head size 64."""
    rope = read({"rope_theta": 1e6, "rope_scaling": {**YARN, "mscale": 0.707, "mscale_all_dim": 1.0}})
    picked = inverse_frequencies(rope)[[0, 1, 4, 8, 31]].tolist()
    assert picked == pytest.approx([1.0, 0.57903194, 0.10076917, 0.0042163702, 3.8498165e-08], rel=1e-6)


def test_yarn_needs_a_factor() -> None:
    with pytest.raises(ModelFileError, match=r"rope_scaling\.factor"):
        read({"rope_theta": 1e6, "rope_scaling": {"rope_type": "yarn"}})


def test_yarn_stretches_the_context() -> None:
    stretched = read(
        {
            "rope_theta": 1e6,
            "rope_scaling": {**YARN, "factor": 4.0, "original_max_position_embeddings": 32768},
        }
    )
    assert extended_context(stretched, 40960) == 131072
    assert extended_context(stretched, 262144) == 262144
    assert (
        extended_context(read({"rope_theta": 1e6, "rope_scaling": {"type": "linear", "factor": 4}}), 4096)
        == 4096
    )


@pytest.mark.parametrize(
    "config",
    [
        {"partial_rotary_factor": 0.25},
        {"rope_parameters": {"partial_rotary_factor": 0.25}},
        {"partial_rotary_factor": 1.0, "rope_parameters": {"partial_rotary_factor": 0.25}},
    ],
)
def test_partial_rotation(config: dict[str, Any]) -> None:
    assert read({"rope_theta": 1e4, **config}, partial=True).dim == 16
    with pytest.raises(UnsupportedModelError, match=r"partial_rotary_factor 0\.25"):
        read({"rope_theta": 1e4, **config})


@pytest.mark.parametrize("factor", [0.0, -1.0, 1.5, 0.01, 0.4, "0.5"])
def test_impossible_rotations_are_refused(factor: object) -> None:
    """0.4 of 64 features would be 25, an odd number."""
    with pytest.raises(ModelFileError):
        read({"rope_theta": 1e4, "partial_rotary_factor": factor}, partial=True)


@pytest.mark.parametrize("theta", [0, 1, -1e4, "10000", float("nan"), float("inf"), True, [1e4]])
def test_impossible_thetas_are_refused(theta: object) -> None:
    with pytest.raises(ModelFileError, match="rope_theta"):
        read({"rope_theta": theta})


def test_frequency_factors_divide_frequencies_of_every_kind() -> None:
    """GGUF files of Llama 3 store its scaling so; ignored, long texts would fall apart without an error."""
    factors = tuple(1.0 + i / 4 for i in range(32))
    for rope in (RopeSpec(1e4, 64), RopeSpec(1e4, 64, "linear", factor=2.0)):
        divided = inverse_frequencies(replace(rope, frequency_factors=factors))
        assert torch.equal(divided, inverse_frequencies(rope) / torch.tensor(factors))
