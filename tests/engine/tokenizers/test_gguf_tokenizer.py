"""Tokenizers as GGUF files carry them."""

from __future__ import annotations

import json
import unicodedata
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.errors import TokenizerError
from engine.tokenizers.gguf_tokenizer import GgufTokenizerData, TokenType
from engine.tokenizers.tokenizer import HfTokenizerFiles, Tokenizer, load_tokenizer

MODELS = Path(__file__).parents[2] / "models"


def load(metadata: dict[str, Any]) -> Tokenizer:
    return load_tokenizer(GgufTokenizerData.from_metadata(metadata))


def keys(**values: Any) -> dict[str, Any]:
    return {f"tokenizer.ggml.{name}": value for name, value in values.items()}


def converted(name: str, pre: str, *, padding: int = 3) -> dict[str, Any]:
    """The tokenizer.json of a tiny model as a converter writes it: one list of tokens, filled up."""
    document = json.loads((MODELS / name / "tokenizer.json").read_text(encoding="utf-8"))
    tokens = {token_id: (token, TokenType.NORMAL) for token, token_id in document["model"]["vocab"].items()}
    for added in document["added_tokens"]:
        tokens[added["id"]] = (added["content"], TokenType.CONTROL)
    for extra in range(padding):
        token_id = len(tokens)
        tokens[token_id] = (f"[PAD{token_id}]", TokenType.UNUSED)
        del extra
    ordered = [tokens[token_id] for token_id in range(len(tokens))]
    return keys(
        model="gpt2",
        pre=pre,
        tokens=[token for token, _ in ordered],
        token_type=[int(kind) for _, kind in ordered],
        merges=[" ".join(merge) for merge in document["model"]["merges"]],
        eos_token_id=495,
        padding_token_id=493,
    )


def sentencepiece(**changes: Any) -> dict[str, Any]:
    """A small SentencePiece vocabulary, best scores first, with two control tokens and one of the user's."""
    bytes_ = [f"<0x{byte:02X}>" for byte in range(256)]
    words = [
        "▁",
        "e",
        "t",
        "a",
        "h",
        "o",
        "l",
        "▁t",
        "he",
        "ll",
        "▁the",
        "llo",
        "hello",
        "▁a",
        "aa",
        "aaa",
        "ä",
    ]
    tokens = ["<unk>", "<s>", "</s>", *bytes_, *words, "<|turn|>"]
    types = [TokenType.UNKNOWN, TokenType.CONTROL, TokenType.CONTROL, *[TokenType.BYTE] * 256]
    types += [TokenType.NORMAL] * len(words) + [TokenType.USER_DEFINED]
    scores = [0.0] * 259 + [-float(rank) for rank in range(len(words))] + [0.0]
    values: dict[str, Any] = {
        "model": "llama",
        "pre": "default",
        "tokens": tokens,
        "token_type": [int(kind) for kind in types],
        "scores": scores,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "unknown_token_id": 0,
    }
    return keys(**{**values, **changes})


@pytest.mark.parametrize(
    ("name", "pre"), [("tiny-qwen2", "qwen2"), ("tiny-llama-rope3", "llama-bpe"), ("tiny-qwen3", "qwen2")]
)
@settings(deadline=None)
@given(text=st.text(max_size=20) | st.sampled_from(["e\u0301", "12345 678", "don't  \n\n x", "<|im_end|>"]))
def test_a_converted_tokenizer_gives_the_same_ids_as_the_original(name: str, pre: str, text: str) -> None:
    original = load_tokenizer(HfTokenizerFiles(MODELS / name / "tokenizer.json"))
    ours = load(converted(name, pre))
    for parse_special in (True, False):
        assert ours.encode(text, parse_special=parse_special) == original.encode(
            text, parse_special=parse_special
        )


def test_unused_tokens_are_ids_but_never_text() -> None:
    tokenizer = load(converted("tiny-qwen2", "qwen2"))
    assert tokenizer.vocab_size == 503
    assert tokenizer.decode([500, 501, 502]) == ""
    assert not {500, 501, 502} & set(tokenizer.encode("[PAD500][PAD501]", parse_special=True))


def test_token_types_decide_what_is_control() -> None:
    tokenizer = load(sentencepiece())
    turn = tokenizer.added_tokens["<|turn|>"]
    assert tokenizer.special_ids == {0, 1, 2}
    assert tokenizer.encode("<s><|turn|>", parse_special=True) == [1, turn]
    assert not {1, turn} & set(tokenizer.encode("<s><|turn|>", parse_special=False))
    assert tokenizer.decode([1, turn, 2]) == "<|turn|>"
    assert tokenizer.template_variables == {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}


@pytest.mark.parametrize(
    ("contents", "ids", "expected"),
    [
        (["<|im_end|>", "<|endoftext|>", "<|x|>"], {"eos": 0}, {0, 1}),
        (["<|end_of_text|>", "<|eot_id|>", "<|eom_id|>"], {"eos": 0}, {0, 1, 2}),
        (["<a>", "<b>", "<c>"], {"eos": 0, "eot": 1, "eom": 2}, {0, 1, 2}),
        (["<|end|>", "<|return|>", "<|call|>"], {"eos": 1}, {1, 2}),
        (["<|end|>", "<|user|>", "</s>"], {"eos": 2}, {0, 2}),
    ],
)
def test_end_tokens_are_the_named_ones_and_those_known_to_end_a_turn(
    contents: list[str], ids: dict[str, int], expected: set[int]
) -> None:
    """Llama 3 files name <|end_of_text|> alone, and the model ends its turns with <|eot_id|>."""
    metadata = converted("tiny-qwen2", "qwen2", padding=0)
    first = len(metadata["tokenizer.ggml.tokens"])
    metadata["tokenizer.ggml.tokens"][493] = "<|other|>"
    metadata["tokenizer.ggml.tokens"][495] = "<|other end|>"
    metadata["tokenizer.ggml.tokens"] += contents
    metadata["tokenizer.ggml.token_type"] += [int(TokenType.CONTROL)] * 3
    metadata |= {f"tokenizer.ggml.{name}_token_id": first + offset for name, offset in ids.items()}
    assert load(metadata).eos_ids == {first + offset for offset in expected}


def test_an_end_token_is_a_control_token_even_where_its_type_says_otherwise() -> None:
    metadata = converted("tiny-qwen2", "qwen2")
    metadata["tokenizer.ggml.token_type"][495] = int(TokenType.NORMAL)
    tokenizer = load(metadata)
    assert tokenizer.encode("<|im_end|>", parse_special=True) == [495]
    assert 495 not in tokenizer.encode("<|im_end|>", parse_special=False)


@pytest.mark.parametrize(
    ("pre", "told", "expected"),
    [("qwen2", None, False), ("llama-bpe", None, True), ("llama-bpe", False, False), ("qwen2", True, True)],
)
def test_the_begin_token_follows_the_file_and_then_the_kind(
    pre: str, told: bool | None, expected: bool
) -> None:
    metadata = converted("tiny-qwen2", pre) | keys(bos_token_id=494)
    if told is not None:
        metadata |= keys(add_bos_token=told)
    tokenizer = load(metadata)
    assert tokenizer.adds_bos is expected
    assert (tokenizer.encode("Hi", parse_special=False, add_bos=True)[0] == 494) is expected


def test_there_is_no_begin_token_where_the_file_names_none() -> None:
    tokenizer = load(converted("tiny-qwen2", "llama-bpe"))
    assert (tokenizer.bos_id, tokenizer.adds_bos) == (None, False)


def best_pair_first(text: str, scores: dict[str, float]) -> list[str]:
    """SentencePiece BPE as it is defined: join the neighbours with the best union, the leftmost of equals."""
    parts = list(text)
    while True:
        unions = [(scores[a + b], -i) for i, (a, b) in enumerate(pairwise(parts)) if a + b in scores]
        if not unions:
            return parts
        place = -max(unions)[1]
        parts[place : place + 2] = [parts[place] + parts[place + 1]]


@settings(deadline=None, max_examples=300)
@given(text=st.text(alphabet="thelo aä", max_size=24))
def test_scores_act_as_in_sentencepiece(text: str) -> None:
    metadata = sentencepiece()
    tokens, values = metadata["tokenizer.ggml.tokens"], metadata["tokenizer.ggml.scores"]
    scores = dict(zip(tokens[259:-1], values[259:-1], strict=True))
    expected = [tokens.index(part) for part in best_pair_first("▁" + text.replace(" ", "▁"), scores)]
    assert load(metadata).encode(text, parse_special=False) == (expected if text else [])


@settings(deadline=None)
@given(text=st.text(max_size=16))
def test_sentencepiece_text_survives(text: str) -> None:
    tokenizer = load(sentencepiece())
    assert tokenizer.decode(tokenizer.encode(text, parse_special=False)) == text.replace("▁", " ")


@pytest.mark.parametrize(("told", "first"), [(None, "▁"), (True, "▁"), (False, "the")])
def test_the_space_before_a_text_follows_the_file(told: bool | None, first: str) -> None:
    tokenizer = load(sentencepiece() if told is None else sentencepiece(add_space_prefix=told))
    ids = tokenizer.encode("the", parse_special=False)
    assert tokenizer.token_bytes(ids[0]).startswith(first[0].replace("▁", " ").encode())
    assert tokenizer.decode(ids) == "the"
    assert tokenizer.decode(tokenizer.encode(" the", parse_special=False)) == " the"


def test_repeated_spaces_are_dropped_only_where_the_file_says_so() -> None:
    def back(tokenizer: Tokenizer) -> str:
        return tokenizer.decode(tokenizer.encode("  the   hello ", parse_special=False))

    assert back(load(sentencepiece(remove_extra_whitespaces=True))) == "the hello"
    assert back(load(sentencepiece(remove_extra_whitespaces=False))) == "  the   hello "


def test_a_control_token_is_not_what_its_parts_merge_to() -> None:
    """The merges follow from the vocabulary, and a control token stands in it like a word."""
    metadata = sentencepiece()
    metadata["tokenizer.ggml.tokens"] += ["th", "the"]
    metadata["tokenizer.ggml.token_type"] += [int(TokenType.NORMAL), int(TokenType.CONTROL)]
    metadata["tokenizer.ggml.scores"] += [-100.0, 0.0]
    tokenizer = load(metadata)
    assert tokenizer.added_tokens["the"] not in tokenizer.encode("the a the", parse_special=False)


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "nothing": ({}, "holds no tokenizer"),
    "unknown kind": (keys(model="bert", tokens=["a"]), "'bert'"),
    "kind no text": (keys(model=7), "wrong type"),
    "unknown way of splitting": (
        keys(model="gpt2", pre="from-the-future", tokens=["a"]),
        "'from-the-future'",
    ),
    "no way of splitting": (keys(model="gpt2", tokens=["a"]), "tokenizer.ggml.pre is missing"),
    "no tokens": (keys(model="gpt2", pre="qwen2"), "a vocabulary of 0 tokens"),
    "tokens no text": (keys(model="gpt2", pre="qwen2", tokens=["a", 1]), "tokenizer.ggml.tokens holds int"),
    "no merges": (keys(model="gpt2", pre="qwen2", tokens=["a"]), "no merges"),
    "merge without a space": (
        keys(model="gpt2", pre="qwen2", tokens=["a"], merges=["aa"]),
        "'aa' among its merges",
    ),
    "merge of no token": (
        keys(model="gpt2", pre="qwen2", tokens=["a"], merges=["a a"]),
        "merges 'a' and 'a'",
    ),
    "token twice": (
        keys(model="gpt2", pre="qwen2", tokens=["a", "a"], merges=["a a"]),
        "'a' twice (ids 0 and 1)",
    ),
    "types missing": (
        keys(model="gpt2", pre="qwen2", tokens=["a", "b"], token_type=[1]),
        "token_type: 1 for 2",
    ),
    "end token too large": (
        keys(model="gpt2", pre="qwen2", tokens=["a"], eos_token_id=1),
        "eos_token_id is 1",
    ),
    "no scores": (keys(model="llama", tokens=["a"]), "no scores"),
    "scores missing": (keys(model="llama", tokens=["a", "b"], scores=[1.0]), "scores: 1 for 2"),
    "endless token": (keys(model="llama", tokens=["a" * 5000], scores=[1.0]), "5,000 characters"),
}


@pytest.mark.parametrize("case", BAD)
def test_a_tokenizer_that_makes_no_sense_is_one_sentence(case: str) -> None:
    metadata, expected = BAD[case]
    with pytest.raises(TokenizerError) as caught:
        load(metadata)
    assert expected in caught.value.message
    assert caught.value.hint
    assert "\n" not in str(caught.value)


@pytest.fixture(scope="module")
def smollm(starter_model_path: Path) -> Tokenizer:
    gguf = pytest.importorskip("gguf")
    fields = gguf.GGUFReader(starter_model_path).fields
    wanted = [name for name in fields if name.startswith("tokenizer.ggml.")]
    return load({name: fields[name].contents() for name in wanted})


@pytest.mark.real
def test_smollm_digits_stand_alone(smollm: Tokenizer) -> None:
    ids = smollm.encode("In 2024, 365 days", parse_special=False)
    assert [smollm.token_bytes(i) for i in ids] == [
        b"In", b" ", b"2", b"0", b"2", b"4", b",", b" ", b"3", b"6", b"5", b" days",
    ]  # fmt: skip


@pytest.mark.real
def test_smollm_ids_are_the_published_ones(smollm: Tokenizer) -> None:
    assert smollm.vocab_size == 49152
    assert smollm.encode("Hello world", parse_special=False) == [19556, 905]
    assert smollm.encode("<|im_start|>user\nHi<|im_end|>\n", parse_special=True) == [
        1,
        4093,
        198,
        26843,
        2,
        198,
    ]
    assert smollm.added_tokens["<|endoftext|>"] == 0
    assert len(smollm.added_tokens) == 17
    assert smollm.eos_ids == {0, 2}
    assert not smollm.adds_bos


@pytest.mark.real
@pytest.mark.parametrize(
    "text", ["👩\u200d👩\u200d👧 😀", "你好，世界", "cafe\u0301 ñ", "  def f(x):\n\treturn x**2", "a\u00a0b"]
)
def test_smollm_text_survives(smollm: Tokenizer, text: str) -> None:
    ids = smollm.encode(text, parse_special=False)
    assert smollm.decode(ids) == text
    assert unicodedata.is_normalized("NFC", text) or smollm.decode(ids) != unicodedata.normalize("NFC", text)
