"""Names that conversations get by themselves."""

from __future__ import annotations

import pytest

from app.language import Language, set_language
from app.titles import MAX_TITLE_LENGTH, branch_title


@pytest.mark.parametrize(
    ("title", "branch"),
    [
        ("Birds", "Birds（分支）"),
        ("Birds (branch)", "Birds（分支）"),
        ("Birds (branch 12)", "Birds（分支）"),
        ("鸟（分支 3）", "鸟（分支）"),
        ("鸟（分支）的歌", "鸟（分支）的歌（分支）"),
    ],
)
def test_a_branch_is_named_in_the_language_of_the_window_whatever_its_origin_was_named_in(
    in_chinese, title: str, branch: str
) -> None:
    assert branch_title(title, taken=()) == branch
    assert branch_title(title, taken={branch}) == branch.removesuffix("）") + " 2）"


def test_an_english_branch_of_a_chinese_one_has_one_ending() -> None:
    assert branch_title("鸟（分支 2）", taken={"鸟 (branch)"}) == "鸟 (branch 2)"


@pytest.mark.parametrize("language", [Language.ENGLISH, Language.CHINESE])
def test_the_name_of_a_branch_is_as_long_as_a_name_may_be(in_chinese, language: Language) -> None:
    set_language(language)
    title = branch_title("x" * MAX_TITLE_LENGTH, taken=())
    assert len(title) == MAX_TITLE_LENGTH
    assert branch_title(title, taken=()) == title, "the ending is found again"
