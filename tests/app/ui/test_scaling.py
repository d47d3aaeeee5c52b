"""Everything is drawn in the pixels of the screen, on screens of one to three of them a pixel."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from PySide6.QtCore import QRectF, QSize, Qt
from PySide6.QtGui import QColor, QIcon, QImage, QPainter, QPixmap
from PySide6.QtWidgets import QApplication

from app.ui import icon_label
from app.ui.formulas import FormulaKey, formula_store
from app.ui.icon_label import IconLabel
from app.ui.icons import icon, pixmap
from resources import icon_names

ROOT = Path(__file__).parents[3]
RATIOS = (1.0, 1.25, 1.5, 2.0, 3.0)

# What a program of its own is needed for: Qt takes the factor when it starts.
LOOK = """
import json
from PySide6.QtCore import QEventLoop, QTimer
from PySide6.QtGui import QImage
from PySide6.QtWidgets import QApplication, QVBoxLayout, QWidget

app = QApplication([])
from app.settings import Theme
from app.ui.choice_box import ChoiceBox, TickBox
from app.ui.formulas import end_formulas, formula_store
from app.ui.icon_label import IconLabel
from app.ui.icons import icon
from app.ui.message_body import MessageBody
from app.ui.share_bar import Share, ShareBar
from app.ui.shy_button import ShyButton
from app.ui.sliced_work import SlicedWork
from app.ui.speed_history import SpeedHistory
from app.ui.speed_plot import SpeedPlot
from app.ui.theme import theme_manager

theme_manager().apply(Theme.LIGHT)
page = QWidget()
history = SpeedHistory()
for step in range(200):
    history.step(20 + step % 17)
body = MessageBody(SlicedWork(), page)
parts = {
    "icon": IconLabel("settings", page),
    "button": ShyButton("settings", "Settings", page),
    "choice": ChoiceBox(page),
    "tick": TickBox("Tick", page),
    "plot": SpeedPlot(history, page),
    "bar": ShareBar(page),
    "formula": body,
}
parts["tick"].setChecked(True)
parts["bar"].set_shares((Share("Weights", 10), Share("This chat", 7), Share("Free", 20)))
body.set_text(r"$\\int_0^1 \\sqrt{x^2} \\, dx$")
loop = QEventLoop()
timer = QTimer(interval=5)
timer.timeout.connect(lambda: formula_store().busy or loop.quit())
timer.start()
loop.exec()
timer.stop()
body.resize(300, body.arrange(300))
column = QVBoxLayout(page)
for part in parts.values():
    if part is not body:
        column.addWidget(part)
page.resize(320, 400)
page.show()


def seen(part):
    shot = part.grab()
    image = shot.toImage().convertToFormat(QImage.Format.Format_RGB32)
    ratio = round(part.devicePixelRatioF())
    rows = [bytes(image.constScanLine(y))[: 4 * image.width()] for y in range(image.height())]
    pixels = [[row[4 * x : 4 * x + 3] for x in range(image.width())] for row in rows]
    blocks = [
        {pixels[y + j][x + i] for j in range(ratio) for i in range(ratio)}
        for y in range(0, image.height() - ratio + 1, ratio)
        for x in range(0, image.width() - ratio + 1, ratio)
    ]
    return {
        "ratio": shot.devicePixelRatio(),
        "width": image.width(),
        "wanted": part.width() * part.devicePixelRatioF(),
        "fine": any(len(block) > 1 for block in blocks),
        "colors": len({pixel for row in pixels for pixel in row}),
    }


print(json.dumps({name: seen(part) for name, part in parts.items()}))
end_formulas()
"""


@pytest.fixture(scope="module", params=[1.25, 2.0, 3.0])
def seen(request: pytest.FixtureRequest) -> tuple[float, dict[str, dict]]:
    """What parts look like in a program that is started with a factor."""
    environment = {**os.environ, "QT_SCALE_FACTOR": str(request.param), "QT_QPA_PLATFORM": "offscreen"}
    run = subprocess.run(
        [sys.executable, "-c", LOOK], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120
    )
    assert run.returncode == 0, run.stderr
    return request.param, json.loads(run.stdout.splitlines()[-1])


def test_every_part_is_drawn_for_the_factor_of_the_screen(seen: tuple[float, dict[str, dict]]) -> None:
    factor, parts = seen
    assert len(parts) == 7
    for name, part in parts.items():
        assert part["ratio"] == factor, name
        assert part["width"] == pytest.approx(part["wanted"], abs=1), name
        assert part["colors"] > 2, f"{name} is empty"


def test_nothing_is_a_blown_up_picture(seen: tuple[float, dict[str, dict]]) -> None:
    factor, parts = seen
    if factor == 1.25:
        pytest.skip("the pixels of a blown-up picture can be told only at whole factors")
    assert {name for name, part in parts.items() if not part["fine"]} == set()


# Icons


@pytest.mark.parametrize("ratio", RATIOS)
@pytest.mark.parametrize("size", [12, 14, 15, 18, 28, 40])
def test_an_icon_has_exactly_the_pixels_that_it_takes_up(qapp: QApplication, size: int, ratio: float) -> None:
    drawn = icon("settings", "#203040").pixmap(QSize(size, size), ratio)
    assert drawn.devicePixelRatio() == ratio
    assert drawn.width() == drawn.height() == int(size * ratio + 0.5)
    wanted = pixmap("settings", size, color="#203040", device_pixel_ratio=ratio)
    assert drawn.toImage() == wanted.toImage()


@pytest.mark.parametrize("ratio", RATIOS)
def test_an_icon_that_is_painted_is_the_one_that_was_drawn_for_the_place(
    qapp: QApplication, ratio: float
) -> None:
    size = 20
    target = QImage(round(size * ratio), round(size * ratio), QImage.Format.Format_ARGB32_Premultiplied)
    target.setDevicePixelRatio(ratio)
    target.fill(Qt.GlobalColor.transparent)
    painter = QPainter(target)
    icon("copy", "#aa0000").paint(painter, 0, 0, size, size)
    painter.end()
    wanted = pixmap("copy", size, color="#aa0000", device_pixel_ratio=ratio).toImage()
    assert target == wanted.convertToFormat(target.format())


@pytest.mark.parametrize("name", icon_names())
def test_an_icon_of_a_disabled_button_looks_so(qapp: QApplication, name: str) -> None:
    usual = icon(name).pixmap(QSize(18, 18), 1.0)
    disabled = icon(name).pixmap(QSize(18, 18), 1.0, QIcon.Mode.Disabled)
    own_colors = name == "kestrel"
    assert (usual.toImage() == disabled.toImage()) is own_colors


def test_an_icon_outlives_the_object_that_it_was_made_as(qapp: QApplication) -> None:
    copies = [QIcon(icon("send", f"#0000{number:02x}")) for number in range(200)]
    assert all(copy.pixmap(QSize(16, 16), 2.0).width() == 32 for copy in copies)


def test_an_icon_is_drawn_anew_on_a_screen_with_other_pixels(qtbot, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[float] = []

    def drawn(name: str, size: int, *, color: str, device_pixel_ratio: float) -> QPixmap:
        asked.append(device_pixel_ratio)
        return pixmap(name, size, color=color, device_pixel_ratio=device_pixel_ratio)

    monkeypatch.setattr(icon_label, "pixmap", drawn)
    label = IconLabel("info")
    qtbot.addWidget(label)
    label.show()
    label.grab()
    monkeypatch.setattr(IconLabel, "devicePixelRatioF", lambda _self: 2.5)
    label.grab()
    assert asked[0] == 1.0
    assert asked[-1] == 2.5


# Formulas


@pytest.mark.parametrize("ratio", RATIOS)
def test_a_formula_is_drawn_in_the_pixels_of_what_it_is_painted_on(
    qapp: QApplication, qtbot, ratio: float
) -> None:
    store = formula_store()
    key = FormulaKey(r"\frac{1}{x} + \sqrt{y}", display=True)
    if not store.is_known(key):
        waiter = _Waiter()
        store.want(key, waiter.known)
        qtbot.waitUntil(lambda: store.is_known(key), timeout=30_000)
    drawing = store.drawing(key)
    assert drawing is not None
    area = QRectF(0, 0, 20 * drawing.width, 20 * (drawing.ascent + drawing.descent))
    fine, coarse = (_painted(key, area, one) for one in (ratio, 1.0))
    assert fine.width() == pytest.approx(area.width() * ratio, abs=1)
    if ratio >= 2:
        assert _edges(fine) < 0.8 * _edges(coarse)


class _Waiter:
    def known(self, _key: FormulaKey) -> None:
        """The store is asked instead."""


def _painted(key: FormulaKey, area: QRectF, ratio: float) -> QImage:
    size = (area.size() * ratio).toSize()
    image = QImage(size, QImage.Format.Format_ARGB32_Premultiplied)
    image.setDevicePixelRatio(ratio)
    image.fill(Qt.GlobalColor.white)
    painter = QPainter(image)
    formula_store().paint(painter, key, area, QColor("#000000"))
    painter.end()
    image.setDevicePixelRatio(1.0)
    return image


def _edges(image: QImage) -> float:
    """The share of pixels that are neither ink nor paper: a sharp drawing has few."""
    grey = sum(
        16 < image.pixelColor(x, y).lightness() < 239
        for x in range(image.width())
        for y in range(image.height())
    )
    return grey / (image.width() * image.height())
