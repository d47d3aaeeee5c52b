"""A button with words on it."""

from __future__ import annotations

from PySide6.QtWidgets import QPushButton, QWidget


class PushButton(QPushButton):
    """Enter presses it as Space does; Qt leaves that to the platform, and some leave it out."""

    def __init__(self, text: str = "", parent: QWidget | None = None) -> None:
        super().__init__(text, parent)
        self.setAutoDefault(True)
