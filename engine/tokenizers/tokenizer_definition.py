"""What a tokenizer is, as plain data: the common ground of every file format that describes one.

`hf_tokenizer.py`, `tiktoken_tokenizer.py` and `gguf_tokenizer.py` read foreign files into a
`TokenizerDefinition`; `tokenizer.py` builds the working tokenizer from nothing else.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, overload

from engine.checkpoints.foreign_files import shown
from engine.errors import TokenizerError
from engine.notices import Notice
from engine.tokenizers.token_pieces import PieceDecoder

MAX_TOKENS = 2**24  # ten times the largest vocabulary in use
DAMAGED_HINT = "Download the tokenizer's files again."

Merge = tuple[str, str]
Component = Mapping[str, Any]  # a normalizer or pre-tokenizer in the words of tokenizer.json


@dataclass(frozen=True)
class AddedToken:
    """A string that is one token of its own, found before the text is split into words.

    `special` marks control tokens, which are left out of an answer's text. `normalized` tokens are looked for
    after the others. `lstrip` and `rstrip` swallow white space on that side; `single_word` asks for a word
    border on both.
    """

    id: int
    content: str
    special: bool
    normalized: bool = False
    lstrip: bool = False
    rstrip: bool = False
    single_word: bool = False

    @property
    def is_spacing(self) -> bool:
        """Runs of white space that some vocabularies keep as added tokens. They control nothing, and the
        model knows indentation by them, so they are found in everybody's text."""
        return not self.special and not self.content.strip(" \t\r\n▁")


class MergeList(Sequence[Merge]):
    """Merges as two flat lists; pairs are made when they are looked at.

    300,000 tuples kept alive set off collections of the whole heap, and those keep every other thread
    waiting. The library goes through the list by `__iter__`, which is Python's and so gives the interpreter's
    lock away.
    """

    def __init__(self, merges: Iterable[Merge] = ()) -> None:
        self._left: list[str] = []
        self._right: list[str] = []
        for left, right in merges:
            self.append(left, right)

    def append(self, left: str, right: str) -> None:
        self._left.append(left)
        self._right.append(right)

    def __len__(self) -> int:
        return len(self._left)

    @overload
    def __getitem__(self, index: int) -> Merge: ...
    @overload
    def __getitem__(self, index: slice) -> MergeList: ...
    def __getitem__(self, index: int | slice) -> Merge | MergeList:
        if isinstance(index, slice):
            return MergeList(zip(self._left[index], self._right[index], strict=True))
        return self._left[index], self._right[index]

    def __iter__(self) -> Iterator[Merge]:
        for pair in zip(self._left, self._right, strict=True):  # noqa: UP028  (a loop in Python is the point)
            yield pair


@dataclass(frozen=True)
class BytePairModel:
    """Byte-pair encoding: the first merges of the list are done first."""

    vocab: dict[str, int]
    merges: MergeList
    unk_token: str | None = None
    fuse_unk: bool = False
    byte_fallback: bool = False  # what has no token becomes tokens such as <0xE2>
    ignore_merges: bool = False  # a word that is a token as a whole is taken whole
    file: str = "The tokenizer"  # that it comes from, for messages

    def check(self) -> None:
        """Raises TokenizerError unless every id makes sense: the library would panic. For merges, which it
        looks at itself, there is `check_merges`.
        """
        vocab, file = self.vocab, self.file
        if not vocab:
            raise TokenizerError(f"{shown(file)} holds an empty vocabulary.", DAMAGED_HINT)
        for token, token_id in vocab.items():
            if type(token_id) is not int or not 0 <= token_id < MAX_TOKENS:
                raise TokenizerError(
                    f"{shown(file)} gives the token {shown(token, 40)!r} the id {shown(token_id, 40)}.",
                    DAMAGED_HINT,
                )
        if len(set(vocab.values())) != len(vocab):
            raise TokenizerError(f"{shown(file)} gives two tokens the same id.", DAMAGED_HINT)
        if self.unk_token is not None and self.unk_token not in vocab:
            raise TokenizerError(
                f"{shown(file)} names {shown(self.unk_token, 40)!r} as unk_token, which is not a token.",
                DAMAGED_HINT,
            )

    def check_merges(self) -> None:
        """Raises TokenizerError unless every merge makes sense. With 150,000 of them that takes 0.07 s, so it
        is for saying what is wrong.
        """
        vocab = self.vocab
        for left, right in self.merges:
            if left not in vocab or right not in vocab or left + right not in vocab:
                raise TokenizerError(
                    f"{shown(self.file)} merges {shown(left, 40)!r} and {shown(right, 40)!r}, "
                    "but its vocabulary lacks one of them or the result.",
                    DAMAGED_HINT,
                )

    def without(self, tokens: Collection[str]) -> BytePairModel:
        """The same model, not knowing these tokens, whatever merges say. The unknown token stays."""
        gone = {token for token in tokens if token in self.vocab and token != self.unk_token}
        if not gone:
            return self
        vocab = self.vocab.copy()
        for token in gone:
            del vocab[token]
        return replace(self, vocab=vocab)

    def with_possible_merges(self) -> BytePairModel:
        """The same model with only those merges whose tokens it has."""
        vocab = self.vocab
        merges = MergeList(
            (left, right)
            for left, right in self.merges
            if left in vocab and right in vocab and left + right in vocab
        )
        return replace(self, merges=merges)


@dataclass(frozen=True)
class TokenizerDefinition:
    """Everything that a tokenizer does. `size` counts ids, the ones without a token included."""

    model: BytePairModel
    normalizer: Component | None
    pre_tokenizer: Component | None
    decoder: PieceDecoder
    added_tokens: tuple[AddedToken, ...] = ()
    eos_ids: frozenset[int] = frozenset()
    bos_id: int | None = None
    adds_bos: bool = False
    template_variables: Mapping[str, str] = field(default_factory=dict)
    size: int = 0
    notices: tuple[Notice, ...] = ()
