"""Dropping a model, or files for a message, anywhere on the window.

A folder or a GGUF file is a model; a file out of a model folder stands for its folder. Other files go with
the message, where a chat is shown. Drags of files are taken before the text field under the pointer sees
them; dragged text goes on to it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path

from PySide6.QtCore import QEvent, QMimeData, QObject, QRect, Qt, Signal
from PySide6.QtGui import QColor, QDragEnterEvent, QDropEvent, QPainter, QPaintEvent, QPen, QWindow
from PySide6.QtWidgets import QWidget

from app.language import tr
from app.ui.icons import pixmap
from app.ui.theme import RADIUS, SCALE_TITLE, SPACE_L, SPACE_S, current_theme, scaled_font

# Files that only a model folder holds. Others (a picture, a text) stand for nothing.
_MODEL_FILES = frozenset(
    {
        "config.json",
        "generation_config.json",
        "tokenizer.json",
        "tokenizer_config.json",
        "tokenizer.model",
        "chat_template.jinja",
        "chat_template.json",
        "model.safetensors.index.json",
    }
)
_MODEL_SUFFIXES = frozenset({".safetensors", ".bin", ".pt", ".pth"})


def model_path_of(path: Path) -> Path | None:
    """The model that a picked or dropped path stands for; None if it is a file that belongs to no model."""
    suffix = path.suffix.lower()
    if suffix == ".gguf" or os.path.isdir(path):  # False where it may not be looked at, too
        return path
    if path.name.lower() in _MODEL_FILES or suffix in _MODEL_SUFFIXES:
        return path.parent
    return None


def dropped_paths(data: QMimeData) -> list[Path]:
    """The local paths of what is dragged."""
    return [Path(url.toLocalFile()) for url in data.urls() if url.isLocalFile()]


class DropOverlay(QWidget):
    """Covers the window while a file is dragged over it and says what dropping will do."""

    def __init__(self, parent: QWidget) -> None:
        super().__init__(parent)
        self.setAttribute(Qt.WidgetAttribute.WA_TransparentForMouseEvents)
        self.setFocusPolicy(Qt.FocusPolicy.NoFocus)
        self.words = ""
        self._picture = "model"
        self.hide()

    def cover(self, words: str, picture: str) -> None:
        """picture: name of an icon."""
        self.words, self._picture = words, picture
        self.setAccessibleName(words)
        parent = self.parentWidget()
        assert parent is not None
        self.setGeometry(parent.rect())
        self.raise_()
        self.show()

    # Qt overrides

    def paintEvent(self, _event: QPaintEvent) -> None:
        theme = current_theme()
        painter = QPainter(self)
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        ground = QColor(theme.surface)
        ground.setAlphaF(0.97)
        painter.fillRect(self.rect(), ground)
        painter.setPen(QPen(QColor(theme.accent), 2, Qt.PenStyle.DashLine))
        painter.drawRoundedRect(self.rect().adjusted(SPACE_L, SPACE_L, -SPACE_L, -SPACE_L), RADIUS, RADIUS)
        size = 48
        middle = self.rect().center()
        picture = pixmap(self._picture, size, color=theme.accent, device_pixel_ratio=self.devicePixelRatioF())
        painter.drawPixmap(middle.x() - size // 2, middle.y() - size - SPACE_S, picture)
        painter.setFont(scaled_font(SCALE_TITLE, bold=True))
        painter.setPen(QColor(theme.text))
        line = QRect(0, middle.y() + SPACE_S, self.width(), painter.fontMetrics().height() * 2)
        painter.drawText(line, Qt.AlignmentFlag.AlignHCenter, self.words)
        painter.end()


class DropTarget(QObject):
    """Takes files that are dropped anywhere on one window. Signals: model_dropped(Path), the first of them;
    files_dropped(list of Paths) for a message.
    """

    model_dropped = Signal(object)
    files_dropped = Signal(list)

    def __init__(self, window: QWidget, *, in_chat: Callable[[], bool]) -> None:
        """in_chat: whether a chat is shown now, to which files may be attached."""
        super().__init__(window)
        self._in_chat = in_chat
        self.overlay = DropOverlay(window)

    def watch(self, handle: QWindow) -> None:
        """The window's handle, which exists once it has been shown. It gets every drag first."""
        handle.installEventFilter(self)

    def _on_drag(self, event: QDropEvent) -> bool:
        """Enter, move or drop. True: taken."""
        paths = dropped_paths(event.mimeData())
        if not paths:
            return False
        event.setDropAction(Qt.DropAction.CopyAction)
        event.accept()
        if isinstance(event, QDragEnterEvent):
            if self._for_message(paths):
                self.overlay.cover(tr("Drop to attach to your message"), "attach")
            else:
                self.overlay.cover(tr("Drop to look at this model"), "model")
        elif event.type() == QEvent.Type.Drop:
            self.overlay.hide()
            if self._for_message(paths):
                self.files_dropped.emit(paths)
            else:
                self.model_dropped.emit(paths[0])
        return True

    def _for_message(self, paths: Sequence[Path]) -> bool:
        return self._in_chat() and model_path_of(paths[0]) is None

    # Qt overrides

    def eventFilter(self, watched: QObject, event: QEvent) -> bool:
        if event.type() == QEvent.Type.DragLeave:
            self.overlay.hide()
        elif isinstance(event, QDropEvent):  # the base of all that carry data
            return self._on_drag(event)
        return super().eventFilter(watched, event)
