"""Colours can be read, the style sheet is complete, and the theme follows what was chosen."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from PySide6.QtCore import QSize
from PySide6.QtGui import QFont, QFontDatabase, QImage, QTextLayout
from PySide6.QtWidgets import QApplication

from app.settings import Theme as ThemeChoice
from app.ui.document_view import code_font
from app.ui.icons import app_icon, icon, pixmap
from app.ui.style_sheet import application_style_sheet
from app.ui.theme import (
    DARK,
    LIGHT,
    Theme,
    contrast,
    current_theme,
    han_families,
    mixed,
    scaled_font,
    theme_manager,
)
from resources import icon_names


@pytest.fixture(autouse=True)
def _restored_theme(qapp: QApplication):
    yield
    theme_manager().apply(ThemeChoice.LIGHT)


def _drawn_by(font: QFont, text: str) -> set[str]:
    layout = QTextLayout(text, font)
    layout.beginLayout()
    layout.createLine()
    layout.endLayout()
    return {run.rawFont().familyName() for run in layout.glyphRuns()}


@pytest.mark.parametrize("font", [lambda: scaled_font(1.0), code_font], ids=["text", "code"])
def test_chinese_is_drawn_in_chinese_shapes(in_chinese, font: Callable[[], QFont]) -> None:
    theme_manager().apply(ThemeChoice.DARK)
    wanted = [name for name in han_families() if QFontDatabase.hasFamily(name)]
    if not wanted:
        pytest.skip("none of the fonts is installed")
    assert _drawn_by(font(), "直角") == {wanted[0]}


def test_latin_letters_are_drawn_by_the_font_of_the_system(in_chinese) -> None:
    theme_manager().apply(ThemeChoice.DARK)
    system = QFontDatabase.systemFont(QFontDatabase.SystemFont.GeneralFont)
    assert _drawn_by(scaled_font(1.0), "Latin") == _drawn_by(system, "Latin")


def test_contrast_is_the_one_of_the_standard() -> None:
    assert contrast("#000000", "#ffffff") == pytest.approx(21.0)
    assert contrast("#777777", "#ffffff") == pytest.approx(4.478, abs=0.001)
    assert contrast("#123456", "#123456") == 1.0


@pytest.mark.parametrize("theme", [LIGHT, DARK], ids=lambda theme: theme.name)
def test_every_text_can_be_read_on_every_ground_it_is_used_on(theme: Theme) -> None:
    too_faint = {
        (ink, ground): round(contrast(getattr(theme, ink), getattr(theme, ground)), 2)
        for ink, ground in theme.text_pairs()
        if contrast(getattr(theme, ink), getattr(theme, ground)) < 4.5
    }
    assert not too_faint


@pytest.mark.parametrize("theme", [LIGHT, DARK], ids=lambda theme: theme.name)
def test_style_sheet_leaves_no_name_unresolved(theme: Theme) -> None:
    sheet = application_style_sheet(theme, point_size=10)
    assert "@" not in sheet
    assert theme.accent in sheet
    assert sheet.count("{") == sheet.count("}")
    assert re.search(r"font-size: 17\.00pt", sheet)


def test_mixing_keeps_the_ends() -> None:
    assert mixed("#102030", "#ffffff", 1.0) == "#102030"
    assert mixed("#102030", "#ffffff", 0.0) == "#ffffff"


def test_choice_changes_the_theme_and_says_so_once(qtbot, qapp: QApplication) -> None:
    manager = theme_manager()
    manager.apply(ThemeChoice.LIGHT)
    with qtbot.waitSignal(manager.changed) as blocker:
        manager.apply(ThemeChoice.DARK)
    assert blocker.args == [DARK]
    assert current_theme() is DARK
    assert qapp.palette().window().color().name() == DARK.window
    with qtbot.assertNotEmitted(manager.changed):
        manager.apply(ThemeChoice.DARK)


@pytest.mark.parametrize("name", icon_names())
def test_icon_draws_something_in_its_colour_at_every_scale(qapp: QApplication, name: str) -> None:
    for scale in (1.0, 1.5, 2.0, 3.0):
        image = pixmap(name, 18, color="#ff0000", device_pixel_ratio=scale).toImage()
        assert image.width() == round(18 * scale)
        assert _painted(image), f"{name} is empty at {scale}"
    assert not icon(name).isNull()


def test_icon_is_not_blown_up_on_dense_screens(qapp: QApplication) -> None:
    for size in (16, 18, 20, 24, 32):
        for scale in (1, 2, 3):
            drawn = icon("send").pixmap(icon("send").actualSize(QSize(size, size)), float(scale))
            assert drawn.width() == size * scale


def test_app_icon_is_there_for_task_bars_of_every_size(qapp: QApplication) -> None:
    sizes = {size.width() for size in app_icon().availableSizes()}
    assert {16, 32, 48, 256} <= sizes


def _painted(image: QImage) -> bool:
    return any(
        image.pixelColor(x, y).alpha() > 128 for x in range(image.width()) for y in range(image.height())
    )
