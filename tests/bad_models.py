"""Models that can't be opened, and what has to be said of each.

One table drives the tests of the engine, the command line and the window. It is imported by its bare name.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from model_files import (
    INDEX,
    WEIGHTS,
    RawTensor,
    Tensors,
    copy_model,
    edit_json,
    edit_tensors,
    set_config,
    split_into_shards,
    write_raw_safetensors,
)


@dataclass(frozen=True)
class BadModel:
    """`make` builds it in an empty folder and gives the path to open. The message holds all `fragments`."""

    name: str
    make: Callable[[Path], Path]
    fragments: tuple[str, ...]
    code: str = "model-file"
    needs_ordinary_user: bool = False  # permissions don't bind the superuser

    def __str__(self) -> str:
        return self.name


def _nothing_there(tmp: Path) -> Path:
    return tmp / "no such model"


def _empty_folder(tmp: Path) -> Path:
    (tmp / "empty").mkdir()
    return tmp / "empty"


def _folder_of_folders(tmp: Path) -> Path:
    copy_model("tiny-qwen3", tmp / "outer" / "snapshot")
    return tmp / "outer"


def _quantised(
    settings: dict[str, Any], *, key: str = "quantization_config", extra: str = ""
) -> Callable[[Path], Path]:
    """A model one of whose matrices is no plain numbers, and what its config says of that."""

    def make(tmp: Path) -> Path:
        def change(tensors: Tensors) -> None:
            tensors["model.embed_tokens.weight"] = RawTensor("U8", (512, 32), bytes(512 * 32))
            if extra:
                tensors[f"model.embed_tokens{extra}"] = RawTensor("F16", (512,), bytes(1024))

        folder = edit_tensors(copy_model("tiny-qwen3", tmp / "model"), change)
        return set_config(folder, **{key: settings})

    return make


def _no_config(tmp: Path) -> Path:
    return _without(tmp, "config.json")


def _without(tmp: Path, *names: str) -> Path:
    folder = copy_model("tiny-qwen3", tmp / "model")
    for name in names:
        (folder / name).unlink()
    return folder


def _pickle_only(tmp: Path) -> Path:
    folder = _without(tmp, WEIGHTS)
    (folder / "pytorch_model.bin").write_bytes(b"\x80\x02}q\x00.")
    return folder


def _adapter_only(tmp: Path) -> Path:
    folder = _without(tmp, WEIGHTS)
    write_raw_safetensors(folder / "adapter_model.safetensors", {}, b"")
    return folder


def _shards_without_index(tmp: Path) -> Path:
    folder = copy_model("tiny-qwen3", tmp / "model")
    split_into_shards(folder)
    (folder / INDEX).unlink()
    return folder


def _shard_missing(tmp: Path) -> Path:
    folder = copy_model("tiny-qwen3", tmp / "model")
    split_into_shards(folder)[1].unlink()
    return folder


def _index(change: Callable[[dict[str, Any]], None]) -> Callable[[Path], Path]:
    def make(tmp: Path) -> Path:
        folder = copy_model("tiny-qwen3", tmp / "model")
        split_into_shards(folder)
        edit_json(folder / INDEX, change)
        return folder

    return make


def _move_in_index(index: dict[str, Any]) -> None:
    name = next(iter(index["weight_map"]))
    index["weight_map"][name] = "model-00002-of-00002.safetensors"


def _leave_folder_in_index(index: dict[str, Any]) -> None:
    index["weight_map"] = dict.fromkeys(index["weight_map"], "../model/model.safetensors")


def _tensor_in_two_shards(tmp: Path) -> Path:
    folder = copy_model("tiny-qwen3", tmp / "model")
    paths = split_into_shards(folder)
    paths[1].write_bytes(paths[0].read_bytes())
    return folder


def _raw(make_bytes: Callable[[Path], None]) -> Callable[[Path], Path]:
    def make(tmp: Path) -> Path:
        folder = copy_model("tiny-qwen3", tmp / "model")
        make_bytes(folder / WEIGHTS)
        return folder

    return make


def _header(entry: dict[str, Any], *, data: bytes = bytes(8)) -> Callable[[Path], Path]:
    """One good tensor of 4 bytes and the given one."""
    good = {"dtype": "BF16", "shape": [2], "data_offsets": [0, 4]}
    return _raw(lambda path: write_raw_safetensors(path, {"good": good, "bad": entry}, data))


def _truncated(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1000])


def _weights_are_a_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def _tensors(change: Callable[[Tensors], None], model: str = "tiny-qwen3") -> Callable[[Path], Path]:
    return lambda tmp: edit_tensors(copy_model(model, tmp / "model"), change)


def _drop_norm(tensors: Tensors) -> None:
    del tensors["model.layers.2.self_attn.q_norm.weight"]


def _reshape_norm(tensors: Tensors) -> None:
    tensors["model.norm.weight"] = RawTensor("BF16", (32,), bytes(64))


def _add_sinks(tensors: Tensors) -> None:
    tensors["model.layers.0.self_attn.sinks"] = RawTensor("BF16", (4,), bytes(8))


def _make_fp8(tensors: Tensors) -> None:
    name = "model.layers.0.mlp.down_proj.weight"
    tensor = tensors[name]
    tensors[name] = RawTensor("F8_E4M3", tensor.shape, tensor.data[::2])
    tensors[f"{name}_scale_inv"] = RawTensor("F32", (1, 1), struct.pack("<f", 0.5))


def _same_tensor_twice(tensors: Tensors) -> None:
    tensors["model.language_model.norm.weight"] = tensors["model.norm.weight"]


def _config(model: str = "tiny-qwen3", **values: Any) -> Callable[[Path], Path]:
    return lambda tmp: set_config(copy_model(model, tmp / "model"), **values)


def _config_text(text: str) -> Callable[[Path], Path]:
    def make(tmp: Path) -> Path:
        folder = copy_model("tiny-qwen3", tmp / "model")
        (folder / "config.json").write_text(text, encoding="utf-8")
        return folder

    return make


def _broken_generation_config(tmp: Path) -> Path:
    folder = copy_model("tiny-qwen3", tmp / "model")
    (folder / "generation_config.json").write_text('{"eos_token_id": [495,', encoding="utf-8")
    return folder


def _unreadable(tmp: Path) -> Path:
    folder = copy_model("tiny-qwen3", tmp / "model")
    folder.chmod(0)
    return folder


def _link_to_itself(tmp: Path) -> Path:
    (tmp / "loop").symlink_to(tmp / "loop")
    return tmp / "loop"


def _config_is_a_pipe(tmp: Path) -> Path:
    folder = _without(tmp, "config.json")
    os.mkfifo(folder / "config.json")
    return folder


def _other_kind_of_file(tmp: Path) -> Path:
    (tmp / "holiday.jpg").write_bytes(b"\xff\xd8\xff\xe0" + bytes(100))
    return tmp / "holiday.jpg"


def _part_of_a_folder(tmp: Path) -> Path:
    return copy_model("tiny-qwen3", tmp / "model") / WEIGHTS


def _two_ggufs(tmp: Path) -> Path:
    (tmp / "files").mkdir()
    for name in ("a.Q4_K_M.gguf", "a.Q8_0.gguf"):
        (tmp / "files" / name).write_bytes(gguf_head())
    return tmp / "files"


def gguf_string(text: str) -> bytes:
    raw = text.encode()
    return struct.pack("<Q", len(raw)) + raw


def gguf_head(
    *,
    version: int = 3,
    num_tensors: int = 0,
    num_keys: int | None = None,
    settings: dict[str, Any] | None = None,
) -> bytes:
    """The start of a GGUF file with settings that are text or whole numbers, and counts that may lie."""
    settings = {"general.architecture": "llama"} if settings is None else settings
    count = len(settings) if num_keys is None else num_keys
    raw = b"GGUF" + struct.pack("<IQQ", version, num_tensors, count)
    for key, value in settings.items():
        is_text = isinstance(value, str)
        raw += gguf_string(key) + struct.pack("<I", 8 if is_text else 4)
        raw += gguf_string(value) if is_text else struct.pack("<I", value)
    return raw


def gguf_tensor(name: str, shape: tuple[int, ...], *, kind: int = 0, offset: int = 0) -> bytes:
    return (
        gguf_string(name)
        + struct.pack("<I", len(shape))
        + struct.pack(f"<{len(shape)}Q", *shape)
        + struct.pack("<IQ", kind, offset)
    )


def _gguf(raw: bytes, name: str = "model.gguf") -> Callable[[Path], Path]:
    def make(tmp: Path) -> Path:
        (tmp / name).write_bytes(raw)
        return tmp / name

    return make


_UNSUPPORTED = "unsupported-model"
_DEEP = '{"a":' * 200_000 + "1" + "}" * 200_000

BAD_MODELS: tuple[BadModel, ...] = (
    # What was picked
    BadModel("nothing there", _nothing_there, ("no such model", "does not exist")),
    BadModel("empty folder", _empty_folder, ("empty",)),
    BadModel("folder of folders", _folder_of_folders, ("outer", "not a model folder itself")),
    BadModel("no config", _no_config, ("config.json",)),
    BadModel("folder unreadable", _unreadable, ("permission denied",), needs_ordinary_user=True),
    BadModel("link to itself", _link_to_itself, ("loop", "symbolic link")),
    BadModel(
        "file of another kind", _other_kind_of_file, ("holiday.jpg", "neither a model folder nor a GGUF")
    ),
    BadModel("one file of a folder", _part_of_a_folder, (WEIGHTS, "one file of a model folder")),
    BadModel("two GGUF files", _two_ggufs, ("2 GGUF files", "a.Q8_0.gguf")),
    # Which files hold the weights
    BadModel("no weights", lambda tmp: _without(tmp, WEIGHTS), ("no weights",)),
    BadModel("pickle only", _pickle_only, ("pytorch_model.bin", "refused"), _UNSUPPORTED),
    BadModel("adapter only", _adapter_only, ("adapter_model.safetensors",), _UNSUPPORTED),
    BadModel("shards without index", _shards_without_index, (INDEX,)),
    BadModel("shard missing", _shard_missing, ("model-00002-of-00002.safetensors", "missing")),
    BadModel("index without map", _index(lambda index: index.pop("weight_map")), (INDEX, "weight_map")),
    BadModel("index leads elsewhere", _index(_leave_folder_in_index), (INDEX, "../model")),
    BadModel("index against header", _index(_move_in_index), (INDEX, "model-00001-of-00002.safetensors")),
    BadModel("tensor in two shards", _tensor_in_two_shards, ("00001-of-00002", "00002-of-00002")),
    # Damaged safetensors
    BadModel("weights of no bytes", _raw(lambda path: path.write_bytes(b"")), (WEIGHTS, "empty")),
    BadModel("weights are a folder", _raw(_weights_are_a_folder), (WEIGHTS, "folder")),
    BadModel("weights truncated", _raw(_truncated), (WEIGHTS, "1,000 bytes too early")),
    BadModel(
        "header longer than file",
        _raw(lambda path: write_raw_safetensors(path, {}, b"", header_size=1000)),
        (WEIGHTS, "1,000 bytes"),
    ),
    BadModel(
        "header of 2^63 bytes",
        _raw(lambda path: write_raw_safetensors(path, {}, b"", header_size=2**63)),
        (WEIGHTS, "more than the whole file"),
    ),
    BadModel(
        "header not JSON",
        _raw(lambda path: write_raw_safetensors(path, b"{nonsense", b"")),
        (WEIGHTS, "JSON"),
    ),
    BadModel(
        "header of a list", _raw(lambda path: write_raw_safetensors(path, b"[1, 2]", b"")), (WEIGHTS, "JSON")
    ),
    BadModel(
        "tensors overlap",
        _header({"dtype": "BF16", "shape": [3], "data_offsets": [2, 8]}),
        (WEIGHTS, "bad", "overlaps"),
    ),
    BadModel(
        "gap between tensors",
        _header({"dtype": "BF16", "shape": [1], "data_offsets": [6, 8]}),
        (WEIGHTS, "bad", "gap"),
    ),
    BadModel(
        "unknown number type",
        _header({"dtype": "BF17", "shape": [2], "data_offsets": [4, 8]}),
        (WEIGHTS, "bad", "BF17"),
    ),
    BadModel(
        "shape against offsets",
        _header({"dtype": "F32", "shape": [2], "data_offsets": [4, 8]}),
        (WEIGHTS, "bad", "4 bytes"),
    ),
    BadModel(
        "shape of 2^63",
        _header({"dtype": "BF16", "shape": [2**63], "data_offsets": [4, 8]}),
        (WEIGHTS, "bad", "shape"),
    ),
    BadModel(
        "shape whose product overflows",
        _header({"dtype": "BF16", "shape": [2**62, 2**62], "data_offsets": [4, 8]}),
        (WEIGHTS, "bad"),
    ),
    BadModel(
        "negative offsets",
        _header({"dtype": "BF16", "shape": [2], "data_offsets": [-4, 0]}),
        (WEIGHTS, "bad", "offsets"),
    ),
    # Tensors against config
    BadModel("tensor missing", _tensors(_drop_norm), ("layers.2.self_attn.q_norm.weight", "missing")),
    BadModel("tensor of another shape", _tensors(_reshape_norm), ("model.norm.weight", "32", "not 64")),
    BadModel("unexpected tensor", _tensors(_add_sinks), ("model.layers.0.self_attn.sinks", "unexpected")),
    BadModel("one tensor under two names", _tensors(_same_tensor_twice), ("language_model.norm.weight",)),
    BadModel("fp8 tensor", _tensors(_make_fp8), ("F8_E4M3", "down_proj", "by which method")),
    BadModel("untied without head", _config(tie_word_embeddings=False), ("lm_head.weight", "missing")),
    BadModel("too many layers", _config(num_hidden_layers=6), ("layers.5", "missing")),
    # Config
    BadModel("config not JSON", _config_text('{"model_type": "qwen3",'), ("config.json", "not valid JSON")),
    BadModel("config of a list", _config_text("[]"), ("config.json", "a list")),
    BadModel("config nested too deeply", _config_text(_DEEP), ("config.json", "nested")),
    BadModel("config key twice", _config_text('{"a": 1, "a": 2}'), ("config.json", "'a'", "twice")),
    BadModel("config of no text", _config_text("\0\0"), ("config.json", "not valid JSON")),
    BadModel("config is a pipe", _config_is_a_pipe, ("config.json", "pipe")),
    BadModel("no architecture", _config(model_type=..., architectures=...), ("config.json", "model_type")),
    BadModel(
        "unknown architecture",
        _config(model_type="mamba2", architectures=["Mamba2ForCausalLM"]),
        ("Mamba2ForCausalLM",),
        _UNSUPPORTED,
    ),
    BadModel(
        "classifier",
        _config(architectures=["Qwen3ForSequenceClassification"]),
        ("Qwen3ForSequenceClassification",),
        _UNSUPPORTED,
    ),
    BadModel("size missing", _config(hidden_size=...), ("config.json", "hidden_size", "missing")),
    BadModel("size negative", _config(num_hidden_layers=-1), ("config.json", "num_hidden_layers", "-1")),
    BadModel("size zero", _config(num_attention_heads=0), ("config.json", "num_attention_heads", "0")),
    BadModel("size absurd", _config(vocab_size=2**63), ("config.json", "vocab_size")),
    BadModel("size as text", _config(intermediate_size="192"), ("config.json", "intermediate_size", "'192'")),
    BadModel("size true", _config(num_hidden_layers=True), ("config.json", "num_hidden_layers", "true")),
    BadModel("epsilon not a number", _config(rms_norm_eps=float("nan")), ("config.json", "rms_norm_eps")),
    BadModel("heads don't divide", _config(num_key_value_heads=3), ("config.json", "num_key_value_heads")),
    BadModel("other activation", _config(hidden_act="gelu"), ("hidden_act", "gelu"), _UNSUPPORTED),
    BadModel(
        "dynamic RoPE",
        _config(rope_scaling={"type": "dynamic", "factor": 2.0}),
        ("config.json", "'dynamic'"),
        _UNSUPPORTED,
    ),
    BadModel(
        "LongRoPE in the new layout",
        _config(
            rope_theta=..., rope_scaling=..., rope_parameters={"rope_type": "longrope", "rope_theta": 1e4}
        ),
        ("config.json", "'longrope'"),
        _UNSUPPORTED,
    ),
    BadModel(
        "RoPE without factor",
        _config(rope_scaling={"rope_type": "linear"}),
        ("rope_scaling.factor", "missing"),
    ),
    BadModel(
        "quantised by bitsandbytes",
        _quantised({"quant_method": "bitsandbytes", "load_in_4bit": True}),
        ("bitsandbytes", "load_in_4bit"),
        _UNSUPPORTED,
    ),
    BadModel(
        "quantised by compressed-tensors to 4-bit floats",
        _quantised({"quant_method": "compressed-tensors", "format": "nvfp4-pack-quantized"}),
        ("compressed-tensors", "nvfp4-pack-quantized"),
        _UNSUPPORTED,
    ),
    BadModel(
        "quantised by MLX",
        _quantised({"group_size": 64, "bits": 4}, key="quantization"),
        ("MLX", "bits 4"),
        _UNSUPPORTED,
    ),
    BadModel(
        "quantised otherwise than its config says",
        _quantised({"quant_method": "gptq", "bits": 4}),
        ("gptq", "stored as U8", "embed_tokens"),
    ),
    BadModel(
        "quantised, but nobody says how",
        _quantised({}, extra=".scales"),
        ("stored as U8", "embed_tokens", "by which method"),
    ),
    BadModel("generation config broken", _broken_generation_config, ("generation_config.json", "JSON")),
    # Tokenizer
    BadModel("no tokenizer", lambda tmp: _without(tmp, "tokenizer.json"), ("tokenizer.json",), "tokenizer"),
    # GGUF
    BadModel("GGUF of no bytes", _gguf(b""), ("model.gguf", "empty")),
    BadModel("GGUF by name only", _gguf(b"PK\3\4" + bytes(100)), ("model.gguf", "not a GGUF file")),
    BadModel("GGUF version 1", _gguf(gguf_head(version=1)), ("model.gguf", "version 1"), _UNSUPPORTED),
    BadModel("GGUF of 2^63 settings", _gguf(gguf_head(num_keys=2**63)), ("model.gguf", "settings")),
    BadModel("GGUF of 2^63 tensors", _gguf(gguf_head(num_tensors=2**63)), ("model.gguf", "tensors")),
    BadModel(
        "GGUF ends in its settings", _gguf(gguf_head(num_keys=9)), ("model.gguf", "middle of its settings")
    ),
    BadModel(
        "GGUF with text of 2^62 bytes",
        _gguf(b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 2**62)),
        ("model.gguf", "ends"),
    ),
    BadModel(
        "GGUF of another architecture",
        _gguf(gguf_head(settings={"general.architecture": "mamba"})),
        ("mamba", "model.gguf"),
        _UNSUPPORTED,
    ),
    BadModel(
        "one part of a GGUF",
        _gguf(gguf_head(settings={"general.architecture": "llama", "split.count": 3})),
        ("model.gguf", "one part"),
        _UNSUPPORTED,
    ),
    BadModel(
        "GGUF tensor past the end",
        _gguf(gguf_head(num_tensors=1) + gguf_tensor("token_embd.weight", (64, 512))),
        ("model.gguf", "token_embd.weight"),
    ),
    BadModel(
        "GGUF tensor of 2^80 numbers",
        _gguf(gguf_head(num_tensors=1) + gguf_tensor("token_embd.weight", (2**40, 2**40))),
        ("model.gguf", "token_embd.weight"),
    ),
    BadModel(
        "GGUF tensor of unknown type",
        _gguf(gguf_head(num_tensors=1) + gguf_tensor("token_embd.weight", (64, 512), kind=999)),
        ("token_embd.weight", "type 999"),
        _UNSUPPORTED,
    ),
    BadModel("GGUF without sizes", _gguf(gguf_head()), ("model.gguf", "llama.")),
)
"""Each is refused by `open_model` with the code of an `EngineError`, and reported by `inspect_model`."""
