"""What each family makes of its config: heads, windows, biases, experts. The tiny checkpoints prove the
rest.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from model_files import TINY_MODELS

from engine.checkpoints.foreign_config import ConfigReader
from engine.errors import ModelFileError, UnsupportedModelError
from engine.models.registry import FAMILIES, find_text_model
from engine.models.spec import DenseSpec, ModelSpec, MoeSpec


def config_of(model: str, **changes: Any) -> dict[str, Any]:
    """A tiny model's config; `...` removes a key."""
    values = json.loads((TINY_MODELS / model / "config.json").read_text(encoding="utf-8"))
    inner = values.get("text_config", values)
    for key, value in changes.items():
        if value is ...:
            inner.pop(key, None)
        else:
            inner[key] = value
    return values


def spec_of(values: dict[str, Any], *, stores_head: bool = False) -> ModelSpec:
    return find_text_model(ConfigReader(values, "config.json")).read_spec(stores_head=stores_head)


def windows(spec: ModelSpec) -> list[int | None]:
    return [layer.attention.window for layer in spec.layers]


def test_head_size_is_not_hidden_size_over_heads() -> None:
    """Qwen3-4B: 2560 / 32 would be 80."""
    changes = {"hidden_size": 2560, "num_attention_heads": 32, "num_key_value_heads": 8}
    spec = spec_of(config_of("tiny-qwen3", **changes, head_dim=128))
    assert spec.layers[0].attention.head_dim == 128
    assert spec.layers[0].attention.q_dim == 4096
    assert spec.layers[0].attention.scale == pytest.approx(128**-0.5)


@pytest.mark.parametrize(
    ("model", "head_dim"),
    [
        ("tiny-llama-rope3", 32),
        ("tiny-mistral-sw", 32),
        ("tiny-qwen2", 32),
        ("tiny-qwen3", 128),
        ("tiny-qwen3moe-mix", 32),
        ("tiny-qwen3vl", 128),
        ("tiny-qwen3vlmoe", 16),
    ],
)
def test_head_size_where_the_config_is_silent(model: str, head_dim: int) -> None:
    """Qwen3 and Qwen3-VL have a default of their own; the others divide."""
    for absent in (..., None):
        assert spec_of(config_of(model, head_dim=absent)).layers[0].attention.head_dim == head_dim


@pytest.mark.parametrize(
    ("model", "kv_heads"),
    [("tiny-llama-rope3", 64), ("tiny-mistral-sw", 8), ("tiny-qwen2", 32), ("tiny-qwen3", 32)],
)
def test_key_value_heads_where_the_config_is_silent(model: str, kv_heads: int) -> None:
    values = config_of(model, num_attention_heads=64, num_key_value_heads=..., head_dim=8)
    assert spec_of(values).layers[0].attention.num_kv_heads == kv_heads
    values = config_of(model, num_attention_heads=64, num_key_value_heads=None, head_dim=8)
    assert spec_of(values).layers[0].attention.num_kv_heads == 64


@pytest.mark.parametrize(("given", "window"), [(32, 32), (None, None), (..., 4096)])
def test_mistral_window(given: object, window: int | None) -> None:
    """null switches the window off; only a config without the key gets the class's default."""
    assert windows(spec_of(config_of("tiny-mistral-sw", sliding_window=given))) == [window] * 4


@pytest.mark.parametrize("model", ["tiny-qwen2", "tiny-qwen3"])
@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"use_sliding_window": False, "max_window_layers": 0}, [None] * 4),
        ({"use_sliding_window": ..., "max_window_layers": 0}, [None] * 4),
        ({"use_sliding_window": True, "max_window_layers": 3}, [None, None, None, 16]),
        ({"use_sliding_window": True, "max_window_layers": 0}, [16] * 4),
        ({"use_sliding_window": True, "max_window_layers": 9}, [None] * 4),
        ({"use_sliding_window": True, "max_window_layers": ...}, [None] * 4),
        (
            {"use_sliding_window": True, "layer_types": ["sliding_attention", "full_attention"] * 2},
            [16, None, 16, None],
        ),
    ],
)
def test_qwen_windows(model: str, changes: dict[str, Any], expected: list[int | None]) -> None:
    values = config_of(model, num_hidden_layers=4, sliding_window=16, **changes)
    assert windows(spec_of(values)) == expected


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"layer_types": ["full_attention"]}, ModelFileError),
        ({"layer_types": ["linear_attention"] * 5}, UnsupportedModelError),
        ({"layer_types": ["sliding_attention"] * 5}, ModelFileError),
        ({"layer_types": "full_attention"}, ModelFileError),
    ],
)
def test_layer_types_that_can_not_be_are_refused(changes: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error, match="layer_types"):
        spec_of(config_of("tiny-qwen3", **changes))


def test_qwen3_moe_has_one_window_for_all_layers() -> None:
    values = config_of("tiny-qwen3moe-mix", use_sliding_window=True, sliding_window=16, max_window_layers=6)
    assert windows(spec_of(values)) == [16] * 6


@pytest.mark.parametrize(
    ("step", "dense_layers", "sparse"),
    [
        (1, [], [0, 1, 2, 3, 4, 5]),
        (2, [], [1, 3, 5]),
        (2, [3], [1, 5]),
        (3, [0], [2, 5]),
        (1, [0, 5], [1, 2, 3, 4]),
        (7, [], []),
        (1, None, [0, 1, 2, 3, 4, 5]),
    ],
)
def test_which_layers_have_experts(step: int, dense_layers: list[int] | None, sparse: list[int]) -> None:
    spec = spec_of(config_of("tiny-qwen3moe-mix", decoder_sparse_step=step, mlp_only_layers=dense_layers))
    assert [i for i, layer in enumerate(spec.layers) if isinstance(layer.feed_forward, MoeSpec)] == sparse
    assert all(layer.feed_forward == DenseSpec(192) for i, layer in enumerate(spec.layers) if i not in sparse)


@pytest.mark.parametrize(("given", "normalise"), [(True, True), (False, False), (..., False)])
def test_top_k_is_normalised_only_when_the_config_says_so(given: object, normalise: bool) -> None:
    spec = spec_of(config_of("tiny-qwen3moe-mix", norm_topk_prob=given))
    moe = spec.layers[1].feed_forward
    assert isinstance(moe, MoeSpec)
    assert moe == MoeSpec(8, 3, 64, normalise)


def test_qwen3_vl_moe_always_normalises_and_says_when_the_config_differs() -> None:
    values = config_of("tiny-qwen3vlmoe", norm_topk_prob=False)
    reader = ConfigReader(values, "config.json")
    spec = find_text_model(reader).read_spec(stores_head=True)
    assert isinstance(spec.layers[0].feed_forward, MoeSpec)
    assert spec.layers[0].feed_forward.normalise_top_k
    assert [notice.code for notice in reader.notices] == ["setting-without-effect"]


def test_number_of_experts_under_its_newer_name() -> None:
    spec = spec_of(config_of("tiny-qwen3moe-mix", num_experts=..., num_local_experts=8))
    assert isinstance(spec.layers[1].feed_forward, MoeSpec)


@pytest.mark.parametrize(
    "changes",
    [
        {"num_experts": 0},
        {"num_experts_per_tok": 9},
        {"num_experts": 4096, "num_hidden_layers": 1024},
        {"mlp_only_layers": [-1]},
        {"mlp_only_layers": ["1"]},
        {"decoder_sparse_step": 0},
    ],
)
def test_impossible_experts_are_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(ModelFileError, match=next(iter(changes))):
        spec_of(config_of("tiny-qwen3moe-mix", **changes))


@pytest.mark.parametrize(
    ("model", "qkv", "output"),
    [("tiny-llama-rope3", True, True), ("tiny-qwen3", True, True), ("tiny-qwen2", True, False)],
)
def test_attention_bias(model: str, qkv: bool, output: bool) -> None:
    attention = spec_of(config_of(model, attention_bias=True)).layers[0].attention
    assert (attention.qkv_bias, attention.output_bias) == (qkv, output)


def test_llama_feed_forward_bias() -> None:
    assert spec_of(config_of("tiny-llama-rope3", mlp_bias=True)).layers[0].feed_forward == DenseSpec(
        256, bias=True
    )


@pytest.mark.parametrize("model", sorted(path.name for path in TINY_MODELS.iterdir()))
def test_which_key_names_the_number_type_changes_nothing(model: str) -> None:
    """The types that count are those of the tensors themselves."""
    specs = {
        spec_of(config_of(model, torch_dtype=old, dtype=new))
        for old in (..., "float32", "bfloat16")
        for new in (..., "float32", "float16")
    }
    assert len(specs) == 1


@pytest.mark.parametrize(
    ("outside", "inside", "tied"),
    [(True, True, True), (..., True, True), (True, ..., True), (False, False, False), (..., ..., False)],
)
def test_tying_is_read_outside_and_inside_text_config(outside: object, inside: object, tied: bool) -> None:
    values = config_of("tiny-qwen3vl", tie_word_embeddings=inside)
    values.pop("tie_word_embeddings")
    if outside is not ...:
        values["tie_word_embeddings"] = outside
    assert spec_of(values).tied_embeddings == tied
    assert not spec_of(values, stores_head=True).tied_embeddings


def test_every_architecture_of_a_family_finds_it() -> None:
    for family in FAMILIES:
        for architecture in family.architectures:
            assert find_text_model(ConfigReader({"architectures": [architecture]}, "c")).family is family
        for model_type in family.model_types:
            found = find_text_model(ConfigReader({"model_type": model_type}, "c"))
            assert (found.family, found.architecture) == (family, family.architectures[0])


@pytest.mark.parametrize(
    ("values", "named"),
    [
        (
            {"model_type": "gemma3", "architectures": ["Gemma3ForConditionalGeneration"]},
            "Gemma3ForConditional",
        ),
        ({"model_type": "llama", "architectures": ["LlamaForSequenceClassification"]}, "LlamaForSequence"),
        ({"model_type": "deepseek_v3", "architectures": ["LlamaForCausalLM"]}, "LlamaForCausalLM"),
        ({"model_type": "kimi_linear"}, "kimi_linear"),
    ],
)
def test_other_architectures_are_refused_by_name(values: dict[str, Any], named: str) -> None:
    with pytest.raises(UnsupportedModelError, match=named):
        find_text_model(ConfigReader(values, "config.json"))


@pytest.mark.parametrize("name", ["llama-3.1-8b", "qwen3-30b-a3b"])
def test_sizes_of_published_models(name: str) -> None:
    values, parameters = PUBLISHED[name]
    text_model = find_text_model(ConfigReader(values, "config.json"))
    spec = text_model.read_spec(stores_head=True)
    assert sum(each.num_elements for each in text_model.family.parameters(spec, {})) == parameters


PUBLISHED: dict[str, tuple[dict[str, Any], int]] = {
    "llama-3.1-8b": (
        {
            "model_type": "llama",
            "hidden_size": 4096,
            "intermediate_size": 14336,
            "num_hidden_layers": 32,
            "num_attention_heads": 32,
            "num_key_value_heads": 8,
            "rms_norm_eps": 1e-05,
            "rope_theta": 500000.0,
            "vocab_size": 128256,
            "max_position_embeddings": 131072,
        },
        8_030_261_248,
    ),
    "qwen3-30b-a3b": (
        {
            "model_type": "qwen3_moe",
            "hidden_size": 2048,
            "head_dim": 128,
            "moe_intermediate_size": 768,
            "num_hidden_layers": 48,
            "num_attention_heads": 32,
            "num_key_value_heads": 4,
            "num_experts": 128,
            "num_experts_per_tok": 8,
            "rms_norm_eps": 1e-06,
            "rope_theta": 1000000.0,
            "vocab_size": 151936,
            "max_position_embeddings": 40960,
        },
        30_532_122_624,
    ),
}
