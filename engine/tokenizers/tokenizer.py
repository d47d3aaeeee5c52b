"""Text to token ids and back, for one model.

Two kinds of text are told apart everywhere. *Control* text comes from a chat template, and the strings of
added tokens in it become those tokens. All other text (what a person typed or pasted, what a model wrote) is
only ever text: the byte-pair model here doesn't know the added tokens at all, so no text can become one of
them, whatever it says. (Runs of spaces that a vocabulary adds are the exception: they control nothing, and
code is full of them.) Where no text holds the string of an added token, the ids are those of the library's
own tokenizer.

What was measured with the `tokenizers` library (0.23, two cores of a server, vocabularies of 49,000 and
152,000 tokens), because it holds the interpreter's lock while it builds and a window stands still meanwhile:

    Tokenizer.from_file       75 and 321 ms       models.BPE(vocab, merges)              28 and 115 ms
    Tokenizer.from_str        52 and 200 ms       the same, merges from a Python loop    18 and  78 ms
    json.loads of the file    32 and 125 ms       encode, 500 KB of text                 360 ms

So files are parsed by `large_json.py`, the model is built from a dictionary and a `MergeList` (nothing
that the library offers builds it in smaller steps than this), everything else comes from a small document
around an empty model, and texts are encoded by `encode_batch_fast`, which gives the lock away (longest wait
of another thread: 10 ms).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from engine.checkpoints.foreign_files import shown
from engine.errors import TokenizerError
from engine.runtime import await_libraries
from engine.tokenizers.added_tokens import AddedTokenMatcher, Run, TextSpan
from engine.tokenizers.gguf_tokenizer import GgufTokenizerData, read_gguf_tokenizer
from engine.tokenizers.hf_tokenizer import HfTokenizerFiles, read_tokenizer_json
from engine.tokenizers.tiktoken_tokenizer import read_tiktoken
from engine.tokenizers.tokenizer_definition import BytePairModel, Component, TokenizerDefinition

if TYPE_CHECKING:
    import tokenizers

__all__ = [
    "GgufTokenizerData",
    "HfTokenizerFiles",
    "TextPiece",
    "Tokenizer",
    "TokenizerSource",
    "load_tokenizer",
]

TokenizerSource = HfTokenizerFiles | GgufTokenizerData
Result = TypeVar("Result")


@dataclass(frozen=True)
class TextPiece:
    """`control`: the strings of added tokens in it become those tokens. Otherwise it is text and nothing but
    text."""

    text: str
    control: bool


def load_tokenizer(source: TokenizerSource) -> Tokenizer:
    """Reads the files and builds the tokenizer. Raises TokenizerError with one sentence."""
    return Tokenizer(_read(source))


def _read(source: TokenizerSource) -> TokenizerDefinition:
    if isinstance(source, GgufTokenizerData):
        return read_gguf_tokenizer(source)
    if source.tokenizer_json is not None:
        return read_tokenizer_json(source.tokenizer_json, source)
    if source.tiktoken_model is not None:
        return read_tiktoken(source.tiktoken_model, source)
    raise TokenizerError(
        "The model has no tokenizer: tokenizer.json is missing.",
        "Download the model again with all its files.",
    )


class Tokenizer:
    """Not changed by use, so several threads may share one.

    Attributes:
        vocab_size: one more than the largest id that stands for something (of a GGUF file: the ids it lists).
        added_tokens: id of every added token by its string, control tokens or not.
        special_ids: the control tokens among them, which are left out of an answer's text.
        eos_ids: tokens that end an answer, as far as the tokenizer's files know.
        bos_id, adds_bos: the begin token, and whether plain texts begin with it.
        template_variables: `bos_token`, `eos_token`, …: what a chat template may refer to.
        stripped_spaces: spaces that `decode` drops from the start of a text, if there are any.
        notices: what had to be assumed or was ignored.
    """

    def __init__(self, definition: TokenizerDefinition) -> None:
        added = definition.added_tokens
        self.vocab_size = definition.size
        self.added_tokens: Mapping[str, int] = {token.content: token.id for token in added}
        self.special_ids = frozenset(token.id for token in added if token.special)
        self.eos_ids = definition.eos_ids
        self.bos_id = definition.bos_id
        self.adds_bos = definition.adds_bos
        self.template_variables: Mapping[str, str] = dict(definition.template_variables)
        self.stripped_spaces = definition.decoder.stripped_spaces
        self.notices = definition.notices
        self._decoder = definition.decoder
        self._matcher = AddedTokenMatcher(added)
        self._added_content = {token.id: token.content for token in added}
        self._bytes: dict[int, bytes] = {}
        control = [token.content for token in added if not token.is_spacing]
        self._model = _build_model(definition.model, control)
        self._normalizer = definition.normalizer
        self._pre_tokenizer = definition.pre_tokenizer
        self._encoders: dict[str, tokenizers.Tokenizer] = {}
        self._encoder(is_first=True, is_normalized_apart=True)  # a broken pattern fails now, not in a chat

    def encode(self, text: str, *, parse_special: bool, add_bos: bool = False) -> list[int]:
        """`parse_special`: `text` is control text. `add_bos`: put the begin token in front if this tokenizer
        does that with texts (`adds_bos`) and it isn't there already."""
        ids = self.encode_pieces([TextPiece(text, control=parse_special)])
        if add_bos and self.adds_bos and self.bos_id is not None and ids[:1] != [self.bos_id]:
            ids.insert(0, self.bos_id)
        return ids

    def encode_pieces(self, pieces: Sequence[TextPiece]) -> list[int]:
        """Ids of the pieces as one continuous text. A string that only begins in a control piece is not a
        token."""
        text, control = _joined(pieces)
        items = self._matcher.split(text, control)
        ids: list[int] = []
        for encoded in self._encode_spans(text, items):
            ids.extend(encoded)
        return ids

    def decode(self, ids: Sequence[int], *, skip_special: bool = True) -> str:
        """Bytes that are no UTF-8 become U+FFFD. Ids without a token stand for nothing."""
        skipped = self.special_ids if skip_special else frozenset()
        raw = b"".join(self.token_bytes(token_id) for token_id in ids if token_id not in skipped)
        text = raw.decode("utf-8", "replace")
        dropped = len(text) - len(text.lstrip(" "))
        return text[min(dropped, self.stripped_spaces) :]

    def token_bytes(self, token_id: int) -> bytes:
        """The UTF-8 that one token stands for, which may end in the middle of a character."""
        found = self._bytes.get(token_id)
        if found is None:
            found = self._bytes[token_id] = self._token_bytes(token_id)
        return found

    def _token_bytes(self, token_id: int) -> bytes:
        if (content := self._added_content.get(token_id)) is not None:
            # In byte-level writing "é" stands for one byte; added tokens are never written that way.
            return content.encode("utf-8") if self._decoder.byte_level else self._decoder.to_bytes(content)
        if not 0 <= token_id < self.vocab_size:
            return b""
        token = self._model.id_to_token(token_id)
        return b"" if token is None else self._decoder.to_bytes(token)

    def _encode_spans(self, text: str, items: Sequence[int | TextSpan]) -> list[list[int]]:
        """The ids of each item. Spans that are treated alike are encoded in one call, which uses all
        cores."""
        encoded = [[item] if isinstance(item, int) else [] for item in items]
        groups: dict[tuple[bool, bool], list[int]] = {}
        for index, item in enumerate(items):
            if isinstance(item, TextSpan):
                groups.setdefault((item.is_first, item.is_normalized_apart), []).append(index)
        for (is_first, is_normalized_apart), indexes in groups.items():
            encoder = self._encoder(is_first=is_first, is_normalized_apart=is_normalized_apart)
            spans = [item for index in indexes if isinstance(item := items[index], TextSpan)]
            texts = [text[span.start : span.end] for span in spans]
            for index, ids in zip(indexes, _encode(encoder, texts), strict=True):
                encoded[index] = ids
        return encoded

    def _encoder(self, *, is_first: bool, is_normalized_apart: bool) -> tokenizers.Tokenizer:
        """The library's tokenizer for spans of one kind. All share one model, and most vocabularies need only
        one."""
        normalizer = self._normalizer if is_normalized_apart else _without_prefix(self._normalizer)
        pre_tokenizer = self._pre_tokenizer if is_first else _without_first_space(self._pre_tokenizer)
        document = json.dumps(
            {
                "version": "1.0",
                "truncation": None,
                "padding": None,
                "added_tokens": [],
                "normalizer": normalizer,
                "pre_tokenizer": pre_tokenizer,
                "post_processor": None,
                "decoder": None,
                "model": {"type": "BPE", "vocab": {}, "merges": []},
            }
        )
        encoder = self._encoders.get(document)
        if encoder is None:
            from tokenizers import Tokenizer as LibraryTokenizer

            encoder = _library_call(
                "use this tokenizer's way of splitting text", lambda: LibraryTokenizer.from_str(document)
            )
            encoder.model = self._model
            self._encoders[document] = encoder
        return encoder


def _build_model(model: BytePairModel, control: Collection[str]) -> Any:
    """The library's model, which doesn't know the control tokens. Raises TokenizerError."""
    bare = model.without(control)
    try:
        return _library_model(bare)
    except TokenizerError:  # the library looks at all merges anyway, so they are looked at here only now
        model.check_merges()
        return _library_model(bare.with_possible_merges())


def _library_model(model: BytePairModel) -> Any:
    """Not as long as others change the process's memory map: that makes it hold the lock several times as
    long.
    """
    from tokenizers.models import BPE

    await_libraries()
    merges: Any = model.merges  # the library's hints say a list of pairs, and it takes any sequence
    return _library_call(
        "build this tokenizer's vocabulary",
        lambda: BPE(
            vocab=model.vocab,
            merges=merges,
            unk_token=model.unk_token,
            fuse_unk=model.fuse_unk,
            byte_fallback=model.byte_fallback,
            ignore_merges=model.ignore_merges,
        ),
    )


def _encode(encoder: tokenizers.Tokenizer, texts: list[str]) -> list[list[int]]:
    results = _library_call(
        "encode this text", lambda: encoder.encode_batch_fast(texts, add_special_tokens=False)
    )
    return [result.ids for result in results]


def _library_call(what: str, call: Callable[[], Result]) -> Result:
    """Turns what the library raises into a sentence."""
    try:
        return call()
    except BaseException as error:
        # The library raises bare Exception; a panic in its Rust code is a BaseException of a class that can't
        # be imported. Everything else that isn't an Exception (an interrupt) goes on.
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        raise TokenizerError(
            f"The tokenizers library can't {what}: {shown(error)}.", "Download the tokenizer's files again."
        ) from error


def _joined(pieces: Sequence[TextPiece]) -> tuple[str, list[Run]]:
    """All text, and the runs of it that are control text; neighbouring control pieces are one run."""
    texts: list[str] = []
    runs: list[Run] = []
    position = 0
    for piece in pieces:
        text = _well_formed(piece.text)
        end = position + len(text)
        if piece.control and text:
            if runs and runs[-1][1] == position:
                runs[-1] = (runs[-1][0], end)
            else:
                runs.append((position, end))
        texts.append(text)
        position = end
    return "".join(texts), runs


def _well_formed(text: str) -> str:
    """Half a surrogate pair (a cut emoji from the clipboard) is no text; it becomes U+FFFD."""
    if text.isascii():
        return text
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


def _without_prefix(normalizer: Component | None) -> Component | None:
    """The same normalizer, putting nothing in front of a text."""
    if normalizer is None or normalizer.get("type") == "Prepend":
        return None
    steps = normalizer.get("normalizers")
    if normalizer.get("type") != "Sequence" or not isinstance(steps, list):
        return normalizer
    kept = [step for step in map(_without_prefix, steps) if step is not None]
    return {**normalizer, "normalizers": kept}


def _without_first_space(pre_tokenizer: Component | None) -> Component | None:
    """The same pre-tokenizer for a span in the middle of a text, which gets no space if only the first one
    does."""
    if pre_tokenizer is None:
        return None
    if pre_tokenizer.get("type") == "Metaspace" and pre_tokenizer.get("prepend_scheme") == "first":
        return {**pre_tokenizer, "prepend_scheme": "never"}
    steps = pre_tokenizer.get("pretokenizers")
    if pre_tokenizer.get("type") != "Sequence" or not isinstance(steps, list):
        return pre_tokenizer
    return {**pre_tokenizer, "pretokenizers": [_without_first_space(step) for step in steps]}
