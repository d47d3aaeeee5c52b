"""Pictures of the program are drawings, Qt's own ones too where they would be seen."""

from __future__ import annotations

from pathlib import Path

from PySide6.QtGui import QAction

import app.ui
import resources
from app.ui.search_field import SearchField
from app.ui.theme import current_theme


def test_pictures_are_drawings_that_no_scale_blurs() -> None:
    """All that the program brings; and it asks Qt for none, whose pictures are made for few scales."""
    assert {path.suffix for path in (Path(resources.__file__).parent / "icons").iterdir()} == {".svg"}
    sources = Path(app.ui.__file__).parent.glob("*.py")
    assert [one.name for one in sources if "standardIcon" in one.read_text(encoding="utf-8")] == []


def test_a_field_to_search_with_has_our_icons_in_the_colours_of_the_theme(qtbot) -> None:
    field = SearchField()
    qtbot.addWidget(field)
    muted = current_theme().color("text_muted").rgb()
    images = [action.icon().pixmap(36, 36).toImage() for action in field.findChildren(QAction)]
    assert len(images) == 2
    for image in images:
        assert any(image.pixel(x, y) == muted for x in range(image.width()) for y in range(image.height()))
