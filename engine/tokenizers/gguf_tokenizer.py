"""The tokenizer that a GGUF file carries, read as its own keys say and not by guessing from the model's name.

Two kinds are in use: "gpt2" is byte-level BPE with its merges in the file and a named way of splitting words
(`gguf_pretokenizers.py`); "llama" is SentencePiece BPE, whose merges follow from the tokens' scores.
Keys: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md#tokenizer
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from engine.checkpoints.foreign_files import shown
from engine.errors import TokenizerError
from engine.tokenizers.gguf_pretokenizers import PRE_TOKENIZERS
from engine.tokenizers.ranked_merges import merges_by_rank
from engine.tokenizers.token_pieces import PieceDecoder
from engine.tokenizers.tokenizer_definition import (
    MAX_TOKENS,
    AddedToken,
    BytePairModel,
    Component,
    MergeList,
    TokenizerDefinition,
)
from engine.wording import format_tokens

_FILE = "The GGUF file"
_DAMAGED_HINT = "Download the file again, or look for another conversion of the model."
_SPACE = "▁"
_ID_NAMES = (
    "bos",
    "eos",
    "eot",
    "eom",
    "unknown",
    "padding",
    "seperator",
    "cls",
    "mask",
)  # as the format spells them
_VARIABLES = {
    "bos": "bos_token", "eos": "eos_token", "unknown": "unk_token", "padding": "pad_token",
    "seperator": "sep_token", "cls": "cls_token", "mask": "mask_token",
}  # fmt: skip

# Control tokens that end a turn or a text whatever the file's end token is: conversions often name only one
# of two.
_END_OF_TURN = frozenset(
    {
        "<|eot_id|>", "<|eom_id|>", "<|im_end|>", "<|end|>", "<|return|>", "<|call|>", "<|endoftext|>",
        "<|end_of_text|>", "<end_of_turn>", "<EOT>", "[EOT]", "[EOS]", "<｜end▁of▁sentence｜>",
    }
)  # fmt: skip
# Vocabularies with this token end a message, not a turn, with <|end|>.
_HARMONY_END = "<|return|>"


class TokenType(IntEnum):
    """`tokenizer.ggml.token_type`."""

    UNDEFINED = 0
    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


@dataclass(frozen=True)
class GgufTokenizerData:
    """The `tokenizer.ggml.*` keys of one file. `ids` has the special ids that the file names: "bos", "eos", …

    `add_bos`, `add_space_prefix` and `remove_extra_whitespaces` are None where the file is silent.
    """

    model: str
    pre: str
    tokens: Sequence[str]
    token_types: Sequence[int]
    merges: Sequence[str]
    scores: Sequence[float]
    ids: Mapping[str, int]
    add_bos: bool | None
    add_space_prefix: bool | None
    remove_extra_whitespaces: bool | None

    @classmethod
    def from_metadata(cls, metadata: Mapping[str, Any]) -> GgufTokenizerData:
        """`metadata` maps GGUF keys to plain values. Raises TokenizerError naming the key or the unsupported
        kind."""
        model = _value(metadata, "model", str)
        if not model:
            raise TokenizerError(
                f"{_FILE} holds no tokenizer (tokenizer.ggml.model is missing).",
                "Look for another conversion of the model.",
            )
        pre = _value(metadata, "pre", str) or ""
        _check_supported(model, pre)
        tokens = _list(metadata, "tokens", str)
        types = _list(metadata, "token_type", int)
        scores = _list(metadata, "scores", float)
        for name, values in (("token_type", types), ("scores", scores)):
            if values and len(values) != len(tokens):
                raise TokenizerError(
                    f"{_FILE} has the wrong number of tokenizer.ggml.{name}: {len(values):,} for "
                    f"{format_tokens(len(tokens))}.",
                    _DAMAGED_HINT,
                )
        if not 0 < len(tokens) <= MAX_TOKENS:
            raise TokenizerError(f"{_FILE} has a vocabulary of {format_tokens(len(tokens))}.", _DAMAGED_HINT)
        return cls(
            model=model,
            pre=pre,
            tokens=tokens,
            token_types=types or [TokenType.NORMAL] * len(tokens),
            merges=_list(metadata, "merges", str),
            scores=scores,
            ids=_special_ids(metadata, len(tokens)),
            add_bos=_value(metadata, "add_bos_token", bool),
            add_space_prefix=_value(metadata, "add_space_prefix", bool),
            remove_extra_whitespaces=_value(metadata, "remove_extra_whitespaces", bool),
        )


def read_gguf_tokenizer(data: GgufTokenizerData) -> TokenizerDefinition:
    """Raises TokenizerError with one sentence."""
    return _byte_level(data) if data.model == "gpt2" else _sentencepiece(data)


def _check_supported(model: str, pre: str) -> None:
    if model not in ("gpt2", "llama"):
        raise TokenizerError(
            f"{_FILE} has a tokenizer of the kind {shown(model, 40)!r}, which is not supported.",
            "Use the model's Hugging Face folder instead.",
        )
    if model == "gpt2" and pre not in PRE_TOKENIZERS:
        what = f"splits words by {shown(pre, 40)!r}, which is not supported"
        if not pre:
            what = "does not say how it splits words (tokenizer.ggml.pre is missing)"
        raise TokenizerError(
            f"{_FILE} {what}.", "Look for a newer conversion, or use the model's Hugging Face folder."
        )


def _value(metadata: Mapping[str, Any], name: str, kind: type) -> Any:
    """One key, or None where it is absent."""
    value = metadata.get(f"tokenizer.ggml.{name}")
    if value is not None and type(value) is not kind:
        raise TokenizerError(
            f"{_FILE}: tokenizer.ggml.{name} has a value of the wrong type ({shown(value, 40)}).",
            _DAMAGED_HINT,
        )
    return value


def _list(metadata: Mapping[str, Any], name: str, kind: type) -> list[Any]:
    """One list, or [] where the key is absent."""
    values: list[Any] = _value(metadata, name, list) or []
    wrong = set(map(type, values)) - {kind, int if kind is float else kind}
    if wrong:
        raise TokenizerError(
            f"{_FILE}: tokenizer.ggml.{name} holds {', '.join(sorted(t.__name__ for t in wrong))}.",
            _DAMAGED_HINT,
        )
    return values


def _special_ids(metadata: Mapping[str, Any], num_tokens: int) -> dict[str, int]:
    ids: dict[str, int] = {}
    for name in _ID_NAMES:
        token_id = _value(metadata, f"{name}_token_id", int)
        if token_id is None:
            continue
        if not 0 <= token_id < num_tokens:
            raise TokenizerError(
                f"{_FILE}: tokenizer.ggml.{name}_token_id is {token_id} of {format_tokens(num_tokens)}.",
                _DAMAGED_HINT,
            )
        ids[name] = token_id
    return ids


def _byte_level(data: GgufTokenizerData) -> TokenizerDefinition:
    pre = PRE_TOKENIZERS[data.pre]
    merges = MergeList()
    for merge in data.merges:
        left, space, right = merge.partition(" ")
        if not space:
            raise TokenizerError(f"{_FILE} holds {shown(merge, 40)!r} among its merges.", _DAMAGED_HINT)
        merges.append(left, right)
    if not merges:
        raise TokenizerError(f"{_FILE} holds no merges (tokenizer.ggml.merges).", _DAMAGED_HINT)
    model = BytePairModel(_vocabulary(data), merges, ignore_merges=pre.ignore_merges, file=_FILE)
    model.check()
    return _definition(
        data,
        model,
        normalizer=pre.normalizer,
        pre_tokenizer=pre.component,
        decoder=PieceDecoder(byte_level=True),
        adds_bos=pre.adds_bos,
    )


def _sentencepiece(data: GgufTokenizerData) -> TokenizerDefinition:
    if not data.scores:
        raise TokenizerError(f"{_FILE} holds no scores (tokenizer.ggml.scores).", _DAMAGED_HINT)
    normal = [i for i, kind in enumerate(data.token_types) if kind in (TokenType.NORMAL, TokenType.UNDEFINED)]
    best_first = sorted(normal, key=lambda i: -data.scores[i])  # a stable sort: equal scores in order of id
    unknown = data.ids.get("unknown", 0)
    model = BytePairModel(
        _vocabulary(data),
        merges_by_rank([data.tokens[i] for i in best_first]),
        unk_token=data.tokens[unknown] if data.token_types[unknown] == TokenType.UNKNOWN else None,
        fuse_unk=True,
        byte_fallback=True,
        file=_FILE,
    )
    model.check()
    prefix = data.add_space_prefix is not False
    return _definition(
        data,
        model,
        normalizer={"type": "Sequence", "normalizers": list(_space_normalizers(data, prefix=prefix))},
        pre_tokenizer=None,
        decoder=PieceDecoder(
            byte_fallback=True, replacements=((_SPACE, " "),), stripped_spaces=1 if prefix else 0
        ),
        adds_bos=True,
    )


def _space_normalizers(data: GgufTokenizerData, *, prefix: bool) -> Iterator[Component]:
    if data.remove_extra_whitespaces:
        yield {"type": "Strip", "strip_left": True, "strip_right": True}
        yield {"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": " "}
    if prefix:
        yield {"type": "Prepend", "prepend": _SPACE}
    yield {"type": "Replace", "pattern": {"String": " "}, "content": _SPACE}


def _vocabulary(data: GgufTokenizerData) -> dict[str, int]:
    """Every token that text can become or that is added; unused ones (padding up to a round number) are left
    out."""
    vocab: dict[str, int] = {}
    for token_id, (token, kind) in enumerate(zip(data.tokens, data.token_types, strict=True)):
        if kind == TokenType.UNUSED or not token:
            continue
        if token in vocab:
            raise TokenizerError(
                f"{_FILE} has the token {shown(token, 40)!r} twice (ids {vocab[token]:,} and {token_id:,}).",
                _DAMAGED_HINT,
            )
        vocab[token] = token_id
    return vocab


def _definition(
    data: GgufTokenizerData,
    model: BytePairModel,
    *,
    normalizer: Component | None,
    pre_tokenizer: Component | None,
    decoder: PieceDecoder,
    adds_bos: bool,
) -> TokenizerDefinition:
    added = _added_tokens(data)
    bos_id = data.ids.get("bos")
    if data.add_bos is not None:
        adds_bos = data.add_bos
    return TokenizerDefinition(
        model=model,
        normalizer=normalizer,
        pre_tokenizer=pre_tokenizer,
        decoder=decoder,
        added_tokens=added,
        eos_ids=_end_ids(data, added),
        bos_id=bos_id,
        adds_bos=adds_bos and bos_id is not None,
        template_variables={
            _VARIABLES[name]: data.tokens[token_id]
            for name, token_id in data.ids.items()
            if name in _VARIABLES
        },
        size=len(data.tokens),
    )


def _added_tokens(data: GgufTokenizerData) -> tuple[AddedToken, ...]:
    """The tokens that end or begin something are control tokens whatever type the file gives them."""
    control = {data.ids[name] for name in ("bos", "eos", "eot", "eom") if name in data.ids}
    kinds: dict[int, bool] = {TokenType.CONTROL: True, TokenType.UNKNOWN: True, TokenType.USER_DEFINED: False}
    added = []
    for token_id, (token, kind) in enumerate(zip(data.tokens, data.token_types, strict=True)):
        special = True if token_id in control else kinds.get(kind)
        if special is not None and token:
            added.append(AddedToken(token_id, token, special=special))
    return tuple(added)


def _end_ids(data: GgufTokenizerData, added: Sequence[AddedToken]) -> frozenset[int]:
    ends = {data.ids[name] for name in ("eos", "eot", "eom") if name in data.ids}
    contents = {token.content for token in added if token.special}
    texts = _END_OF_TURN - {"<|end|>"} if _HARMONY_END in contents else _END_OF_TURN
    ends |= {token.id for token in added if token.special and token.content in texts}
    return frozenset(ends)
