"""What a person sees or hears of a widget, and what of it is English."""

from __future__ import annotations

import re

from PySide6.QtWidgets import QAbstractItemView, QComboBox, QWidget

_ASKED = (
    "text",
    "toolTip",
    "accessibleName",
    "accessibleDescription",
    "placeholderText",
    "windowTitle",
)
_WORD = re.compile(r"[A-Za-z]{2,}")
# Names, and what Chinese has no other word for.
_KEPT = {"token", "tok", "GB", "MB", "kB", "GGUF", "Hugging", "Face", "config", "json", "safetensors"}
_KEPT |= {"Kestrel", "GPU", "CPU", "KV", "Ctrl", "Shift", "Enter", "Esc"}


def english_words(widget: QWidget, *, names: str = "") -> set[str]:
    """In any text of the widget and of what is in it, hidden or not. names: words that stay as they are."""
    kept = _KEPT | set(_WORD.findall(names))
    return {word for text in _texts(widget) for word in _WORD.findall(text)} - kept


def _texts(widget: QWidget) -> list[str]:
    texts = []
    for part in (widget, *widget.findChildren(QWidget)):
        if part.objectName().startswith("qt_"):
            continue  # Qt's own, whose texts are Qt's to translate
        texts += [getattr(part, name)() for name in _ASKED if hasattr(part, name)]
        if isinstance(part, QComboBox):
            texts += [part.itemText(place) for place in range(part.count())]
        elif isinstance(part, QAbstractItemView) and part.model() is not None:
            model = part.model()
            indexes = [model.index(row, 0) for row in range(model.rowCount())]
            texts += [str(index.data(role) or "") for index in indexes for role in model.roleNames()]
    return texts
