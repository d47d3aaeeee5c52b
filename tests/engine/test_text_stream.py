"""Text that comes token by token is final, and together it is what decoding all tokens gives."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.errors import SettingError
from engine.text_stream import StopMatcher, TextStream
from engine.tokenizers.token_pieces import PieceDecoder, byte_characters
from engine.tokenizers.tokenizer import HfTokenizerFiles, Tokenizer, load_tokenizer
from engine.tokenizers.tokenizer_definition import AddedToken, BytePairModel, MergeList, TokenizerDefinition

MODEL = Path(__file__).parents[1] / "models" / "tiny-qwen2"


@pytest.fixture(scope="module")
def qwen() -> Tokenizer:
    config = json.loads((MODEL / "tokenizer_config.json").read_text(encoding="utf-8"))
    return load_tokenizer(HfTokenizerFiles(MODEL / "tokenizer.json", config=config))


def byte_tokenizer(stripped_spaces: int) -> Tokenizer:
    """Id n is the byte n; 256 is a control token, 257 an added one that is shown, 258 "▁▁" (two spaces)."""
    vocab = {f"<0x{byte:02X}>": byte for byte in range(256)} | {"▁▁": 258}
    return Tokenizer(
        TokenizerDefinition(
            model=BytePairModel(vocab, MergeList(), byte_fallback=True),
            normalizer=None,
            pre_tokenizer=None,
            decoder=PieceDecoder(
                byte_fallback=True, replacements=(("▁", " "),), stripped_spaces=stripped_spaces
            ),
            added_tokens=(AddedToken(256, "<end>", special=True), AddedToken(257, "<think>", special=False)),
            size=259,
        )
    )


BYTES = {stripped: byte_tokenizer(stripped) for stripped in (0, 1, 2)}


def streamed(tokenizer: Tokenizer, ids: Sequence[int], stop: Sequence[str] = ()) -> tuple[list[str], bool]:
    stream = TextStream(tokenizer, stop)
    pieces = [stream.push(token_id) for token_id in ids]
    pieces.append(stream.finish())
    assert stream.finish() == ""
    return pieces, stream.stopped


def cut_at_first(text: str, stop: Sequence[str]) -> tuple[str, bool]:
    starts = [text.index(string) for string in stop if string in text]
    return (text[: min(starts)], True) if starts else (text, False)


@settings(deadline=None)
@given(ids=st.lists(st.integers(0, 502), max_size=40))
def test_any_ids_give_the_text_of_decoding_them_all(qwen: Tokenizer, ids: list[int]) -> None:
    assert "".join(streamed(qwen, ids)[0]) == qwen.decode(ids)


@settings(deadline=None, max_examples=200)
@given(
    stripped=st.sampled_from([0, 1, 2]),
    ids=st.lists(
        st.sampled_from([32, 0x61, 0xC3, 0xA9, 0xE4, 0xBD, 0xA0, 0xF0, 0x9F, 0xFF, 256, 257, 258]),
        max_size=14,
    ),
)
def test_any_bytes_give_the_text_of_decoding_them_all(stripped: int, ids: list[int]) -> None:
    tokenizer = BYTES[stripped]
    assert "".join(streamed(tokenizer, ids)[0]) == tokenizer.decode(ids)


@settings(deadline=None)
@given(text=st.text(max_size=12))
def test_half_a_character_is_never_shown(text: str) -> None:
    """Every byte is a token here: a character comes with its last byte, and all of it."""
    ids = list(text.encode())
    pieces, _ = streamed(BYTES[0], ids)
    expected = [
        character if index == size - 1 else ""
        for character in text
        for size in [len(character.encode())]
        for index in range(size)
    ]
    assert pieces == [*expected, ""]


@pytest.mark.parametrize("text", ["😀👩\u200d👩\u200d👧中ñ", "e\u0301", "🇩🇪", "👍🏽"])
def test_emoji_split_over_tokens_come_whole(qwen: Tokenizer, text: str) -> None:
    ids = qwen.encode(text, parse_special=False)
    pieces, _ = streamed(qwen, ids)
    assert "".join(pieces) == qwen.decode(ids)
    assert "\ufffd" not in "".join(pieces)
    assert len([piece for piece in pieces if piece]) < len(ids)


def test_bytes_that_can_become_nothing_are_replaced_at_once_and_others_at_the_end() -> None:
    stream = TextStream(BYTES[0])
    assert stream.push(0xFF) == "\ufffd"
    assert stream.push(0xE4) == ""
    assert stream.push(0x61) == "\ufffda"
    assert stream.push(0xF0) == ""
    assert stream.push(0x9F) == ""
    assert stream.finish() == "\ufffd"


def test_indentation_before_punctuation_is_kept(qwen: Tokenizer) -> None:
    """Tidying up spaces, as other programs do, loses the full stop's indent."""
    ids = [*qwen.encode("    ", parse_special=False), *qwen.encode(".", parse_special=False)]
    assert "".join(streamed(qwen, ids)[0]) == "    ."


@pytest.mark.parametrize(("stripped", "expected"), [(0, "  a  "), (1, " a  "), (2, "a  ")])
def test_only_the_first_spaces_of_a_text_are_dropped(stripped: int, expected: str) -> None:
    for ids in ([32, 32, 0x61, 32, 32], [258, 0x61, 258], [256, 32, 256, 32, 0x61, 258]):
        assert "".join(streamed(BYTES[stripped], ids)[0]) == expected


def test_control_tokens_are_left_out_and_others_shown() -> None:
    assert streamed(BYTES[0], [257, 0x61, 256])[0] == ["<think>", "a", "", ""]


def test_a_control_token_in_the_middle_of_a_character_does_not_break_it() -> None:
    assert "".join(streamed(BYTES[0], [0xC3, 256, 0xA9])[0]) == "é"


def test_a_long_answer_is_never_decoded_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(Tokenizer, "decode")
    stream = TextStream(BYTES[0], stop=["never"])
    assert all(stream.push(0x61) == "a" for _ in range(5_000))


WORDS = st.text(alphabet="abé", max_size=10)
STOPS = st.lists(st.text(alphabet="abé", min_size=1, max_size=4), max_size=4)


@settings(deadline=None, max_examples=400)
@given(text=WORDS, stop=STOPS)
def test_the_text_ends_before_the_stop_string_that_begins_first(text: str, stop: list[str]) -> None:
    pieces, stopped = streamed(BYTES[0], list(text.encode()), stop)
    assert ("".join(pieces), stopped) == cut_at_first(text, stop)


@settings(deadline=None, max_examples=400)
@given(parts=st.lists(WORDS, max_size=6), stop=STOPS)
def test_how_text_is_cut_makes_no_difference(parts: list[str], stop: list[str]) -> None:
    matcher = StopMatcher(stop)
    shown, stopped = "", False
    for part in parts:
        if not stopped:
            piece, stopped = matcher.push(part)
            shown += piece
    if not stopped:
        piece, stopped = matcher.finish()
        shown += piece
    assert (shown, stopped) == cut_at_first("".join(parts), stop)


@settings(deadline=None, max_examples=300)
@given(text=WORDS, stop=STOPS)
def test_what_is_held_back_begins_a_stop_string(text: str, stop: list[str]) -> None:
    stream = TextStream(BYTES[0], stop)
    shown = ""
    for end, character in enumerate(text, 1):
        shown += "".join(stream.push(byte) for byte in character.encode())
        if stream.stopped:
            return
        held = text[len(shown) : end]
        assert not held or any(string.startswith(held) and string != held for string in stop)


def test_a_stop_string_over_several_tokens_is_never_shown() -> None:
    stream = TextStream(BYTES[0], stop=["\nUser:"])
    shown = [stream.push(byte) for byte in b"Hi\nUser: no"]
    assert "".join(shown) == "Hi"
    assert stream.stopped
    assert stream.finish() == ""
    assert stream.push(0x61) == ""


def test_what_only_looked_like_a_stop_string_is_shown_after_all() -> None:
    stream = TextStream(BYTES[0], stop=["\nUser:"])
    assert [stream.push(byte) for byte in b"a\nUsX"] == ["a", "", "", "", "\nUsX"]
    assert [stream.push(byte) for byte in b"\nUs"] == ["", "", ""]
    assert stream.finish() == "\nUs"
    assert not stream.stopped


def test_a_longer_stop_string_that_began_earlier_goes_first() -> None:
    for text, expected in (("xabc", "x"), ("xab.", "xa")):
        pieces, stopped = streamed(BYTES[0], list(text.encode()), ["abc", "b"])
        assert ("".join(pieces), stopped) == (expected, True)


def test_a_stop_string_is_met_when_the_answer_ends_while_a_longer_one_was_hoped_for() -> None:
    pieces, stopped = streamed(BYTES[0], list(b"xab"), ["abc", "b"])
    assert ("".join(pieces), stopped) == ("xa", True)


def test_an_empty_stop_string_is_refused(qwen: Tokenizer) -> None:
    with pytest.raises(SettingError, match="empty"):
        TextStream(qwen, ["x", ""])


def test_byte_level_writing_is_one_printable_character_for_every_byte() -> None:
    characters = byte_characters()
    assert sorted(characters) == list(range(256))
    assert len(set(characters.values())) == 256
    assert all(character.isprintable() and not character.isspace() for character in characters.values())
    assert (characters[0x20], characters[0x0A], characters[0x41]) == ("Ġ", "Ċ", "A")
