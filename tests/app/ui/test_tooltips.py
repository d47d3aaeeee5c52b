"""What a person or a model wrote is shown in a tooltip as it is: no tag works, and no file is opened."""

from __future__ import annotations

import pytest
from PySide6.QtGui import Qt, QTextDocument

from app.ui.elided_label import ElidedLabel
from app.ui.tooltips import plain_tooltip

TEXTS = [
    '<img src="file:///etc/hostname"> and what follows',
    "#include <b> and <script>alert(1)</script>",
    "&lt;b&gt; was written so",
    "<!doctype html><p>page",
]


def shown(tooltip: str) -> str:
    """What Qt makes of a tooltip."""
    if not Qt.mightBeRichText(tooltip):
        return tooltip
    document = QTextDocument()
    document.setHtml(tooltip)
    return document.toPlainText()


@pytest.mark.parametrize("text", [*TEXTS, "plain words", "1 < 2 and 3 > 2"])
def test_every_character_is_shown(qapp, text: str) -> None:
    assert shown(plain_tooltip(text)) == text


def test_words_without_markup_are_left_alone() -> None:
    assert plain_tooltip("plain words\nand more") == "plain words\nand more"


def test_lines_stay_apart(qapp) -> None:
    assert shown(plain_tooltip("<b>title</b>\n2026-01-02")) == "<b>title</b>\n2026-01-02"


@pytest.mark.parametrize("text", TEXTS)
def test_label_that_is_too_narrow_shows_its_text_and_not_its_markup(qtbot, text: str) -> None:
    label = ElidedLabel(text)
    qtbot.addWidget(label)
    label.resize(30, 20)
    label.show()
    assert shown(label.toolTip()) == text
