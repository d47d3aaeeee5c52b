"""Dropping a model anywhere on the window.

A folder or a GGUF file is taken as it is; a file out of a model folder stands for its folder. Drags of files
are taken before the text field under the pointer sees them; dragged text goes on to it.
"""

from __future__ import annotations

from pathlib import Path

from PySide6.QtCore import QEvent, QMimeData, QObject, QRect, Qt, Signal
from PySide6.QtGui import QColor, QDragEnterEvent, QDropEvent, QPainter, QPaintEvent, QPen, QWindow
from PySide6.QtWidgets import QWidget

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
    if suffix == ".gguf" or path.is_dir():
        return path
    if path.name.lower() in _MODEL_FILES or suffix in _MODEL_SUFFIXES:
        return path.parent
    return None


def dropped_path(data: QMimeData) -> Path | None:
    """The first local path of what is dragged; None if there is none."""
    for url in data.urls():
        if url.isLocalFile():
            return Path(url.toLocalFile())
    return None


class DropOverlay(QWidget):
    """Covers the window while a file is dragged over it and says what dropping will do."""

    def __init__(self, parent: QWidget) -> None:
        super().__init__(parent)
        self.setAttribute(Qt.WidgetAttribute.WA_TransparentForMouseEvents)
        self.setFocusPolicy(Qt.FocusPolicy.NoFocus)
        self.hide()

    def cover(self) -> None:
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
        picture = pixmap("model", size, color=theme.accent, device_pixel_ratio=self.devicePixelRatioF())
        painter.drawPixmap(middle.x() - size // 2, middle.y() - size - SPACE_S, picture)
        painter.setFont(scaled_font(SCALE_TITLE, bold=True))
        painter.setPen(QColor(theme.text))
        line = QRect(0, middle.y() + SPACE_S, self.width(), painter.fontMetrics().height() * 2)
        painter.drawText(line, Qt.AlignmentFlag.AlignHCenter, "Drop to look at this model")
        painter.end()


class DropTarget(QObject):
    """Takes files that are dropped anywhere on one window. Signals: dropped(Path), the first of them."""

    dropped = Signal(object)

    def __init__(self, window: QWidget) -> None:
        super().__init__(window)
        self.overlay = DropOverlay(window)

    def watch(self, handle: QWindow) -> None:
        """The window's handle, which exists once it has been shown. It gets every drag first."""
        handle.installEventFilter(self)

    def _on_drag(self, event: QDropEvent) -> bool:
        """Enter, move or drop. True: taken."""
        path = dropped_path(event.mimeData())
        if path is None:
            return False
        event.setDropAction(Qt.DropAction.CopyAction)
        event.accept()
        if isinstance(event, QDragEnterEvent):
            self.overlay.cover()
        elif event.type() == QEvent.Type.Drop:
            self.overlay.hide()
            self.dropped.emit(path)
        return True

    # Qt overrides

    def eventFilter(self, watched: QObject, event: QEvent) -> bool:
        if event.type() == QEvent.Type.DragLeave:
            self.overlay.hide()
        elif isinstance(event, QDropEvent):  # the base of all that carry data
            return self._on_drag(event)
        return super().eventFilter(watched, event)
