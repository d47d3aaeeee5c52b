"""Icons from resources/icons, in any colour, sharp on screens of one to three device pixels a pixel."""

from __future__ import annotations

from functools import lru_cache

from PySide6.QtCore import QByteArray, QRectF, Qt
from PySide6.QtGui import QIcon, QPainter, QPixmap
from PySide6.QtSvg import QSvgRenderer

from app.ui.theme import current_theme, mixed
from resources import resource_path

# Device pixels that an icon is drawn at: 16, 18, 20, 24 and 32 px at scales of 1, 1.5, 2 and 3. For scales
# between them Qt shrinks the next larger one.
_SIZES = (16, 18, 20, 24, 27, 32, 36, 40, 48, 54, 60, 72, 96)
_APP_SIZES = (16, 24, 32, 48, 64, 128, 256)


def icon(name: str, color: str | None = None) -> QIcon:
    """The icon in "#rrggbb", or in the text colour of the theme that is on now."""
    theme = current_theme()
    return _icon(name, color or theme.text, mixed(theme.text_muted, theme.window, 0.6))


@lru_cache(maxsize=256)
def pixmap(name: str, size: int, *, color: str, device_pixel_ratio: float = 1.0) -> QPixmap:
    """The icon as a pixmap of `size` device-independent pixels, for labels and delegates."""
    renderer = _renderer(name, color)
    image = _draw(renderer, round(size * device_pixel_ratio))
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
    result = QIcon()
    for mode, ink in ((QIcon.Mode.Normal, color), (QIcon.Mode.Disabled, disabled)):
        renderer = _renderer(name, ink)
        for size in _SIZES:
            result.addPixmap(_draw(renderer, size), mode)
    return result


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
