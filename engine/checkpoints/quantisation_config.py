"""What a folder's config says of weights that were quantised by others: read strictly, refused by name.

The tensors themselves tell which matrices are quantised, with how many bits and in which groups; so the
lists of modules that were left out, which every tool matches in a way of its own, aren't followed. What only
the config tells is the method and how zero points are counted.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from engine.checkpoints.foreign_config import ConfigReader
from engine.checkpoints.foreign_files import read_json_object, shown
from engine.errors import UnsupportedModelError
from engine.wording import phrase

Method = Literal["gptq", "awq", "compressed-tensors", "fp8"]

OTHER_FORM = (
    "Pick the model's bf16 or fp16 folder, one quantised by GPTQ, AWQ, compressed-tensors or FP8, "
    "or a GGUF file."
)

_KEYS = ("quantization_config", "compression_config", "quantization")
_FORMATS = (
    "pack-quantized",
    "int-quantized",
    "float-quantized",
    "naive-quantized",
    "mixed-precision",
    "dense",
)
_BITS = (4, 8)
_MAX_CONFIG_BYTES = 16 * 2**20
_DETAILS = (
    "format",
    "checkpoint_format",
    "version",
    "quant_algo",
    "fmt",
    "bits",
    "w_bit",
    "nbits",
    "group_size",
    "weights",
    "load_in_4bit",
    "load_in_8bit",
)

# Where older tools put it when config.json has nothing: the method of that file.
OWN_FILES: Mapping[str, str] = {
    "quantize_config.json": "gptq",
    "quant_config.json": "awq",
    "hf_quant_config.json": "modelopt",
}


@dataclass(frozen=True)
class Quantisation:
    """How quantised matrices are stored.

    zeros_less_one: zero points of GPTQ are stored less one. symmetric: they are all the middle code, and
    may_reorder: inputs may stand in an order of their own; both only serve what is told of sizes.
    needs_zeros: every quantised matrix has zero points, so one without has lost them. block: rows and columns
    that share a scale of FP8. beyond_weights: what else was to be quantised while the model computes, in
    words, or "".
    """

    method: Method
    name: str  # for people
    zeros_less_one: bool = True
    symmetric: bool = False
    needs_zeros: bool = False
    may_reorder: bool = False
    block: tuple[int, int] | None = None
    beyond_weights: str = ""


@dataclass(frozen=True)
class QuantisationSettings:
    """The part of a config that speaks of quantisation; nothing of it was looked at yet."""

    reader: ConfigReader
    key: str  # where it stands, for messages
    method: str
    """As given; where an own file of a tool doesn't say, that tool's."""

    def described(self) -> str:
        """Method and format, in the words of the config."""
        values = self.reader.values
        named = shown(self.method, 40) if self.method else "a method without a name"
        details = [
            f"{detail} {shown(values[detail], 40)}"
            for detail in _DETAILS
            if values.get(detail) not in (None, False, self.method)
        ]
        return named + (f" ({', '.join(details)})" if details else "")

    def unsupported(self, what: str = "") -> UnsupportedModelError:
        where = shown(self.reader.file) + (self.key and f": {self.key}")
        if what:
            return UnsupportedModelError(
                f"The weights are quantised by {self.described()}, which this engine can't read: {what} "
                f"({where}).",
                OTHER_FORM,
            )
        return UnsupportedModelError(
            f"The weights are quantised by {self.described()}, which this engine can't read ({where}).",
            OTHER_FORM,
        )


def find_quantisation(config: ConfigReader, folder: Path, present: set[str]) -> QuantisationSettings | None:
    """What config.json, its text model's part, or a file of its own says; None where nothing does."""
    for reader in (config, config.section("text_config")):
        for key in _KEYS:
            value = reader.values.get(key)
            if not value:
                continue
            if not isinstance(value, dict):
                return QuantisationSettings(ConfigReader({}, config.file), key, shown(value, 80))
            section = ConfigReader(value, config.file, path=f"{reader.name_of(key)}.", notices=config.notices)
            return QuantisationSettings(section, reader.name_of(key), _method(value, key))
    for name, method in OWN_FILES.items():
        if name in present:
            values = read_json_object(folder / name, limit=_MAX_CONFIG_BYTES)
            inner = values.get("quantization")  # where ModelOpt has it
            section = ConfigReader(inner if isinstance(inner, dict) else values, name, notices=config.notices)
            return QuantisationSettings(section, "", _method(section.values, "") or method)
    return None


def read_quantisation(settings: QuantisationSettings) -> Quantisation:
    """Raises UnsupportedModelError that names the method and what of it isn't supported, ModelFileError for
    wrong values.
    """
    method = settings.method.lower()
    if method == "gptq":
        return _gptq(settings)
    if method == "awq":
        return _awq(settings)
    if method == "compressed-tensors":
        return _compressed_tensors(settings)
    algorithm = settings.reader.values.get("quant_algo")
    if method in ("fp8", "fbgemm_fp8") or (method == "modelopt" and algorithm == "FP8"):
        return _fp8(settings)
    raise settings.unsupported()


def _method(values: Mapping[str, Any], key: str) -> str:
    method = values.get("quant_method")
    if isinstance(method, str) and method:
        return method
    if "config_groups" in values or key == "compression_config":
        return "compressed-tensors"
    if "quant_algo" in values:
        return "modelopt"
    return "MLX" if key == "quantization" else ""


def _gptq(settings: QuantisationSettings) -> Quantisation:
    reader = settings.reader
    form = reader.text("checkpoint_format", reader.text("format", "gptq")).lower()
    if reader.boolean("is_marlin_format", False):
        form = "marlin"
    if form not in ("gptq", "gptq_v2"):
        raise settings.unsupported(f"the layout {shown(form, 40)!r} is made for one kind of card")
    _require_bits(settings, reader.integer("w_bit" if "w_bit" in reader else "bits", maximum=64))
    packed_in = reader.text("pack_dtype", "int32")
    if packed_in != "int32":
        raise settings.unsupported(f"its codes are packed in {shown(packed_in, 40)}")
    return Quantisation(
        "gptq",
        "GPTQ",
        zeros_less_one=form == "gptq",
        symmetric=reader.boolean("sym", False),
        may_reorder=reader.boolean("desc_act", False),
    )


def _awq(settings: QuantisationSettings) -> Quantisation:
    reader = settings.reader
    version = reader.text("version", reader.text("format", "gemm")).lower()
    if version != "gemm" or reader.values.get("backend") == "llm-awq":
        raise settings.unsupported("only its version 'gemm' can be read")
    bits = reader.integer("w_bit" if "w_bit" in reader else "bits", 4, maximum=64)
    if bits != 4:
        raise settings.unsupported(phrase(f"{bits} bits"))
    zero_points = reader.boolean("zero_point", True)
    return Quantisation("awq", "AWQ", symmetric=not zero_points, needs_zeros=zero_points)


def _fp8(settings: QuantisationSettings) -> Quantisation:
    reader = settings.reader
    if reader.text("expert_dtype", "fp8") != "fp8":
        raise settings.unsupported(f"its experts are {shown(reader.values['expert_dtype'], 40)}")
    block = _block(reader, "weight_block_size")
    told = _beyond_weights(
        activations="activation_scheme" in reader
        or "activation_scale_ub" in reader
        or settings.method == "modelopt",
        cache="kv_cache_quant_algo" in reader,
    )
    return Quantisation("fp8", "FP8", block=block, beyond_weights=told)


def _compressed_tensors(settings: QuantisationSettings) -> Quantisation:
    reader = settings.reader
    for name, form in _formats(reader):
        if form not in _FORMATS:
            raise settings.unsupported(f"{name} has the format {shown(form, 40)!r}")
    sparsity = reader.section("sparsity_config").text("format", "dense")
    if sparsity != "dense":
        raise settings.unsupported(f"its weights are sparse ({shown(sparsity, 40)})")
    if reader.section("transform_config").values.get("config_groups"):
        raise settings.unsupported("its activations are rotated while it computes (transform_config)")
    blocks = set()
    symmetric: set[bool] = set()
    activations = reordered = False
    for group in _groups(reader):
        weights = group.section("weights")
        if not weights.values:
            continue
        kind, bits = weights.text("type", "int"), weights.integer("num_bits", 8, maximum=64)
        if kind not in ("int", "float") or bits not in _BITS or (kind == "float" and bits != 8):
            raise settings.unsupported(f"{weights.name_of('num_bits')} is {bits} of type {shown(kind, 40)}")
        if weights.text("strategy", "tensor") == "block":
            blocks.add(_block(weights, "block_structure"))
        symmetric.add(weights.boolean("symmetric", True))
        activations |= bool(group.values.get("input_activations"))
        reordered |= weights.values.get("actorder") in ("group", "dynamic", True)
    if len(blocks) > 1:
        raise settings.unsupported("its blocks have more than one size")
    told = _beyond_weights(activations=activations, cache="kv_cache_scheme" in reader)
    return Quantisation(
        "compressed-tensors",
        "compressed-tensors",
        may_reorder=reordered,
        needs_zeros=symmetric == {False},
        block=blocks.pop() if blocks else None,
        beyond_weights=told,
    )


def _beyond_weights(*, activations: bool, cache: bool) -> str:
    if activations and cache:
        return "activations and the cache"
    return phrase("activations") if activations else "the cache" if cache else ""


def _formats(reader: ConfigReader) -> Iterator[tuple[str, str]]:
    yield reader.name_of("format"), reader.text("format", "dense")
    for group in _groups(reader):
        if "format" in group:
            yield group.name_of("format"), group.text("format")


def _groups(reader: ConfigReader) -> Iterator[ConfigReader]:
    groups = reader.section("config_groups")
    for name, value in groups.values.items():
        if isinstance(value, list):  # targets of a scheme that the name stands for; the tensors tell the rest
            continue
        yield groups.section(name)


def _block(reader: ConfigReader, key: str) -> tuple[int, int] | None:
    """Rows and columns: [128, 128] or "128x128"; None where the key is absent."""
    value = reader.values.get(key)
    if isinstance(value, str):
        parts = value.lower().split("x")
        sizes = [int(part) for part in parts if part.isdecimal() and len(part) < 8]
        if len(parts) != 2 or len(sizes) != 2 or 0 in sizes:
            raise reader.wrong(key, f"should be two sizes such as 128x128, not {shown(value, 40)!r}")
        return sizes[0], sizes[1]
    sizes = reader.integers(key, minimum=1)
    if not sizes:
        return None
    if len(sizes) != 2:
        raise reader.wrong(key, f"should be two sizes, not {len(sizes)}")
    return sizes[0], sizes[1]


def _require_bits(settings: QuantisationSettings, bits: int) -> None:
    if bits not in _BITS:
        raise settings.unsupported(f"{bits} bits; 4 and 8 can be read")
