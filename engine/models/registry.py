"""Which family a config belongs to, and what the whole config says of the text model inside it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from engine.checkpoints.foreign_config import ConfigReader
from engine.checkpoints.foreign_files import shown
from engine.errors import UnsupportedModelError
from engine.models import llama, mistral, qwen2, qwen3, qwen3_moe, qwen3_vl, qwen3_vl_moe
from engine.models.family import Family, Heading
from engine.models.spec import ModelSpec

FAMILIES: tuple[Family, ...] = (
    llama.FAMILY,
    mistral.FAMILY,
    qwen2.FAMILY,
    qwen3.FAMILY,
    qwen3_moe.FAMILY,
    qwen3_vl.FAMILY,
    qwen3_vl_moe.FAMILY,
)

_QUANTIZATION_KEYS = ("quantization_config", "compression_config", "quantization")
_QUANTIZATION_DETAILS = (
    "format",
    "fmt",
    "bits",
    "group_size",
    "load_in_4bit",
    "load_in_8bit",
    "activation_scheme",
)


@dataclass(frozen=True)
class TextModel:
    """The language model that a config describes. `config` is its part of it, `may_tie` what it says of the
    head.
    """

    family: Family
    architecture: str
    config: ConfigReader
    may_tie: bool

    def read_spec(self, *, stores_head: bool) -> ModelSpec:
        """The spec, once it is known whether the files hold an output head.

        A head that is stored is used, tied or not: where it equals the embedding the result is the same,
        where it differs the config is wrong, and so does transformers 5.
        """
        tied = self.may_tie and not stores_head
        return self.family.read_spec(self.config, Heading(self.architecture, self.family.name, tied))


def architecture_name(config: ConfigReader) -> str:
    """The class name for people, or the model type where a config gives no class."""
    names = config.texts("architectures")
    return names[0] if names else config.text("model_type", "")


def find_text_model(config: ConfigReader) -> TextModel:
    """Raises UnsupportedModelError with the name of an architecture that no family file serves."""
    architectures = config.texts("architectures")
    model_type = config.text("model_type", "")
    family = _find_family(model_type, architectures)
    if family is None:
        if not (architectures or model_type):
            raise config.wrong("model_type", "is missing, and so is architectures")
        raise _unsupported(architectures[0] if architectures else model_type)
    if architectures and not set(architectures) & set(family.architectures):
        raise _unsupported(architectures[0])
    inner = config.section("text_config")
    text = inner if inner.values else config
    return TextModel(
        family, architectures[0] if architectures else family.architectures[0], text, _ties(config, text)
    )


def refuse_quantization(config: ConfigReader) -> None:
    """Weights stored with a method that isn't implemented must not be read as if they were plain numbers."""
    for reader in (config, config.section("text_config")):
        for key in _QUANTIZATION_KEYS:
            if reader.values.get(key):
                raise UnsupportedModelError(
                    f"The weights are quantized by {_described(key, reader.values[key])}, which this engine "
                    f"can't read ({shown(config.file)}: {key}).",
                    "Pick the model's bf16 or fp16 folder, or a GGUF file.",
                )


def _find_family(model_type: str, architectures: Iterable[str]) -> Family | None:
    for family in FAMILIES:
        if model_type in family.model_types:
            return family
    if model_type:
        return None
    for family in FAMILIES:
        if set(architectures) & set(family.architectures):
            return family
    return None


def _unsupported(architecture: str) -> UnsupportedModelError:
    names = ", ".join(family.name for family in FAMILIES)
    return UnsupportedModelError(
        f"This engine doesn't have the architecture {shown(architecture, 80)}.",
        f"Pick a model of one of the families that it runs: {names}.",
    )


def _ties(config: ConfigReader, text: ConfigReader) -> bool:
    """All these families leave the head untied unless the config says otherwise, outside or inside
    `text_config`.
    """
    return config.boolean("tie_word_embeddings", False) or text.boolean("tie_word_embeddings", False)


def _described(key: str, settings: object) -> str:
    """Method and format, in the words of the config."""
    if not isinstance(settings, dict):
        return shown(settings, 80)
    unnamed = "MLX" if key == "quantization" else "a method without a name"
    method = settings.get("quant_method") or settings.get("quant_algo") or unnamed
    details = [
        f"{detail} {shown(settings[detail], 40)}"
        for detail in _QUANTIZATION_DETAILS
        if settings.get(detail) not in (None, False)
    ]
    return shown(method, 40) + (f" ({', '.join(details)})" if details else "")
