"""Sentences are read back into the templates that they were made from."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import polib
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from app.sentence_book import LONGEST, SentenceBook, _Reader, split_places

SENTENCES = Path(__file__).resolve().parents[2] / "resources" / "languages" / "zh_CN" / "sentences.po"
WORDINGS = {
    entry.msgid: entry.msgstr for entry in polib.pofile(str(SENTENCES), encoding="utf-8").translated_entries()
}
CHINESE = SentenceBook(WORDINGS)
WITH_PLACES = sorted(english for english in WORDINGS if split_places(english)[1])
WHOLE = sorted(english for english in WORDINGS if not split_places(english)[1])


def letters(text: str) -> int:
    return sum(map(str.isalpha, text))


def explained(text: str) -> tuple[str, int]:
    said = _Reader(CHINESE._whole, CHINESE._by_word).read(text)
    return said.text, said.letters


# One template


def test_a_text_without_places_is_said_whole() -> None:
    assert SentenceBook({"It is empty.": "它是空的。"}).translated("It is empty.") == "它是空的。"


@pytest.mark.parametrize("text", ["", " ", "It is full.", "it is empty", "It is empty. ", "它是空的。", "\n"])
def test_a_text_that_fits_nothing_stays_itself(text: str) -> None:
    assert SentenceBook({"It is empty.": "它是空的。", "{0} is gone.": "{0} 没了。"}).translated(text) == text


def test_values_stand_in_the_order_of_the_other_language() -> None:
    small = SentenceBook({"{0} of {1} files are missing.": "{1} 个文件中缺少 {0} 个。"})
    assert small.translated("2 of 7 files are missing.") == "7 个文件中缺少 2 个。"


def test_a_value_may_stand_twice_or_be_empty() -> None:
    small = SentenceBook({"{0} is {1} here.": "{0}（{1}）：{0}。"})
    assert small.translated("a is  here.") == "a（）：a。"


def test_what_begins_a_sentence_with_a_capital_is_known_without() -> None:
    small = SentenceBook(
        {"{0} failed: {1}.": "{0}失败：{1}。", "loading {0}": "加载 {0}", "saving the list": "保存列表"}
    )
    assert small.translated("Saving the list failed: no.") == "保存列表失败：no。"
    assert small.translated("Loading a.gguf failed: no.") == "加载 a.gguf 失败：no。"


def test_a_value_that_a_template_made_is_said_too() -> None:
    small = SentenceBook(
        {
            "{0} can't be read: {1}.": "无法读取 {0}：{1}。",
            "line {0}, column {1}": "第 {0} 行第 {1} 列",
            "permission denied": "没有权限",
        }
    )
    assert small.translated("a.json can't be read: permission denied.") == "无法读取 a.json：没有权限。"
    assert small.translated("a.json can't be read: line 3, column 5.") == "无法读取 a.json：第 3 行第 5 列。"


def test_of_several_templates_the_one_that_explains_most_counts() -> None:
    small = SentenceBook({"{0} is {1}.": "少", "{0} is not {1}.": "多", "{0} {1}.": "无"})
    assert small.translated("a is not b.") == "多"


def test_two_sentences_and_the_things_of_a_list_are_read_each_for_itself() -> None:
    small = SentenceBook({"Close other programs.": "请关闭其他程序。", "{0} are gone": "{0} 个没了"})
    assert small.translated("Close other programs. Close other programs.") == "请关闭其他程序。" * 2
    assert small.translated("3 are gone; 4 are gone") == "3 个没了；4 个没了"
    assert small.translated("Who knows. Close other programs.") == "Who knows. 请关闭其他程序。"


def test_counted_things_are_read_one_by_one() -> None:
    small = SentenceBook({"Left out: {0}.": "略去了：{0}。", "of vision": "个视觉张量", "table": "个表"})
    assert small.translated("Left out: 12 of vision, 3 table.") == "略去了：12 个视觉张量，3 个表。"
    assert small.translated("Left out: (3, 4), 5 quux.") == "略去了：(3, 4), 5 quux。"


def test_brackets_of_a_value_belong_together() -> None:
    small = SentenceBook({"No room for {0} ({1} pages).": "没有空间容纳 {0}（{1} 页）。"})
    assert small.translated("No room for a (2).txt (3 pages).") == "没有空间容纳 a (2).txt（3 页）。"
    assert small.translated("No room for a (3 (of 4) pages).") == "没有空间容纳 a（3 (of 4) 页）。"


def test_a_quoted_name_is_left_as_it_is_though_it_reads_like_a_sentence() -> None:
    small = SentenceBook({"“{0}” is empty.": "“{0}” 是空的。", "{0} is gone": "{0} 没了"})
    assert small.translated("“love is gone” is empty.") == "“love is gone” 是空的。"


@pytest.mark.parametrize(
    ("value", "said"),
    [("a", "应为 a。"), ("the list", "应为列表。"), ("“a”", "应为 “a”。"), ("中文", "应为中文。")],
)
def test_a_space_stands_beside_latin_letters_alone(value: str, said: str) -> None:
    small = SentenceBook({"It should be {0}.": "应为 {0}。", "the list": "列表"})
    assert small.translated(f"It should be {value}.") == said


def test_spaces_within_a_value_stay() -> None:
    small = SentenceBook({"Not in {0}.": "不在 {0} 中。"})
    assert small.translated("Not in /home/我的 模型/a  b.") == "不在 /home/我的 模型/a  b 中。"


def test_braces_of_the_text_are_braces_and_those_of_a_value_mean_nothing() -> None:
    small = SentenceBook({"Use {{{0}}} there.": "请使用 {{{0}}}。", "Only {{}} here.": "只有 {{}}。"})
    assert small.translated("Use {a} there.") == "请使用 {a}。"
    assert small.translated("Use {{0} {1!r:>9}} there.") == "请使用 {{0} {1!r:>9}}。"
    assert small.translated("Only {} here.") == "只有 {}。"


def test_a_template_that_is_but_a_place_never_turns_in_a_circle() -> None:
    small = SentenceBook({"{0}": "“{0}”", "{0} {1}": "{1}{0}", "{0}. {1}": "{1}{0}"})
    assert small.translated("a b. c d. e f") == "a b. c d. e f"


# Those of the program


@pytest.mark.parametrize("english", WHOLE)
def test_every_whole_text_is_said(english: str) -> None:
    text = "".join(split_places(english)[0])
    assert CHINESE.translated(text) == "".join(split_places(WORDINGS[english])[0])


NAMES = st.sampled_from(
    [
        "config.json",
        "model-00001-of-00002.safetensors",
        "/home/ann/models/Qwen3-8B",
        "C:\\Models\\llama 3\\model.gguf",
        "model.layers.0.self_attn.q_proj.weight",
        "a file of mine.pdf",
        "Отчёт (2).txt",
        "模型 3",
        "{name}",
        "NVIDIA H200",
    ]
)
QUOTED = st.text(st.characters(exclude_categories=["C"]), max_size=12).map(lambda text: f"'{text}'")
NUMBERS = st.integers(0, 10**12).map(lambda n: f"{n:,}")
SIZES = st.tuples(st.integers(0, 9999), st.sampled_from(["MiB", "GB", "kB", "MB"])).map(
    lambda size: f"{size[0]:,} {size[1]}"
)
VALUES = st.one_of(NAMES, QUOTED, NUMBERS, SIZES, st.sampled_from(WHOLE).map(lambda text: text.rstrip(".")))


@settings(max_examples=300)
@given(st.data())
def test_what_a_template_made_is_said_by_it_or_by_one_that_explains_as_much(data: st.DataObject) -> None:
    english = data.draw(st.sampled_from(WITH_PLACES))
    parts, places = split_places(english)
    values = {place: data.draw(VALUES) for place in places}
    text = english.format(*[values[str(number)] for number in range(len(values))])
    said, found = explained(text)
    least = letters("".join(parts))
    assert found >= least
    is_clear = not any(part in value for part in parts if part for value in values.values())
    if found == least and is_clear:  # no value is explained, so they stand there as they are
        for value in values.values():
            assert value in said
    assert (said == text) == (found == 0)


@settings(max_examples=200)
@given(st.data())
def test_a_template_may_stand_in_the_place_of_another(data: st.DataObject) -> None:
    inner = data.draw(st.sampled_from(WITH_PLACES))
    value = inner.format(*[data.draw(NUMBERS) for _ in range(len(set(split_places(inner)[1])))]).rstrip(".")
    text = f"a.json can't be read: {value}."
    _, found = explained(text)
    assert found >= letters("can't be read")


@given(st.text())
@example("{0}")
@example("a {} b.")
@example("“”")
@example("is ; . . ")
def test_any_text_can_be_asked_for(text: str) -> None:
    said, found = explained(text)
    assert (said == text) or found > 0


# Bounds


def count_calls(text: str) -> int:
    """How many functions of the book it takes to read the text: a machine's speed has no part in it."""
    calls = 0

    def watch(frame, event: str, argument: object) -> None:
        nonlocal calls
        calls += event == "call" and frame.f_code.co_filename.endswith("sentence_book.py")

    sys.setprofile(watch)
    try:
        CHINESE.translated(text)
    finally:
        sys.setprofile(None)
    return calls


@pytest.mark.parametrize(
    "piece",
    [
        " ",
        ", ",
        "x ",
        "a. ",
        "is; ",
        " is ",
        "{0} of {1} ",
        "(a, not b) ",
        "“a” is ",
        ": ",
        "a: b c. ",
        "的 ",
    ],
)
@pytest.mark.parametrize("length", [LONGEST, 10_000])
def test_a_text_of_separators_is_read_in_bounded_steps(piece: str, length: int) -> None:
    text = (piece * length)[:length]
    assert count_calls(text) < 1_000_000


def test_a_very_long_text_comes_back_at_once() -> None:
    text = "The disk is full. " * 60_000
    assert CHINESE.translated(text) is text
    assert count_calls(text) < 5


def test_a_typical_notice_takes_less_than_five_milliseconds() -> None:
    text = (
        "Only 12 of 48 layers are in the card's memory at once: every token reads the weights from the "
        "computer's memory again, so answers are slower."
    )
    times = []
    for _ in range(9):
        start = time.thread_time()
        CHINESE.translated(text)
        times.append(time.thread_time() - start)
    assert sorted(times)[4] < 0.005
