"""Icons from resources/icons, in any colour, drawn for the pixels of the screen that they are shown on."""

from __future__ import annotations

from functools import lru_cache

from PySide6.QtCore import QByteArray, QLibraryInfo, QRect, QRectF, QSize, Qt
from PySide6.QtGui import QIcon, QIconEngine, QPainter, QPixmap
from PySide6.QtSvg import QSvgRenderer

from app.ui.theme import current_theme, mixed
from resources import resource_path

# Whether Qt asks an icon for a size in device-independent pixels, as from 6.8 on, or in the screen's.
_ASKS_BEFORE_SCALING = QLibraryInfo.version().segments()[:2] >= [6, 8]
_APP_SIZES = (16, 24, 32, 48, 64, 128, 256)


def icon(name: str, color: str | None = None) -> QIcon:
    """The icon in "#rrggbb", or in the text colour of the theme that is on now."""
    theme = current_theme()
    return _icon(name, color or theme.text, mixed(theme.text_muted, theme.window, 0.6))


@lru_cache(maxsize=512)
def pixmap(name: str, size: int, *, color: str, device_pixel_ratio: float = 1.0) -> QPixmap:
    """The icon as a pixmap of `size` device-independent pixels, for labels and delegates."""
    renderer = _renderer(name, color)
    image = _draw(renderer, int(size * device_pixel_ratio + 0.5))  # as Qt rounds, or it would stretch it
    image.setDevicePixelRatio(device_pixel_ratio)
    return image


def app_icon() -> QIcon:
    """The program's own icon, in its own colours."""
    result = QIcon()
    renderer = _renderer("kestrel", "")
    for size in _APP_SIZES:
        result.addPixmap(_draw(renderer, size))
    return result


@lru_cache(maxsize=256)
def _icon(name: str, color: str, disabled: str) -> QIcon:
    return QIcon(_Engine(name, color, disabled))


class _Engine(QIconEngine):
    """Draws an icon in the very size that it is asked for, so that nothing is ever stretched or shrunk."""

    def __init__(self, name: str, color: str, disabled: str) -> None:
        super().__init__()
        self._name = name
        self._color = color
        self._disabled = disabled

    def _ink(self, mode: QIcon.Mode) -> str:
        return self._disabled if mode is QIcon.Mode.Disabled else self._color

    # Qt overrides

    def paint(self, painter: QPainter, area: QRect, mode: QIcon.Mode, _state: QIcon.State) -> None:
        ratio = painter.device().devicePixelRatioF()
        size = min(area.width(), area.height())
        picture = pixmap(self._name, size, color=self._ink(mode), device_pixel_ratio=ratio)
        corner = area.center() - QRect(0, 0, size, size).center()
        painter.drawPixmap(corner, picture)

    def pixmap(self, size: QSize, mode: QIcon.Mode, _state: QIcon.State) -> QPixmap:
        return pixmap(self._name, min(size.width(), size.height()), color=self._ink(mode))

    def scaledPixmap(self, size: QSize, mode: QIcon.Mode, _state: QIcon.State, scale: float) -> QPixmap:
        length = min(size.width(), size.height())
        if not _ASKS_BEFORE_SCALING:
            length = round(length / scale)
        return pixmap(self._name, length, color=self._ink(mode), device_pixel_ratio=scale)

    def clone(self) -> QIconEngine:
        return _Engine(self._name, self._color, self._disabled)


@lru_cache(maxsize=64)
def _source(name: str) -> str:
    return resource_path(f"icons/{name}.svg").read_text(encoding="utf-8")


def _renderer(name: str, color: str) -> QSvgRenderer:
    source = _source(name).replace("currentColor", color)
    renderer = QSvgRenderer(QByteArray(source.encode()))
    assert renderer.isValid(), f"icon {name} is not valid SVG"
    return renderer


def _draw(renderer: QSvgRenderer, size: int) -> QPixmap:
    image = QPixmap(size, size)
    image.fill(Qt.GlobalColor.transparent)
    painter = QPainter(image)
    renderer.render(painter, QRectF(0, 0, size, size))
    painter.end()
    return image
