"""Reads a tiktoken.model: base64 of each token's bytes and its rank, one a line.

Such a folder has its way of splitting words in Python code, which is never run. It is known here for the
tokenizer classes below and refused by name for all others. Control tokens come from tokenizer_config.json.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from pathlib import Path

from engine.checkpoints.foreign_files import read_bytes, shown
from engine.errors import ModelFileError, TokenizerError
from engine.tokenizers.hf_tokenizer import HfTokenizerFiles, complete_definition
from engine.tokenizers.ranked_merges import merges_by_rank
from engine.tokenizers.token_pieces import PieceDecoder, byte_characters
from engine.tokenizers.tokenizer_definition import (
    DAMAGED_HINT,
    MAX_TOKENS,
    BytePairModel,
    Component,
    TokenizerDefinition,
)

_MAX_BYTES = 64 * 2**20
_CONTRACTION = "(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
_UPPER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]"
_LOWER = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]"
# Moonlight, Kimi-K2, Kimi-Linear: https://huggingface.co/moonshotai/Kimi-K2-Instruct (tokenization_kimi.py)
_KIMI = (
    r"[\p{Han}]+"
    rf"|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+{_CONTRACTION}"
    rf"|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*{_CONTRACTION}"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
PATTERNS: Mapping[str, str] = {"TikTokenTokenizer": _KIMI}


def read_tiktoken(path: Path, files: HfTokenizerFiles) -> TokenizerDefinition:
    """Raises TokenizerError with one sentence that names the file or what is missing."""
    tokenizer_class = files.config.get("tokenizer_class")
    pattern = PATTERNS.get(tokenizer_class) if isinstance(tokenizer_class, str) else None
    if pattern is None:
        named = shown(tokenizer_class, 60) if tokenizer_class else "which tokenizer_config.json does not name"
        raise TokenizerError(
            f"{shown(path.name)} needs the code of its tokenizer class ({named}), "
            "and code from a model is never run.",
            "Put a tokenizer.json into the folder; conversions of the model often have one.",
        )
    vocab = _read_vocabulary(path)
    by_rank = sorted(vocab, key=vocab.__getitem__)
    model = BytePairModel(vocab, merges_by_rank(by_rank), ignore_merges=True, file=path.name)
    model.check()
    return complete_definition(
        files,
        path.name,
        model,
        normalizer=None,
        pre_tokenizer=_word_splitter(pattern),
        decoder=PieceDecoder(byte_level=True),
    )


def _word_splitter(pattern: str) -> Component:
    split = {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
    to_bytes = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    return {"type": "Sequence", "pretokenizers": [split, to_bytes]}


def _read_vocabulary(path: Path) -> dict[str, int]:
    """Tokens in byte-level writing with their ranks, which are their ids."""
    characters = byte_characters()
    vocab: dict[str, int] = {}
    try:
        lines = read_bytes(path, limit=_MAX_BYTES).splitlines()
    except ModelFileError as error:
        raise TokenizerError(error.message, error.hint) from error
    for number, line in enumerate(lines, 1):
        parts = line.split()
        if not parts:
            continue
        try:
            encoded, rank = parts
            token = "".join(map(characters.__getitem__, base64.b64decode(encoded, validate=True)))
            token_id = int(rank)
        except (binascii.Error, ValueError) as error:
            raise TokenizerError(
                f"{shown(path.name)} is damaged in line {number:,}.", DAMAGED_HINT
            ) from error
        if not token or token in vocab or not 0 <= token_id < MAX_TOKENS:
            raise TokenizerError(f"{shown(path.name)} is damaged in line {number:,}.", DAMAGED_HINT)
        vocab[token] = token_id
    missing = [byte for byte, character in characters.items() if character not in vocab]
    if missing:
        raise TokenizerError(
            f"{shown(path.name)} lacks {len(missing)} of the 256 tokens for single bytes.", DAMAGED_HINT
        )
    return vocab
