"""Tooltips of texts that people, files and models wrote.

Qt reads a tooltip that looks like HTML as HTML: it would hide the tags in it, and open the files that an
image names.
"""

from __future__ import annotations

from PySide6.QtGui import Qt


def plain_tooltip(text: str) -> str:
    """What to give Qt so that it shows `text` as it is."""
    if not Qt.mightBeRichText(text):
        return text
    return Qt.convertFromPlainText(text, Qt.WhiteSpaceMode.WhiteSpaceNormal)
