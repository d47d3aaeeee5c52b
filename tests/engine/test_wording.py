"""Numbers as sentences give them."""

from __future__ import annotations

import ast
import itertools
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from engine.wording import format_tokens

ROOT = Path(__file__).resolve().parents[2]
FILES = sorted(path for folder in ("app", "engine") for path in (ROOT / folder).rglob("*.py"))
HELPER = ROOT / "engine" / "wording.py"


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 tokens"),
        (1, "1 token"),
        (2, "2 tokens"),
        (999, "999 tokens"),
        (1000, "1,000 tokens"),
        (131_072, "131,072 tokens"),
    ],
)
def test_tokens_are_counted_as_people_write_numbers(count: int, text: str) -> None:
    assert format_tokens(count) == text


def counted_by_hand(path: Path) -> Iterator[str]:
    """Where a sentence puts a number before the word "token" without the helper."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        parts = node.values if isinstance(node, ast.JoinedStr) else []
        for value, words in itertools.pairwise(parts):
            is_count = isinstance(value, ast.FormattedValue) and isinstance(words, ast.Constant)
            if is_count and re.match(r" (new )?tokens?\b", str(words.value)):
                yield f"{path.relative_to(ROOT)}:{words.lineno}"


def test_every_number_of_tokens_in_a_sentence_is_made_by_the_helper() -> None:
    assert [place for path in FILES if path != HELPER for place in counted_by_hand(path)] == []
