"""Folders that have a tiktoken.model and code, and of which only the first is used."""

from __future__ import annotations

import base64
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.errors import TokenizerError
from engine.tokenizers.tokenizer import HfTokenizerFiles, Tokenizer, load_tokenizer

# The ranks begin with the 256 bytes, here in an order of their own as in real files.
BYTES = [bytes([byte]) for byte in (*range(32, 256), *range(32))]
WORDS = [
    b"th",
    b"he",
    b" t",
    b" th",
    b"the",
    b" the",
    b"hee",
    b"ee",
    "你".encode(),
    "你好".encode(),
    b"thethe",
]
TOKENS = [*BYTES, *WORDS]
CONFIG: dict[str, Any] = {
    "tokenizer_class": "TikTokenTokenizer",
    "auto_map": {"AutoTokenizer": ["tokenization_kimi.TikTokenTokenizer", None]},
    "bos_token": "[BOS]",
    "eos_token": "[EOS]",
    "added_tokens_decoder": {
        "300": {"content": "[BOS]", "special": True},
        "301": {"content": "[EOS]", "special": True},
        "310": {"content": "<|im_end|>", "special": True},
        "315": {"content": "<think>", "special": False},
    },
}


def write(folder: Path, tokens: list[bytes] = TOKENS) -> Path:
    path = folder / "tiktoken.model"
    lines = [base64.b64encode(token) + b" %d" % rank for rank, token in enumerate(tokens)]
    path.write_bytes(b"\n".join(lines) + b"\n")
    return path


def load(path: Path, **changes: Any) -> Tokenizer:
    return load_tokenizer(HfTokenizerFiles(None, tiktoken_model=path, config={**CONFIG, **changes}))


@pytest.fixture(scope="module")
def kimi(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return load(write(tmp_path_factory.mktemp("kimi")))


def lowest_rank_first(word: bytes) -> list[int]:
    """tiktoken's definition: a token is taken whole; otherwise the pair of the lowest rank is joined."""
    ranks = {token: rank for rank, token in enumerate(TOKENS)}
    if word in ranks:
        return [ranks[word]]
    parts = [bytes([byte]) for byte in word]
    while True:
        unions = [(ranks[a + b], i) for i, (a, b) in enumerate(pairwise(parts)) if a + b in ranks]
        if not unions:
            return [ranks[part] for part in parts]
        place = min(unions)[1]
        parts[place : place + 2] = [parts[place] + parts[place + 1]]


@settings(deadline=None, max_examples=200)
@given(
    word=st.text(alphabet="the", min_size=1, max_size=12) | st.text(alphabet="你好们", min_size=1, max_size=5)
)
def test_words_become_the_tokens_that_tiktoken_makes(kimi: Tokenizer, word: str) -> None:
    assert kimi.encode(word, parse_special=False) == lowest_rank_first(word.encode())


@settings(deadline=None)
@given(text=st.text(max_size=20))
def test_any_text_survives(kimi: Tokenizer, text: str) -> None:
    assert kimi.decode(kimi.encode(text, parse_special=False)) == text


def test_every_added_token_is_its_declared_id(kimi: Tokenizer) -> None:
    for token_id, entry in CONFIG["added_tokens_decoder"].items():
        assert kimi.encode(entry["content"], parse_special=True) == [int(token_id)]
        assert int(token_id) not in kimi.encode(entry["content"], parse_special=False)
    assert kimi.special_ids == {300, 301, 310}
    assert (kimi.bos_id, kimi.eos_ids) == (300, {301})


def test_han_characters_and_latin_letters_are_never_one_word(kimi: Tokenizer) -> None:
    ids = kimi.encode("the你好the 1234", parse_special=False)
    assert [kimi.token_bytes(i).decode() for i in ids] == ["the", "你好", "the", " ", "1", "2", "3", "4"]


def test_another_tokenizer_class_is_refused_by_name(tmp_path: Path) -> None:
    path = write(tmp_path)
    with pytest.raises(TokenizerError, match=r"QWenTokenizer.*never run"):
        load(path, tokenizer_class="QWenTokenizer")
    with pytest.raises(TokenizerError, match="does not name"):
        load(path, tokenizer_class=None)


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"", "lacks 256 of the 256"),
        (b"IQ==\n", "damaged in line 1"),
        (b"IQ== 0\nIQ== 1\n", "damaged in line 2"),
        (b"IQ== 0\nIg== x\n", "damaged in line 2"),
        (b"IQ== 0\n!!! 1\n", "damaged in line 2"),
        (b"IQ== -1\n", "damaged in line 1"),
        (b"IQ== 0\n", "lacks 255 of the 256"),
        (b"\x80\x04\x95", "damaged in line 1"),
    ],
)
def test_a_damaged_file_is_one_sentence(tmp_path: Path, content: bytes, expected: str) -> None:
    path = tmp_path / "tiktoken.model"
    path.write_bytes(content)
    with pytest.raises(TokenizerError, match=expected):
        load(path)
