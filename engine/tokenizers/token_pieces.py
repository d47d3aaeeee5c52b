"""What one token stands for, as bytes: a character may be spread over several tokens.

A tokenizer's decoder joins tokens and turns them into text in one go; a stream needs it one token at a time.
The decoders of the families here all come down to a rule for one token plus a space to drop at the start, so
text is always `b"".join(bytes of each token)` read as UTF-8. The library's own decoders are not used: for
tokens that stand for single bytes they give up a whole run when one byte of it is wrong, valid characters
included.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from engine.checkpoints.foreign_files import shown
from engine.errors import TokenizerError

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_UNSUPPORTED_HINT = "Look for a version of the model with another tokenizer file."


def byte_characters() -> dict[int, str]:
    """The printable character that byte-level vocabularies (GPT-2 and all that followed) write for each byte.

    Printable Latin-1 stands for itself; the other 68 bytes take the characters from U+0100 on, in order.
    """
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = [byte for byte in range(256) if byte not in printable]
    return {byte: chr(byte) for byte in printable} | {byte: chr(256 + n) for n, byte in enumerate(others)}


_BYTE_OF_CHARACTER = {character: byte for byte, character in byte_characters().items()}


@dataclass(frozen=True)
class PieceDecoder:
    """`stripped_spaces` counts the spaces dropped from the start of a whole text, if they are there."""

    byte_level: bool = False
    byte_fallback: bool = False
    replacements: tuple[tuple[str, str], ...] = ()
    stripped_spaces: int = 0

    def to_bytes(self, token: str) -> bytes:
        if self.byte_level:
            try:
                return bytes(_BYTE_OF_CHARACTER[character] for character in token)
            except KeyError:  # an added token, written as it is
                return token.encode("utf-8")
        for old, new in self.replacements:
            token = token.replace(old, new)
        if self.byte_fallback and (match := _BYTE_TOKEN.fullmatch(token)):
            return bytes([int(match[1], 16)])
        return token.encode("utf-8")


def decoder_from_json(decoder: object, file: str) -> PieceDecoder:
    """Reads the "decoder" of tokenizer.json. Raises TokenizerError, naming what is not one of the known
    ones."""
    if not isinstance(decoder, Mapping):
        raise TokenizerError(f"{shown(file)} does not say how tokens become text.", _UNSUPPORTED_HINT)
    steps = decoder.get("decoders") if decoder.get("type") == "Sequence" else [decoder]
    if not isinstance(steps, list) or not all(isinstance(step, Mapping) for step in steps):
        raise TokenizerError(f"{shown(file)} has a damaged decoder.", "Download that file again.")
    kinds = [str(step.get("type")) for step in steps]
    if kinds in (["ByteLevel"], ["ByteLevel", "Fuse"], ["Fuse", "ByteLevel"]):
        return PieceDecoder(byte_level=True)
    if kinds == ["Metaspace"]:
        return _metaspace(steps[0])
    result: dict[str, Any] = {"replacements": (), "byte_fallback": False, "stripped_spaces": 0}
    fused = False
    for kind, step in zip(kinds, steps, strict=True):
        if kind == "Fuse":
            fused = True
        elif kind == "ByteFallback" and not fused:
            result["byte_fallback"] = True
        elif kind == "Replace" and not fused and not result["byte_fallback"]:
            result["replacements"] += (_replacement(step, file),)
        elif kind == "Strip" and fused and step.get("content") == " " and step.get("stop") == 0:
            result["stripped_spaces"] = int(step.get("start", 0))
        else:
            raise TokenizerError(
                f"{shown(file)} makes text of tokens by {shown(' + '.join(kinds))}, which is not supported.",
                _UNSUPPORTED_HINT,
            )
    return PieceDecoder(**result)


def _metaspace(step: Mapping[str, Any]) -> PieceDecoder:
    """Older files have `add_prefix_space`, newer ones `prepend_scheme`."""
    scheme = step.get("prepend_scheme", "always" if step.get("add_prefix_space", True) else "never")
    return PieceDecoder(
        replacements=((str(step.get("replacement", "▁")), " "),),
        byte_fallback=True,
        stripped_spaces=0 if scheme == "never" else 1,
    )


def _replacement(step: Mapping[str, Any], file: str) -> tuple[str, str]:
    pattern, content = step.get("pattern"), step.get("content")
    old = pattern.get("String") if isinstance(pattern, Mapping) else None
    if not isinstance(old, str) or not old or not isinstance(content, str):
        raise TokenizerError(
            f"{shown(file)} replaces text in a way that is not supported.", _UNSUPPORTED_HINT
        )
    return old, content
