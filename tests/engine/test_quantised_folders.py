"""Folders that others quantised: they load in every form of the weights, say what they are, and compute what
their numbers say.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from model_files import WEIGHTS, RawTensor, Tensors, copy_model, edit_tensors, read_tensors, set_config
from quantised_folders import (
    Recipe,
    awq,
    fp8_blocks,
    fp8_rows,
    gptq,
    int8,
    make_folder,
    numbers,
    packed,
    quantised,
    stored,
    words,
)

from engine.checkpoints.model_folder import open_model
from engine.config import EngineConfig, WeightFormat
from engine.cpu.backend import CpuBackend
from engine.default_folders import strips_folder
from engine.engine import Engine
from engine.errors import EngineError, ModelFileError
from engine.inspection import inspect_model
from engine.weights.sizes import MatrixCounts

EXACT = 1e-4  # sums in another order; logits of these models are below 10
HEAD_TOO = (
    "embed_tokens",
    "mlp.gate.",
    "visual.",
    "norm",
)  # what is kept where the head is quantised as well
EXPERTS_FP8 = Recipe(
    fp8_blocks((32, 32)).pack,
    fp8_blocks((32, 32)).config,
    kept=("lm_head", "embed_tokens", "gate.", "visual."),
)

LOSSLESS: dict[str, tuple[str, Recipe]] = {
    "gptq, Qwen2": ("tiny-qwen2", gptq()),
    "gptq per row, Llama": ("tiny-llama-rope3", gptq(group=-1, sym=True)),
    "gptq v2 of 64, Mistral": ("tiny-mistral-sw", gptq(group=64, v2=True)),
    "gptq of 8 bits, MoE": ("tiny-qwen3moe-mix", gptq(bits=8, sym=True)),
    "awq, Qwen3 tied": ("tiny-qwen3", awq()),
    "awq, MoE": ("tiny-qwen3moe-mix", awq()),
    "packed int4, vision": ("tiny-qwen3vl", packed()),
    "packed int4, MoE": ("tiny-qwen3moe-mix", packed(sym=False)),
    "packed int8, Llama": ("tiny-llama-rope3", packed(bits=8, group=-1)),
    "int8, Qwen2": ("tiny-qwen2", int8()),
    "packed head, Qwen2": ("tiny-qwen2", packed(kept=HEAD_TOO)),
    "gptq head, MoE": ("tiny-qwen3moe-mix", gptq(kept=HEAD_TOO)),
    "packed tied embedding, Qwen3": ("tiny-qwen3", packed(kept=("norm",))),
}
DEQUANTISED: dict[str, tuple[str, Recipe]] = {
    "gptq act-order, Qwen2": ("tiny-qwen2", gptq(desc_act=True)),
    "gptq of 16, MoE": ("tiny-qwen3moe-mix", gptq(group=16)),
    "gptq of 8 bits, zero points": ("tiny-qwen2", gptq(bits=8)),
    "int8, zero points": ("tiny-qwen2", int8(sym=False)),
    "fp8 blocks, Llama": ("tiny-llama-rope3", fp8_blocks()),
    "fp8 blocks, MoE": ("tiny-qwen3moe-mix", fp8_blocks((32, 32))),
    "fp8 stacks, vision MoE": ("tiny-qwen3vlmoe", EXPERTS_FP8),
    "fp8 rows, Mistral": ("tiny-mistral-sw", fp8_rows()),
    "fp8 in one, Qwen3 tied": ("tiny-qwen3", fp8_rows("tensor")),
}
IDS = [(37 * i + 11) % 480 for i in range(24)]


def backend_of(folder: Path, weights: WeightFormat) -> CpuBackend:
    model = open_model(folder)
    try:
        return CpuBackend.load(
            model.spec, model.parameters, model.tensors, weights=weights, calibration_ids=IDS * 8
        )
    finally:
        model.tensors.close()


def logits(backend: CpuBackend) -> torch.Tensor:
    cache = backend.new_cache()
    return torch.cat(
        [backend.forward(IDS[:-1], cache, all_logits=True), backend.forward(IDS[-1:], cache)[None]]
    )


@pytest.mark.parametrize("name", LOSSLESS)
def test_stored_strips_compute_what_their_numbers_say(name: str, tmp_path: Path) -> None:
    model, recipe = LOSSLESS[name]
    folder, twin = make_folder(model, tmp_path, recipe)
    backend = backend_of(folder, "native")
    assert (logits(backend) - logits(backend_of(twin, "native"))).abs().max() < EXACT
    assert backend.counts is not None
    bits = 8 if recipe.config.get("bits") == 8 or "int8" in name else 4
    assert (backend.counts.q8 > 0, backend.counts.q4 > 0) == (bits == 8, bits == 4)
    assert backend.notices == ()
    report = inspect_model(folder)
    assert report.problems == ()
    told = report.weight_bytes.native
    offsets_expected = bits == 8  # told of symmetric codes of 8 bits, which rarely do without
    assert backend.weight_bytes == told or (offsets_expected and backend.weight_bytes < told)
    assert report.parameters == inspect_model(twin).parameters


@pytest.mark.parametrize("name", [name for name in LOSSLESS if "head" in name or "tied embedding" in name])
@pytest.mark.parametrize("weights", ["q8", "q4"])
def test_where_all_is_stored_with_4_bits_every_choice_is_the_same(
    name: str, weights: WeightFormat, tmp_path: Path
) -> None:
    folder, twin = make_folder(LOSSLESS[name][0], tmp_path, LOSSLESS[name][1])
    backend = backend_of(folder, weights)
    assert (logits(backend) - logits(backend_of(twin, "native"))).abs().max() < EXACT
    counts = backend.counts
    assert counts is not None
    assert (counts.q8, counts.native) == (0, 0)
    codes = [notice.code for notice in backend.notices]
    assert codes == (["matrices-stay-packed"] if weights == "q8" else [])
    assert backend.weight_bytes == getattr(inspect_model(folder).weight_bytes, weights)


@pytest.mark.parametrize(
    ("name", "weights"),
    [
        *((name, weights) for name in DEQUANTISED for weights in ("native", "q8")),
        ("gptq act-order, Qwen2", "q4"),
        ("fp8 blocks, Llama", "q4"),
    ],
)
def test_what_no_strip_holds_is_the_plain_numbers(name: str, weights: WeightFormat, tmp_path: Path) -> None:
    model, recipe = DEQUANTISED[name]
    folder, twin = make_folder(model, tmp_path, recipe)
    backend, plain = backend_of(folder, weights), backend_of(twin, weights)
    assert torch.equal(logits(backend), logits(plain))
    assert backend.counts == plain.counts
    assert inspect_model(folder).weight_bytes == inspect_model(twin).weight_bytes


@pytest.mark.parametrize("name", ["packed int8, Llama", "int8, Qwen2", "gptq of 8 bits, MoE"])
def test_4_bits_of_8_are_packed_anew_by_the_calibration_text(name: str, tmp_path: Path) -> None:
    model, recipe = LOSSLESS[name]
    folder, twin = make_folder(model, tmp_path, recipe)
    backend, plain = backend_of(folder, "q4"), backend_of(twin, "q4")
    assert backend.counts == plain.counts
    assert (logits(backend) - logits(plain)).abs().max() < EXACT
    assert backend.weight_bytes == plain.weight_bytes == inspect_model(folder).weight_bytes.q4


def test_8_bits_hold_8_bit_sources_exactly(tmp_path: Path) -> None:
    folder, twin = make_folder("tiny-qwen2", tmp_path, packed(bits=8, kept=HEAD_TOO))
    assert (logits(backend_of(folder, "q8")) - logits(backend_of(twin, "native"))).abs().max() < EXACT


def without_one(folder: Path, twin: Path, name: str) -> None:
    """One matrix is plain in the quantised folder, as in its twin."""
    plain = read_tensors(twin / WEIGHTS)[f"{name}.weight"]

    def change(tensors: Tensors) -> None:
        for each in [each for each in tensors if each.startswith(f"{name}.") and not each.endswith(".bias")]:
            del tensors[each]
        tensors[f"{name}.weight"] = plain

    edit_tensors(folder, change)


@pytest.mark.parametrize("name", ["mlp.down_proj", "self_attn.k_proj"])
def test_one_plain_matrix_among_packed_ones_is_read_as_it_is(name: str, tmp_path: Path) -> None:
    folder, twin = make_folder("tiny-qwen2", tmp_path, gptq())
    without_one(folder, twin, f"model.layers.1.{name}")
    backend = backend_of(folder, "native")
    assert (logits(backend) - logits(backend_of(twin, "native"))).abs().max() < EXACT
    assert backend.weight_bytes == inspect_model(folder).weight_bytes.native
    assert backend.counts == MatrixCounts(
        native=2, q8=0, q4=15
    )  # that one, alone or with q and v, and the head


def test_biases_of_zeros_that_the_model_does_not_have_are_left_out(tmp_path: Path) -> None:
    folder, twin = make_folder("tiny-qwen3", tmp_path, gptq())

    def add(tensors: Tensors) -> None:
        for name in [name for name in tensors if name.endswith(".qweight")]:
            rows = tensors[name].shape[1]
            tensors[name.replace(".qweight", ".bias")] = RawTensor("F16", (rows,), bytes(2 * rows))

    edit_tensors(folder, add)
    assert (logits(backend_of(folder, "native")) - logits(backend_of(twin, "native"))).abs().max() < EXACT
    [notice] = inspect_model(folder).notices
    assert (notice.code, "35 bias of zeros" in notice.message) == ("tensors-left-out", True)

    def spoil(tensors: Tensors) -> None:
        tensors["model.layers.2.mlp.up_proj.bias"] = stored(torch.ones(192).numpy(), "F16")

    edit_tensors(folder, spoil)
    with pytest.raises(ModelFileError, match=r"unexpected \(model\.layers\.2\.mlp\.up_proj\.bias\)"):
        open_model(folder)


def test_more_than_one_group_of_settings(tmp_path: Path) -> None:
    """Attention with 8 bits, the rest with 4: the tensors tell which is which."""
    four, eight = packed(), packed(bits=8)
    folder, twin = make_folder("tiny-qwen2", tmp_path, four)
    other, other_twin = make_folder("tiny-qwen2", tmp_path / "other", eight)
    for target, source in ((folder, other), (twin, other_twin)):
        replaced = {n: t for n, t in read_tensors(source / WEIGHTS).items() if "self_attn" in n}
        edit_tensors(target, lambda tensors, new=replaced: tensors.update(new))  # type: ignore[misc]
    groups = {
        "group_0": four.config["config_groups"]["group_0"],
        "group_1": eight.config["config_groups"]["group_0"],
    }
    set_config(folder, quantization_config={**four.config, "config_groups": groups})
    backend = backend_of(folder, "native")
    assert (logits(backend) - logits(backend_of(twin, "native"))).abs().max() < EXACT
    assert backend.counts == MatrixCounts(native=1, q8=8, q4=8)


# --- what is told


def test_what_inspection_says_of_a_quantised_folder(tmp_path: Path) -> None:
    folder, twin = make_folder("tiny-llama-rope3", tmp_path, gptq(sym=True))
    report, plain = inspect_model(folder), inspect_model(twin)
    assert (report.problems, report.notices) == ((), ())
    assert report.parameters == plain.parameters
    assert report.weight_bytes.native < plain.weight_bytes.q8
    # The head is all that is left to be packed.
    head = 512 * 128
    assert report.weight_bytes.q8 == report.weight_bytes.native - 2 * head + head + head // 32 * 4
    assert report.weight_bytes.q4 == report.weight_bytes.q8 - head // 2
    assert report.file_bytes == (folder / WEIGHTS).stat().st_size


@pytest.mark.parametrize(
    ("recipe", "code", "words_in_it"),
    [
        (int8(), "weights-only", "activations"),
        (fp8_blocks(), "weights-only", "activations"),
        (gptq(desc_act=True), "matrices-packed-anew", "28 of 28"),
        (gptq(group=16), "matrices-packed-anew", "28 of 28"),
    ],
)
def test_what_is_done_otherwise_than_the_folder_asks_is_told(
    recipe: Recipe, code: str, words_in_it: str, tmp_path: Path
) -> None:
    folder, _ = make_folder("tiny-qwen2", tmp_path, recipe)
    found = {notice.code: notice.message for notice in inspect_model(folder).notices}
    assert words_in_it in found[code]


def test_an_order_that_the_config_does_not_tell_of_is_found_and_told(tmp_path: Path) -> None:
    folder, twin = make_folder("tiny-qwen2", tmp_path, gptq(desc_act=True))
    set_config(folder, quantization_config={**gptq().config})
    backend = backend_of(folder, "q8")
    assert torch.equal(logits(backend), logits(backend_of(twin, "q8")))
    assert [notice.code for notice in backend.notices] == ["matrices-packed-anew"]


def test_an_order_that_is_none_costs_nothing(tmp_path: Path) -> None:
    folder, _ = make_folder("tiny-qwen2", tmp_path, gptq())
    set_config(folder, quantization_config={**gptq().config, "desc_act": True})
    assert inspect_model(folder).notices == ()


@pytest.mark.parametrize("config", [gptq().config, {"quant_method": "bitsandbytes", "load_in_4bit": True}])
def test_plain_weights_load_whatever_the_config_says(config: dict[str, Any], tmp_path: Path) -> None:
    folder = set_config(copy_model("tiny-qwen3", tmp_path / "model"), quantization_config=dict(config))
    model = open_model(folder)
    model.tensors.close()
    assert [notice.code for notice in model.notices] == ["quantisation-absent"]
    assert config["quant_method"] in model.notices[0].message


def test_packed_weights_without_a_word_in_the_config_are_refused_for_that(tmp_path: Path) -> None:
    for recipe in (gptq(), packed(), fp8_blocks()):
        folder, _ = make_folder("tiny-qwen3", tmp_path / str(recipe.config["quant_method"]), recipe)
        set_config(folder, quantization_config=...)
        with pytest.raises(ModelFileError, match="doesn't say by which method"):
            open_model(folder)


# --- damaged


def without_last_row(tensor: RawTensor) -> RawTensor:
    rows = tensor.shape[0] - 1
    return RawTensor(
        tensor.dtype, (rows, *tensor.shape[1:]), tensor.data[: len(tensor.data) // (rows + 1) * rows]
    )


BROKEN = "model.layers.1.mlp.up_proj"
PARTS: tuple[tuple[Recipe, tuple[str, ...]], ...] = (
    (gptq(), ("qweight", "qzeros", "scales", "g_idx")),
    (awq(), ("qweight", "qzeros", "scales")),
    (packed(sym=False), ("weight_packed", "weight_scale", "weight_zero_point", "weight_shape")),
    (int8(sym=False), ("weight", "weight_scale", "weight_zero_point")),
    (fp8_blocks(), ("weight", "weight_scale_inv")),
)
FAULTS = ("cut", "missing", "another type")


@pytest.mark.parametrize(
    ("recipe", "part", "fault"),
    [
        pytest.param(recipe, part, fault, id=f"{recipe.config['quant_method']} {part} {fault}")
        for recipe, parts in PARTS
        for part in parts
        for fault in FAULTS
        if (part, fault) != ("g_idx", "missing")  # then the inputs are in their order
    ],
)
def test_parts_that_do_not_fit_are_named(recipe: Recipe, part: str, fault: str, tmp_path: Path) -> None:
    folder, _ = make_folder("tiny-qwen2", tmp_path, recipe)
    name = f"{BROKEN}.{part}"

    def change(tensors: Tensors) -> None:
        if fault == "cut":
            tensors[name] = without_last_row(tensors[name])
        elif fault == "missing":
            del tensors[name]
        else:
            tensors[name] = RawTensor("U8", (len(tensors[name].data),), tensors[name].data)

    edit_tensors(folder, change)
    with pytest.raises(EngineError, match=r"layers\.1\.mlp\.up_proj") as raised:
        open_model(folder)
    assert raised.value.hint


@pytest.mark.parametrize("weights", ["native", "q8", "q4"])
@pytest.mark.parametrize(
    ("recipe", "part", "dtype"),
    [
        (gptq(), "scales", "F16"),
        (awq(), "scales", "F16"),
        (packed(), "weight_scale", "BF16"),
        (int8(), "weight_scale", "BF16"),
        (fp8_blocks(), "weight_scale_inv", "F32"),
    ],
    ids=lambda value: value.config["quant_method"] if isinstance(value, Recipe) else str(value),
)
def test_scales_that_are_no_numbers_are_named(
    recipe: Recipe, part: str, dtype: str, weights: WeightFormat, tmp_path: Path
) -> None:
    folder, _ = make_folder("tiny-qwen2", tmp_path, recipe)

    def spoil(tensors: Tensors) -> None:
        values = numbers(tensors[f"{BROKEN}.{part}"]).copy()
        values.flat[-1] = float("nan")
        tensors[f"{BROKEN}.{part}"] = stored(values, dtype)

    edit_tensors(folder, spoil)
    with pytest.raises(ModelFileError, match=r"layers\.1\.mlp\.up_proj.*not all finite"):
        backend_of(folder, weights)


def test_codes_of_3_bits_among_others_are_named(tmp_path: Path) -> None:
    folder, _ = make_folder("tiny-qwen2", tmp_path, gptq())

    def change(tensors: Tensors) -> None:
        made = quantised(torch.randn(256, 128).numpy(), 2, 32)
        tensors[f"{BROKEN}.qweight"] = words(made.codes.T, 2, axis=0)
        tensors[f"{BROKEN}.qzeros"] = words(made.zeros.T, 2, axis=1)

    edit_tensors(folder, change)
    with pytest.raises(EngineError, match=r"layers\.1\.mlp\.up_proj\.qweight has 2 bits for each number"):
        open_model(folder)


def test_int8_that_uses_its_whole_range_is_packed_anew_and_told(tmp_path: Path) -> None:
    folder, _ = make_folder("tiny-qwen2", tmp_path, int8())

    def change(tensors: Tensors) -> None:
        stored_codes = bytearray(tensors[f"{BROKEN}.weight"].data)
        stored_codes[0], stored_codes[1] = 128, 127  # -128 and 127 in one group
        tensors[f"{BROKEN}.weight"] = RawTensor("I8", tensors[f"{BROKEN}.weight"].shape, bytes(stored_codes))

    edit_tensors(folder, change)
    for weights in ("native", "q8"):
        backend = backend_of(folder, weights)
        assert [notice.code for notice in backend.notices] == ["matrices-packed-anew"]
        assert backend.counts is not None
        assert backend.counts.q8 == (16 if weights == "native" else 17)


# --- the whole engine


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Engine]:
    folder, _ = make_folder("tiny-qwen2", tmp_path, awq())
    loaded = Engine.load(open_model(folder), EngineConfig(device="cpu"))
    yield loaded
    loaded.close()


def test_by_itself_a_4_bit_folder_stays_as_it_is_but_for_its_head(engine: Engine) -> None:
    assert engine.summary.weights == "q8"
    assert engine.summary.matrices == MatrixCounts(native=0, q8=1, q4=16)
    codes = [notice.code for notice in engine.summary.notices]
    assert codes == ["weights-packed", "matrices-stay-packed"]
    assert "don't hold packed" in engine.summary.notices[0].message


def test_only_what_had_to_be_packed_is_kept_for_the_next_load(engine: Engine, tmp_path: Path) -> None:
    """The head of a 4-bit folder: its other matrices are in the folder already."""
    assert engine.score(IDS).n == len(IDS) - 1  # whatever is still written is behind the load
    again = Engine.load(open_model(tmp_path / "quantised"), EngineConfig(device="cpu"))
    assert again.score(IDS) == engine.score(IDS)
    again.close()
    engine.close()
    [path] = strips_folder().glob("*.safetensors")
    kept = {name for name in read_tensors(path) if "/" in name}
    assert kept == {"head/codes", "head/scales"}


def test_nothing_is_kept_where_nothing_had_to_be_packed(tmp_path: Path) -> None:
    folder, _ = make_folder("tiny-qwen2", tmp_path, packed(kept=HEAD_TOO))
    Engine.load(open_model(folder), EngineConfig(device="cpu")).close()
    assert list(strips_folder().glob("*")) == []
