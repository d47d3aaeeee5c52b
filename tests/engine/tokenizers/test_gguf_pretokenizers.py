"""What the named ways of splitting text do, as the published tokenizers do it."""

from __future__ import annotations

import json

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.tokenizers.gguf_pretokenizers import PRE_TOKENIZERS
from engine.tokenizers.token_pieces import PieceDecoder

BYTES = PieceDecoder(byte_level=True)


def words(pre: str, text: str) -> list[str]:
    """The words that `text` is split into, in ordinary writing. Words may break inside a character."""
    chosen = PRE_TOKENIZERS[pre]
    document = {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": [], "normalizer": None,
        "pre_tokenizer": chosen.component, "post_processor": None, "decoder": None,
        "model": {"type": "BPE", "vocab": {}, "merges": []},
    }  # fmt: skip
    pre_tokenizer = tokenizers.Tokenizer.from_str(json.dumps(document)).pre_tokenizer
    return [BYTES.to_bytes(word).decode("utf-8") for word, _ in pre_tokenizer.pre_tokenize_str(text)]


NUMBERS = {
    "gpt-2": ["x", " 12345"],
    "smollm": ["x", " ", "1", "2", "3", "4", "5"],
    "starcoder": ["x", " ", "1", "2", "3", "4", "5"],
    "refact": ["x", " ", "1", "2", "3", "4", "5"],
    "llama-bpe": ["x", " ", "123", "45"],
    "llama3": ["x", " ", "123", "45"],
    "dbrx": ["x", " ", "123", "45"],
    "qwen2": ["x", " ", "1", "2", "3", "4", "5"],
    "deepseek-r1-qwen": ["x", " ", "1", "2", "3", "4", "5"],
    "qwen35": ["x", " ", "1", "2", "3", "4", "5"],
    "tekken": ["x", " ", "1", "2", "3", "4", "5"],
    "gpt-4o": ["x", " ", "123", "45"],
    "seed-coder": ["x", " ", "1", "2", "3", "4", "5"],
    "deepseek-llm": ["x", " ", "1", "2", "3", "4", "5"],
    "deepseek-coder": ["x", " ", "1", "2", "3", "4", "5"],
    "deepseek-v3": ["x", " ", "123", "45"],
    "default": ["x", " ", "123", "45"],
}


@pytest.mark.parametrize("pre", NUMBERS)
def test_numbers_are_cut_as_in_training(pre: str) -> None:
    assert words(pre, "x 12345") == NUMBERS[pre]


@pytest.mark.parametrize("pre", sorted(PRE_TOKENIZERS))
@settings(deadline=None, max_examples=40)
@given(text=st.text(max_size=20) | st.text(alphabet="aB1 .\n\t'sé你", max_size=20))
def test_every_way_keeps_all_of_the_text(pre: str, text: str) -> None:
    assert "".join(words(pre, text)) == text


@pytest.mark.parametrize(
    ("pre", "text", "expected"),
    [
        ("gpt-2", "we're WE'RE", ["we", "'re", " WE", "'", "RE"]),
        ("llama-bpe", "we're WE'RE", ["we", "'re", " WE", "'RE"]),
        ("qwen2", "a  b\n\n  c", ["a", " ", " b", "\n\n", " ", " c"]),
        ("qwen2", "x=(1)", ["x", "=(", "1", ")"]),
        ("tekken", "camelCase HTTPServer", ["camel", "Case", " HTTPServer"]),
        ("tekken", "it's", ["it", "'s"]),
        ("gpt-4o", "it's fooBar's", ["it's", " foo", "Bar's"]),
        ("deepseek-coder", "int x;\n", ["int", " x", ";", "\n"]),
        # Its class of symbols has ":-~" in it, and so the plain letters too.
        ("deepseek-llm", "Größe 你好 !?", ["Gr", "öß", "e", " ", "你好", " !?"]),
        ("deepseek-v3", "#include 你好かな x", ["#include", " ", "你好かな", " x"]),
        ("seed-coder", "}\n\nx", ["}", "\n\n", "x"]),
        ("qwen2", "}\n\nx", ["}\n\n", "x"]),
        ("qwen35", "นี้", ["นี้"]),
        ("default", "$1,000+x", ["$", "1", ",", "000", "+", "x"]),
    ],
)
def test_words_are_cut_as_in_training(pre: str, text: str, expected: list[str]) -> None:
    assert words(pre, text) == expected


def test_only_the_qwen_vocabularies_compose_characters() -> None:
    assert {pre for pre, way in PRE_TOKENIZERS.items() if way.nfc} == {
        "qwen2",
        "deepseek-r1-qwen",
        "f2llmv2",
        "qwen35",
    }
