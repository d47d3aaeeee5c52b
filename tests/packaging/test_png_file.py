"""Pictures of the window are written as they were taken."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from PySide6.QtGui import QImage

from png_file import write_png


@pytest.mark.parametrize(
    ("width", "height"), [(1, 1), (3, 2), (17, 5), (640, 3)]
)  # lines with and without padding
def test_a_picture_is_read_as_it_was(tmp_path: Path, width: int, height: int) -> None:
    chance = random.Random(width)
    image = QImage(width, height, QImage.Format.Format_RGB32)
    for x in range(width):
        for y in range(height):
            image.setPixel(x, y, 0xFF000000 | chance.randrange(1 << 24))
    write_png(image, tmp_path / "picture.png")
    assert QImage(str(tmp_path / "picture.png")).convertToFormat(QImage.Format.Format_RGB32) == image
