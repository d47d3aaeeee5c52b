"""What the files of a folder say about a tokenizer, and what is said of files that make no sense."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from engine.errors import TokenizerError
from engine.tokenizers.hf_tokenizer import HfTokenizerFiles
from engine.tokenizers.tokenizer import Tokenizer, load_tokenizer

MODEL = Path(__file__).parents[2] / "models" / "tiny-qwen2"
END, START, TEXT_END = 495, 494, 493  # <|im_end|>, <|im_start|>, <|endoftext|>


@pytest.fixture
def document() -> dict[str, Any]:
    document: dict[str, Any] = json.loads((MODEL / "tokenizer.json").read_text(encoding="utf-8"))
    return document


def load(
    folder: Path, document: dict[str, Any], config: dict[str, Any], special: dict[str, Any] | None = None
) -> Tokenizer:
    path = folder / "tokenizer.json"
    path.write_text(json.dumps(document), encoding="utf-8")
    return load_tokenizer(HfTokenizerFiles(path, config=config, special_tokens_map=special or {}))


@pytest.mark.parametrize(
    ("config", "special", "expected"),
    [
        ({"eos_token": "<|im_end|>"}, {}, {END}),
        ({"eos_token": {"content": "<|im_end|>", "lstrip": False}}, {}, {END}),
        ({}, {"eos_token": {"content": "<|endoftext|>"}}, {TEXT_END}),
        ({"eos_token": "<|im_end|>"}, {"eos_token": "<|endoftext|>"}, {END}),
        ({"eos_token": None}, {"eos_token": "<|endoftext|>"}, set()),
        ({"eos_token": ""}, {}, set()),
        ({"eos_token": 7}, {}, set()),
        ({}, {}, set()),
    ],
)
def test_the_end_token_may_be_text_or_an_object_and_the_config_has_the_last_word(
    tmp_path: Path,
    document: dict[str, Any],
    config: dict[str, Any],
    special: dict[str, Any],
    expected: set[int],
) -> None:
    assert load(tmp_path, document, config, special).eos_ids == expected


def test_an_end_token_that_the_vocabulary_lacks_is_said(tmp_path: Path, document: dict[str, Any]) -> None:
    tokenizer = load(tmp_path, document, {"eos_token": "</done>"})
    assert tokenizer.eos_ids == frozenset()
    assert [notice.code for notice in tokenizer.notices] == ["tokenizer-eos-missing"]
    assert "</done>" in tokenizer.notices[0].message


def test_template_variables_are_the_named_tokens(tmp_path: Path, document: dict[str, Any]) -> None:
    config = {
        "bos_token": None,
        "eos_token": {"content": "<|im_end|>"},
        "pad_token": "<|endoftext|>",
        "extra_special_tokens": {"image_token": "<|image_pad|>"},
        "additional_special_tokens": ["<|im_start|>"],
    }
    assert load(tmp_path, document, config, {"unk_token": "<|endoftext|>"}).template_variables == {
        "eos_token": "<|im_end|>",
        "pad_token": "<|endoftext|>",
        "unk_token": "<|endoftext|>",
        "image_token": "<|image_pad|>",
    }


def test_the_config_adds_tokens_and_changes_flags(tmp_path: Path, document: dict[str, Any]) -> None:
    decoder = {
        "600": {"content": "<tool>", "special": False},
        "495": {"content": "<|im_end|>", "special": False, "rstrip": True},
    }
    tokenizer = load(tmp_path, document, {"added_tokens_decoder": decoder})
    assert tokenizer.encode("<tool><|im_end|>  x", parse_special=True)[:2] == [600, END]
    assert tokenizer.encode("<tool><|im_end|>  x", parse_special=True)[2:] == tokenizer.encode(
        "x", parse_special=False
    )
    assert END not in tokenizer.special_ids
    assert tokenizer.notices == ()


@pytest.mark.parametrize("entry", [{"494": {"content": "<|im_end|>"}}, {"494": {"content": "<other>"}}])
def test_contradicting_ids_follow_the_vocabulary_and_are_said(
    tmp_path: Path, document: dict[str, Any], entry: dict[str, Any]
) -> None:
    tokenizer = load(tmp_path, document, {"added_tokens_decoder": entry})
    assert tokenizer.added_tokens["<|im_end|>"] == END
    assert tokenizer.added_tokens["<|im_start|>"] == START
    assert "<other>" not in tokenizer.added_tokens
    assert [notice.code for notice in tokenizer.notices] == ["tokenizer-conflict"]


def test_a_named_end_token_is_a_control_token_whatever_its_flag(
    tmp_path: Path, document: dict[str, Any]
) -> None:
    for token in document["added_tokens"]:
        token["special"] = False
    tokenizer = load(
        tmp_path, document, {"eos_token": "<|im_end|>", "additional_special_tokens": ["<|im_start|>"]}
    )
    assert tokenizer.special_ids == {END, START}


def test_a_named_end_token_of_the_base_vocabulary_is_a_control_token(
    tmp_path: Path, document: dict[str, Any]
) -> None:
    document["model"]["vocab"]["</s>"] = 700
    tokenizer = load(tmp_path, document, {"eos_token": "</s>"})
    assert tokenizer.encode("</s>", parse_special=True) == [700]
    assert 700 not in tokenizer.encode("</s>", parse_special=False)
    assert tokenizer.special_ids >= {700}


def test_a_word_named_for_padding_stays_a_word(tmp_path: Path, document: dict[str, Any]) -> None:
    tokenizer = load(tmp_path, document, {"pad_token": "!", "unk_token": "!"})
    assert tokenizer.decode(tokenizer.encode("Hi!", parse_special=False)) == "Hi!"
    assert "!" not in tokenizer.added_tokens


def test_both_ways_of_writing_merges_are_read(tmp_path: Path, document: dict[str, Any]) -> None:
    text = "The library is straight ahead, then left."
    ids = load(tmp_path, document, {}).encode(text, parse_special=False)
    merges = document["model"]["merges"]
    assert isinstance(merges[0], list)
    document["model"]["merges"] = [" ".join(merge) for merge in merges]
    assert load(tmp_path, document, {}).encode(text, parse_special=False) == ids


BAD = {
    "no model": (lambda d: d.pop("model"), "holds no vocabulary"),
    "no vocabulary": (lambda d: d["model"].pop("vocab"), "holds no vocabulary"),
    "empty vocabulary": (lambda d: d["model"].update(vocab={}), "empty vocabulary"),
    "other model": (lambda d: d["model"].update(type="WordPiece"), "WordPiece"),
    "unigram": (lambda d: d["model"].update(type="Unigram", vocab=[["a", 0.0]]), "Unigram"),
    "affixes": (lambda d: d["model"].update(end_of_word_suffix="</w>"), "word affixes"),
    "negative id": (lambda d: d["model"]["vocab"].update({"zz": -1}), "the id -1"),
    "huge id": (lambda d: d["model"]["vocab"].update({"zz": 2**70}), "the id 118"),
    "text for an id": (lambda d: d["model"]["vocab"].update({"zz": "7"}), "the id 7"),
    "id given twice": (lambda d: d["model"]["vocab"].update({"zz": 1}), "two tokens the same id"),
    "merge of nothing": (lambda d: d["model"]["merges"].append(["q", "qqq"]), "'q' and 'qqq'"),
    "merge of three": (lambda d: d["model"]["merges"].append(["a", "b", "c"]), "among its merges"),
    "merge as a number": (lambda d: d["model"]["merges"].append(3), "among its merges"),
    "unknown token missing": (lambda d: d["model"].update(unk_token="<none>"), "<none>"),
    "unknown token a number": (lambda d: d["model"].update(unk_token=3), "unk_token"),
    "added tokens no list": (lambda d: d.update(added_tokens={"a": 1}), "should be a list"),
    "added token without content": (lambda d: d["added_tokens"].append({"id": 600}), "without content"),
    "empty added token": (lambda d: d["added_tokens"].append({"id": 600, "content": ""}), "without content"),
    "added token without id": (lambda d: d["added_tokens"].append({"content": "<a>"}), "the id None"),
    "added token twice": (lambda d: d["added_tokens"].append({"id": 600, "content": "<|im_end|>"}), "twice"),
    "added id twice": (lambda d: d["added_tokens"].append({"id": 495, "content": "<a>"}), "twice"),
    "no decoder": (lambda d: d.update(decoder=None), "how tokens become text"),
    "other decoder": (lambda d: d.update(decoder={"type": "CTC"}), "CTC"),
    "normalizer no object": (lambda d: d.update(normalizer=[1]), "normalizer should be an object"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_a_file_that_makes_no_sense_is_one_sentence(
    tmp_path: Path, document: dict[str, Any], case: str
) -> None:
    damage, expected = BAD[case]
    damage(document)
    with pytest.raises(TokenizerError) as caught:
        load(tmp_path, document, {})
    assert expected in caught.value.message
    assert caught.value.message.startswith("tokenizer.json")
    assert caught.value.hint
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"", "not valid JSON"),
        (b"{", "not valid JSON"),
        (b"[]", "should hold a JSON object, not a list"),
        (b'{"model": {}} x', "not valid JSON"),
        (b'{"model": 1, "model": 2}', "the key 'model' twice"),
        (b"\xff\xfe{}", "not UTF-8"),
        (b'{"model": ' + b"[" * 200_000, "nested too deeply"),
        (b'{"model": ' + b"9" * 5000 + b"}", "not valid JSON"),
        (b'{"model": {"vocab": {"a": 0}, "merges": [["a" "b"]]}}', "not valid JSON"),
        (b'{"model": {"vocab": {"a": 0}, "merges": ["a b",]}}', "not valid JSON"),
    ],
    ids=[
        "empty",
        "cut",
        "list",
        "more",
        "key twice",
        "not UTF-8",
        "deep",
        "digits",
        "no comma",
        "trailing comma",
    ],
)
def test_a_damaged_file_is_one_sentence(tmp_path: Path, content: bytes, expected: str) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_bytes(content)
    with pytest.raises(TokenizerError) as caught:
        load_tokenizer(HfTokenizerFiles(path))
    assert expected in caught.value.message
    assert "tokenizer.json" in caught.value.message


def test_missing_files_are_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(TokenizerError, match=r"tokenizer\.json does not exist"):
        load_tokenizer(HfTokenizerFiles(tmp_path / "tokenizer.json"))
    with pytest.raises(TokenizerError, match=r"tokenizer\.json is missing"):
        load_tokenizer(HfTokenizerFiles(None))


def test_a_huge_file_is_refused_unread(tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    with path.open("wb") as handle:
        handle.truncate(10 * 2**30)  # sparse
    with pytest.raises(TokenizerError, match="far too large"):
        load_tokenizer(HfTokenizerFiles(path))


@pytest.mark.parametrize("name", ["模型 测试", "Željko 山月 123", "🙂 model "])
def test_a_folder_of_any_name_is_read(tmp_path: Path, document: dict[str, Any], name: str) -> None:
    folder = tmp_path / name
    folder.mkdir()
    tokenizer = load(folder, document, {})
    assert tokenizer.decode(tokenizer.encode("Hi 你好", parse_special=False)) == "Hi 你好"
