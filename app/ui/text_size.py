"""How large text is, in percent of the size that the system has, and what has to be as large as its text.

A length that holds text, and an icon that stands beside it, is written for text of 100 percent and set by
`follow_text_size`, which does it anew whenever the size changes. Spacing and lines keep their sizes; fonts
come from `theme.py`.
"""

from __future__ import annotations

from collections.abc import Callable

from PySide6.QtCore import QObject, QSize, Signal
from PySide6.QtWidgets import QAbstractButton, QAbstractItemView, QWidget

from app.settings import TEXT_SIZES

USUAL_PERCENT = 100
_FRAME = QSize(20, 60)  # pixels that a window's title and border may take


class TextSize(QObject):
    """Signals: changed(), after the fonts of all widgets have changed."""

    changed = Signal()

    def __init__(self) -> None:
        super().__init__()
        self.percent = USUAL_PERCENT  # `ThemeManager.apply` sets it


class _Follower(QObject):
    """Ends with the object that it belongs to."""

    def __init__(self, owner: QObject, fit: Callable[[], object]) -> None:
        super().__init__(owner)
        self._fit = fit
        text_size().changed.connect(self.run)

    def run(self) -> None:
        self._fit()


_text_size: TextSize | None = None


def text_size() -> TextSize:
    """The one of the program; made when it is first asked for."""
    global _text_size
    if _text_size is None:
        _text_size = TextSize()
    return _text_size


def scaled(pixels: float) -> int:
    """Device-independent pixels of something that holds text, at the size that text has now."""
    return round(pixels * text_size().percent / USUAL_PERCENT)


def follow_text_size(owner: QObject, fit: Callable[[], object]) -> None:
    """Calls `fit` now, and again after each change of the size of text, as long as `owner` is there."""
    fit()
    _Follower(owner, fit)


def resize_with_text(window: QWidget, usual: QSize) -> None:
    """Gives a window its size, larger or smaller by what text is, but no larger than its screen."""

    def fit() -> None:
        room = window.screen().availableSize() - _FRAME
        window.resize(QSize(scaled(usual.width()), scaled(usual.height())).boundedTo(room))

    follow_text_size(window, fit)


def set_icon_size(button: QAbstractButton | QAbstractItemView, pixels: int) -> None:
    """As large as the text, from now on."""
    follow_text_size(button, lambda: button.setIconSize(QSize(scaled(pixels), scaled(pixels))))


def next_size(percent: int, steps: int) -> int:
    """The size that is so many steps larger, or smaller; the ends are where it stays."""
    index = min(range(len(TEXT_SIZES)), key=lambda at: abs(TEXT_SIZES[at] - percent))
    return TEXT_SIZES[min(max(index + steps, 0), len(TEXT_SIZES) - 1)]
