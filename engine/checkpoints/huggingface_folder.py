"""Opens a Hugging Face folder: config, weights, tokenizer, chat template, generation settings."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from engine.checkpoints.foreign_config import ConfigReader
from engine.checkpoints.foreign_files import json_type, read_json_object, read_text, shown
from engine.checkpoints.generation_config import read_eos_ids, read_sampling
from engine.checkpoints.model_parts import ModelParts, Problems
from engine.checkpoints.quantisation_config import find_quantisation
from engine.checkpoints.quantised_folder import FolderSource, dequantised_source
from engine.checkpoints.weight_files import find_weights
from engine.errors import ModelFileError, TokenizerError
from engine.models.registry import TextModel, architecture_name, find_text_model
from engine.notices import Notice
from engine.tokenizers.hf_tokenizer import HfTokenizerFiles
from engine.weights.checking import HEAD, check_tensors
from engine.weights.quantised_matrices import MATRIX_DTYPES
from engine.weights.quantised_source import QuantisedFolderSource
from engine.weights.safetensors_source import READABLE_DTYPES, SafetensorsSource

if TYPE_CHECKING:
    from engine.tokenizers.tokenizer import TokenizerSource

CONFIG = "config.json"
GENERATION_CONFIG = "generation_config.json"
TOKENIZER = "tokenizer.json"
TOKENIZER_CONFIG = "tokenizer_config.json"
SPECIAL_TOKENS = "special_tokens_map.json"
TIKTOKEN = "tiktoken.model"
TEMPLATE_FILES = ("chat_template.jinja", "chat_template.json")  # the first that is there counts

MAX_CONFIG_BYTES = 16 * 2**20
MAX_TEMPLATE_BYTES = 2**20

# Tokenizers that exist only as code or need a library of their own.
_OTHER_TOKENIZERS = (
    "tokenizer.model",
    "spiece.model",
    "sentencepiece.bpe.model",
    "tekken.json",
    "vocab.json",
)


def read_folder(folder: Path, names: list[str], parts: ModelParts, problems: Problems) -> None:
    """Fills `parts` with what the folder holds; `names` are the files in it."""
    present = set(names)
    text_model: TextModel | None = None
    config: ConfigReader | None = None
    with problems:
        config = ConfigReader(
            read_json_object(folder / CONFIG, limit=MAX_CONFIG_BYTES), CONFIG, notices=parts.notices
        )
    if config is not None:
        with problems:
            parts.architecture = architecture_name(config)
            text_model = find_text_model(config)
    plain: SafetensorsSource | None = None
    with problems:
        files = find_weights(folder, names)
        parts.tensors = plain = SafetensorsSource(files.paths, placement=files.placement)
        parts.file_bytes = plain.file_bytes
    source: FolderSource | None = None
    with problems:
        settings = None if config is None else find_quantisation(config, folder, present)
        source = dequantised_source(plain, settings, parts.notices)
        parts.tensors = source if source is not None else plain
    if text_model is not None:
        with problems:
            _read_model(text_model, source, parts)
    with problems:
        _read_ids_and_sampling(folder, present, config, parts)
    tokenizer_config: dict[str, Any] = {}
    with problems:
        if TOKENIZER_CONFIG in present:
            tokenizer_config = read_json_object(folder / TOKENIZER_CONFIG)
    with problems:
        parts.tokenizer = _tokenizer_files(folder, present, tokenizer_config)
    with problems:
        parts.chat_template = _chat_template(folder, present, tokenizer_config, parts.notices)


def _read_model(text_model: TextModel, source: FolderSource | None, parts: ModelParts) -> None:
    """The spec, and the parameters checked against what the files hold."""
    stored = {} if source is None else source.tensors()
    parts.spec = spec = text_model.read_spec(stores_head=HEAD in stored)
    parts.parameters = text_model.family.parameters(spec, stored)
    if source is None:
        return
    if isinstance(source, QuantisedFolderSource):
        source.leave_out_zero_biases({piece.source for each in parts.parameters for piece in each.pieces})
    parts.notices += _tensor_notices(text_model, source)
    check_tensors(
        parts.parameters, source.tensors(), readable=READABLE_DTYPES | MATRIX_DTYPES, config_file=CONFIG
    )


def _tensor_notices(text_model: TextModel, source: FolderSource) -> list[Notice]:
    notices = []
    if source.left_out:
        listed = ", ".join(f"{count} {kind}" for kind, count in sorted(source.left_out.items()))
        notices.append(
            Notice("tensors-left-out", f"Tensors that a text chat has no use for were left out: {listed}.")
        )
    if text_model.may_tie and HEAD in source.tensors():
        notices.append(
            Notice(
                "stored-head-used",
                f"The files hold an output head ({HEAD}) though {CONFIG} ties it to the embedding; "
                "the stored head is used.",
            )
        )
    return notices


def _read_ids_and_sampling(
    folder: Path, present: set[str], config: ConfigReader | None, parts: ModelParts
) -> None:
    """End tokens are the union over all configs: each of them is known to be incomplete somewhere."""
    readers = [] if config is None else [config, config.section("text_config")]
    if GENERATION_CONFIG in present:
        values = read_json_object(folder / GENERATION_CONFIG, limit=MAX_CONFIG_BYTES)
        generation = ConfigReader(values, GENERATION_CONFIG, notices=parts.notices)
        readers.append(generation)
        parts.sampling_defaults = read_sampling(generation)
    parts.eos_token_ids = frozenset().union(*(read_eos_ids(reader) for reader in readers))


def _tokenizer_files(folder: Path, present: set[str], config: dict[str, Any]) -> TokenizerSource:
    if TOKENIZER not in present and TIKTOKEN not in present:
        others = [name for name in _OTHER_TOKENIZERS if name in present]
        hint = f"Put the {TOKENIZER} of the model's original page into the folder."
        if others:
            raise TokenizerError(
                f"{shown(folder)} has no tokenizer that can be read, only {others[0]}.", hint
            )
        raise TokenizerError(f"{shown(folder)} has no tokenizer: {TOKENIZER} is missing.", hint)
    special = read_json_object(folder / SPECIAL_TOKENS) if SPECIAL_TOKENS in present else {}
    return HfTokenizerFiles(
        tokenizer_json=folder / TOKENIZER if TOKENIZER in present else None,
        tiktoken_model=folder / TIKTOKEN if TIKTOKEN in present else None,
        config=config,
        special_tokens_map=special,
    )


def _chat_template(
    folder: Path, present: set[str], tokenizer_config: dict[str, Any], notices: list[Notice]
) -> str | None:
    for name in TEMPLATE_FILES:
        if name not in present:
            continue
        if name.endswith(".jinja"):
            return read_text(folder / name, limit=MAX_TEMPLATE_BYTES)
        return _template_text(read_json_object(folder / name).get("chat_template"), name, notices)
    return _template_text(tokenizer_config.get("chat_template"), TOKENIZER_CONFIG, notices)


def _template_text(value: Any, file: str, notices: list[Notice]) -> str | None:
    """A template as text, or as a list of named ones, of which "default" is for chatting."""
    if value is None or isinstance(value, str):
        return value
    named: dict[str, str] = {}
    if isinstance(value, list):
        for item in value:
            name, template = (
                (item.get("name"), item.get("template")) if isinstance(item, dict) else (None, None)
            )
            if isinstance(name, str) and isinstance(template, str):
                named.setdefault(name, template)
    if not named:
        raise ModelFileError(
            f"{file}: chat_template should be text or a list of named templates, not {json_type(value)}.",
            "Download that file again.",
        )
    chosen = "default" if "default" in named else next(iter(named))
    if chosen != "default":
        message = f"{file} has no default chat template; {shown(chosen, 40)!r} is used."
        notices.append(Notice("chat-template-chosen", message))
    return named[chosen]
