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
