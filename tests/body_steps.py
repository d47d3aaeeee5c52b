"""How tests let the body of a message grow, and what they look at in it."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import cycle

from PySide6.QtGui import QTextDocument

from app.ui.message_body import MessageBody


def blocks(document: QTextDocument) -> list[tuple]:
    result = []
    block = document.begin()
    while block.isValid():
        runs = []
        for iterator in block:
            fragment = iterator.fragment()
            style = fragment.charFormat()
            runs.append((fragment.text(), style.fontWeight(), style.fontItalic(), style.anchorHref()))
        margins = (block.blockFormat().leftMargin(), block.blockFormat().topMargin())
        colours = [(run.start, run.length) for run in block.layout().formats()]
        result.append((block.text(), margins, runs, colours))
        block = block.next()
    return result


def grow(body: MessageBody, text: str, cuts: Sequence[int]) -> None:
    position = 0
    for length in cycle(cuts):
        if position >= len(text):
            break
        body.append(text[position : position + length])
        body.arrange(700)
        position += length
    body.finish()
