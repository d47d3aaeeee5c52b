"""Finished English sentences, said in another language by the templates that they were made from."""

from __future__ import annotations

import pytest

from app.sentence_book import SentenceBook

BOOK = SentenceBook(
    {
        "{0} failed: {1}.": "{0}失败：{1}。",
        "{0} failed: the disk is full.": "{0}失败：磁盘已满。",
        "saving the message": "保存消息",
        "importing {0}": "导入 {0}",
        "{0} is still being loaded.": "{0} 还在加载。",
        "the model": "模型",
        "Layer {0} is missing.": "缺少第{0}层。",
    }
)


@pytest.mark.parametrize(
    ("english", "chinese"),
    [
        ("Saving the message failed: the disk is full.", "保存消息失败：磁盘已满。"),
        ("Importing chats.json failed: no room.", "导入 chats.json 失败：no room。"),
        ("Qwen3 is still being loaded.", "Qwen3 还在加载。"),
        ("The model is still being loaded.", "模型还在加载。"),
        ("Layer 3 is missing.", "缺少第 3 层。"),
        ("Nobody wrote this.", "Nobody wrote this."),
        ("", ""),
    ],
)
def test_a_sentence_is_read_by_the_templates_it_was_made_from_and_spaced_as_the_language_is(
    english: str, chinese: str
) -> None:
    assert BOOK.translated(english) == chinese
