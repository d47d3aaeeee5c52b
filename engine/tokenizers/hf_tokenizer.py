"""Reads the tokenizer of a Hugging Face folder: tokenizer.json, and what the small files beside it add."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from engine.checkpoints.foreign_files import json_type, read_text, shown, some_names
from engine.errors import ModelFileError, TokenizerError
from engine.notices import Notice
from engine.tokenizers.large_json import parse_large_object
from engine.tokenizers.token_pieces import PieceDecoder, decoder_from_json
from engine.tokenizers.tokenizer_definition import (
    DAMAGED_HINT,
    MAX_TOKENS,
    AddedToken,
    BytePairModel,
    Component,
    MergeList,
    TokenizerDefinition,
)

TOKENIZER_FILE = "tokenizer.json"
NAMED_TOKENS = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
_FLAGS = ("special", "normalized", "lstrip", "rstrip", "single_word")


@dataclass(frozen=True)
class HfTokenizerFiles:
    """The files of one folder. The two paths are None where there is no such file; the small files are parsed
    already, and {} where they are absent."""

    tokenizer_json: Path | None
    tiktoken_model: Path | None = None
    config: Mapping[str, Any] = field(default_factory=dict)  # tokenizer_config.json
    special_tokens_map: Mapping[str, Any] = field(default_factory=dict)  # special_tokens_map.json


def read_tokenizer_json(path: Path, files: HfTokenizerFiles) -> TokenizerDefinition:
    """Raises TokenizerError with one sentence that names the file."""
    file = TOKENIZER_FILE
    merges = MergeList()
    try:
        text = read_text(path)
        document = parse_large_object(text, file, sinks={"merges": lambda merge: _take_merge(merges, merge)})
    except ModelFileError as error:
        raise TokenizerError(error.message, error.hint) from error
    return complete_definition(
        files,
        file,
        _model(document.get("model"), merges, file),
        added_tokens=document.get("added_tokens"),
        post_processor=document.get("post_processor"),
        normalizer=_component(document, "normalizer", file),
        pre_tokenizer=_component(document, "pre_tokenizer", file),
        decoder=decoder_from_json(document.get("decoder"), file),
    )


def complete_definition(
    files: HfTokenizerFiles,
    file: str,
    model: BytePairModel,
    *,
    normalizer: Component | None,
    pre_tokenizer: Component | None,
    decoder: PieceDecoder,
    added_tokens: object = None,
    post_processor: object = None,
) -> TokenizerDefinition:
    """Adds what tokenizer_config.json and special_tokens_map.json say to what `file` holds."""
    notices: list[Notice] = []
    added = _with_config_tokens(_added_tokens(added_tokens, file), files, model, file=file, notices=notices)
    added = _with_named_tokens(added, files, model)
    ids = {**model.vocab, **{token.content: token.id for token in added}}
    bos_id, adds_bos = _beginning(files, post_processor, ids)
    return TokenizerDefinition(
        model=model,
        normalizer=normalizer,
        pre_tokenizer=pre_tokenizer,
        decoder=decoder,
        added_tokens=tuple(added),
        eos_ids=_end_ids(files, ids, notices),
        bos_id=bos_id,
        adds_bos=adds_bos,
        template_variables=_template_variables(files),
        size=max(ids.values()) + 1,
        notices=tuple(notices),
    )


def _take_merge(merges: MergeList, merge: object) -> None:
    """A merge is "left right" in older files, ["left", "right"] in newer ones."""
    parts = merge.split(" ") if isinstance(merge, str) else merge
    if isinstance(parts, list) and len(parts) == 2:
        left, right = parts
        if isinstance(left, str) and isinstance(right, str):
            merges.append(left, right)
            return
    raise TokenizerError(f"{TOKENIZER_FILE} holds {shown(merge, 40)!r} among its merges.", DAMAGED_HINT)


def _model(model: object, merges: MergeList, file: str) -> BytePairModel:
    if not isinstance(model, Mapping) or not isinstance(model.get("vocab"), Mapping | list):
        raise TokenizerError(f"{shown(file)} holds no vocabulary.", DAMAGED_HINT)
    kind = model.get("type", "BPE")  # the oldest files don't say
    affixes = model.get("continuing_subword_prefix") or model.get("end_of_word_suffix")
    if kind != "BPE" or isinstance(model["vocab"], list) or affixes:
        name = "BPE with word affixes" if affixes else shown(kind)
        raise TokenizerError(
            f"{shown(file)} is a tokenizer of the type {name}; only BPE is supported.",
            "Look for a version of the model with another tokenizer file.",
        )
    unknown = model.get("unk_token")
    if unknown is not None and not isinstance(unknown, str):
        raise TokenizerError(
            f"{shown(file)}: unk_token should be text, not {json_type(unknown)}.", DAMAGED_HINT
        )
    result = BytePairModel(
        vocab=model["vocab"],
        merges=merges,
        unk_token=unknown,
        fuse_unk=model.get("fuse_unk") is True,
        byte_fallback=model.get("byte_fallback") is True,
        ignore_merges=model.get("ignore_merges") is True,
        file=file,
    )
    result.check()
    return result


def _component(document: Mapping[str, Any], key: str, file: str) -> Component | None:
    value = document.get(key)
    if value is not None and not isinstance(value, Mapping):
        raise TokenizerError(
            f"{shown(file)}: {key} should be an object, not {json_type(value)}.", DAMAGED_HINT
        )
    return value


def _added_tokens(entries: object, file: str) -> list[AddedToken]:
    if entries is None:
        return []
    if not isinstance(entries, list):
        raise TokenizerError(f"{shown(file)}: added_tokens should be a list.", DAMAGED_HINT)
    tokens = [
        _added_token(entry, entry.get("id") if isinstance(entry, Mapping) else None, file)
        for entry in entries
    ]
    if len({token.id for token in tokens}) != len(tokens) or len({t.content for t in tokens}) != len(tokens):
        raise TokenizerError(f"{shown(file)} lists an added token twice.", DAMAGED_HINT)
    return tokens


def _added_token(entry: object, token_id: object, file: str) -> AddedToken:
    content = entry.get("content") if isinstance(entry, Mapping) else None
    if not isinstance(entry, Mapping) or not isinstance(content, str) or not content:
        raise TokenizerError(f"{shown(file)} has an added token without content.", DAMAGED_HINT)
    if type(token_id) is not int or not 0 <= token_id < MAX_TOKENS:
        raise TokenizerError(
            f"{shown(file)} gives the added token {shown(content, 40)!r} the id {shown(token_id, 40)}.",
            DAMAGED_HINT,
        )
    return AddedToken(token_id, content, **{flag: entry.get(flag) is True for flag in _FLAGS})


def _with_config_tokens(
    tokens: list[AddedToken],
    files: HfTokenizerFiles,
    model: BytePairModel,
    *,
    file: str,
    notices: list[Notice],
) -> list[AddedToken]:
    """Adds what `added_tokens_decoder` of tokenizer_config.json has beyond `file`, and follows its flags.

    Where the two give one id to different tokens, or one token different ids, `file` is right: the model was
    trained with it.
    """
    entries = files.config.get("added_tokens_decoder")
    if not isinstance(entries, Mapping):
        return tokens
    by_content = {token.content: token for token in tokens}
    ids = {**model.vocab, **{token.content: token.id for token in tokens}}
    taken = set(ids.values())
    conflicts: list[str] = []
    for key, entry in entries.items():
        token_id = int(key) if key.isascii() and key.isdigit() and len(key) < 10 else key
        token = _added_token(entry, token_id, "tokenizer_config.json")
        known = ids.get(token.content)
        if known != token.id and (known is not None or token.id in taken):
            conflicts.append(token.content)
            continue
        by_content[token.content] = token
    if conflicts:
        notices.append(
            Notice(
                "tokenizer-conflict",
                f"tokenizer_config.json and {file} give different ids to {some_names(conflicts)}; "
                f"{file} was followed.",
            )
        )
    return list(by_content.values())


def _content(value: object) -> str | None:
    """A named token is written as text or as an object with "content"; null and "" mean that there is
    none."""
    if isinstance(value, Mapping):
        value = value.get("content")
    return value if isinstance(value, str) and value else None


def _named(files: HfTokenizerFiles, name: str) -> str | None:
    """tokenizer_config.json has the last word, even when it says null."""
    source = files.config if name in files.config else files.special_tokens_map
    return _content(source.get(name))


def _additional(files: HfTokenizerFiles) -> Iterable[str]:
    for source in (files.config, files.special_tokens_map):
        for key in ("additional_special_tokens", "extra_special_tokens"):
            value = source.get(key)
            values = (
                value.values() if isinstance(value, Mapping) else value if isinstance(value, list) else ()
            )
            yield from (content for item in values if (content := _content(item)) is not None)


def _with_named_tokens(
    tokens: list[AddedToken], files: HfTokenizerFiles, model: BytePairModel
) -> list[AddedToken]:
    """Marks as control tokens what the config names as such.

    A token that is named for padding or for what is unknown may be an ordinary word; it is left alone.
    """
    control = {*_additional(files), _named(files, "bos_token"), _named(files, "eos_token")}
    result = [replace(token, special=True) if token.content in control else token for token in tokens]
    listed = {token.content for token in tokens}
    for content in sorted(name for name in control if name is not None and name not in listed):
        token_id = model.vocab.get(content)
        if token_id is not None:
            result.append(AddedToken(token_id, content, special=True))
    return result


def _end_ids(files: HfTokenizerFiles, ids: Mapping[str, int], notices: list[Notice]) -> frozenset[int]:
    eos = _named(files, "eos_token")
    if eos is None:
        return frozenset()
    if eos not in ids:
        notices.append(
            Notice(
                "tokenizer-eos-missing",
                f"tokenizer_config.json has the end token {shown(eos, 40)!r}, which the vocabulary lacks.",
                "If answers don't end by themselves, download the tokenizer's files again.",
            )
        )
        return frozenset()
    return frozenset({ids[eos]})


def _beginning(
    files: HfTokenizerFiles, post_processor: object, ids: Mapping[str, int]
) -> tuple[int | None, bool]:
    """The begin token, and whether texts get it: `add_bos_token` says so, or else the post-processor."""
    bos = _named(files, "bos_token")
    first = _leading_token(post_processor)
    if bos is None and "bos_token" not in files.config:
        bos = first
    bos_id = ids.get(bos) if bos is not None else None
    told = files.config.get("add_bos_token")
    adds = told if isinstance(told, bool) else first is not None and first == bos
    return bos_id, adds and bos_id is not None


def _leading_token(post_processor: object) -> str | None:
    """The special token that a post-processor puts before a text."""
    if not isinstance(post_processor, Mapping):
        return None
    if post_processor.get("type") == "Sequence":
        steps = post_processor.get("processors")
        found = [_leading_token(step) for step in steps] if isinstance(steps, list) else []
        return next((token for token in found if token is not None), None)
    single = post_processor.get("single")
    first = single[0] if isinstance(single, list) and single else None
    special = first.get("SpecialToken") if isinstance(first, Mapping) else None
    token = special.get("id") if isinstance(special, Mapping) else None
    return token if isinstance(token, str) else None


def _template_variables(files: HfTokenizerFiles) -> dict[str, str]:
    """What chat templates may refer to: the usual names, and the ones that a model adds (image_token, …)."""
    variables = {name: content for name in NAMED_TOKENS if (content := _named(files, name)) is not None}
    extra = files.config.get("extra_special_tokens")
    if isinstance(extra, Mapping):
        variables |= {
            name: content for name, value in extra.items() if (content := _content(value)) is not None
        }
    return variables
