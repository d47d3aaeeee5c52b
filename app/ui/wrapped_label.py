"""A label for sentences that name what others wrote: plain text, on several lines, that can be copied."""

from __future__ import annotations

from PySide6.QtCore import Qt
from PySide6.QtWidgets import QLabel, QWidget


class WrappedLabel(QLabel):
    """A path may be one word that is wider than the window. Qt would then push what stands beside the label
    out of sight; here the word is cut off instead.
    """

    def __init__(self, text: str = "", parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.setTextFormat(Qt.TextFormat.PlainText)  # a file name may hold "<b>"
        self.setWordWrap(True)
        self.setTextInteractionFlags(Qt.TextInteractionFlag.TextSelectableByMouse)
        self.setMinimumWidth(1)
        self.setText(text)

    # Qt overrides

    def setText(self, text: str) -> None:
        super().setText(text)
        self.setAccessibleName(text)
        self.setFocusPolicy(Qt.FocusPolicy.ClickFocus if text else Qt.FocusPolicy.NoFocus)  # for Copy
