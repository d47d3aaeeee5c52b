"""A picture as a PNG file that is small where much of it has one colour, as windows have."""

from __future__ import annotations

import struct
import zlib
from pathlib import Path

from PySide6.QtGui import QImage

_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_RGB_8_BITS = struct.pack(">BBBBB", 8, 2, 0, 0, 0)
_UNFILTERED = b"\0"  # before each line; filters, which Qt leaves to chance, take a third more here


def write_png(image: QImage, path: Path) -> None:
    """Without transparency, and losing nothing else. Raises OSError."""
    rgb = image.convertToFormat(QImage.Format.Format_RGB888)
    data, stride = bytes(rgb.constBits()), rgb.bytesPerLine()
    lines = (data[at : at + 3 * rgb.width()] for at in range(0, stride * rgb.height(), stride))
    pixels = zlib.compress(b"".join(_UNFILTERED + line for line in lines), level=9)
    size = struct.pack(">II", rgb.width(), rgb.height())
    path.write_bytes(
        _SIGNATURE + _chunk(b"IHDR", size + _RGB_8_BITS) + _chunk(b"IDAT", pixels) + _chunk(b"IEND", b"")
    )


def _chunk(kind: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))
