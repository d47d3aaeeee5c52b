"""A window that follows the system changes with it while it is open."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace

import pytest
from PySide6.QtCore import QObject, Qt, Signal
from PySide6.QtWidgets import QApplication

from app.settings import Theme as ThemeChoice
from app.ui import theme
from app.ui.main_window import MainWindow
from app.ui.theme import DARK, LIGHT, ThemeManager, current_theme, theme_manager


class System(QObject):
    """Stands for the desktop's style hints, which no test can change."""

    colorSchemeChanged = Signal(Qt.ColorScheme)  # noqa: N815 - as Qt calls it

    def __init__(self, own: Qt.ColorScheme) -> None:
        super().__init__()
        self._own = own
        self._asked = Qt.ColorScheme.Unknown

    def colorScheme(self) -> Qt.ColorScheme:
        return self._own if self._asked is Qt.ColorScheme.Unknown else self._asked

    def setColorScheme(self, scheme: Qt.ColorScheme) -> None:
        self._change(asked=scheme, own=self._own)

    def become(self, own: Qt.ColorScheme) -> None:
        self._change(asked=self._asked, own=own)

    def _change(self, *, asked: Qt.ColorScheme, own: Qt.ColorScheme) -> None:
        before = self.colorScheme()
        self._asked, self._own = asked, own
        if self.colorScheme() is not before:
            self.colorSchemeChanged.emit(self.colorScheme())


@pytest.fixture
def system(qapp: QApplication, monkeypatch: pytest.MonkeyPatch) -> Iterator[System]:
    made = System(Qt.ColorScheme.Light)
    with monkeypatch.context() as patch:
        patch.setattr(theme, "QGuiApplication", SimpleNamespace(styleHints=lambda: made))
        patch.setattr(theme, "_manager", ThemeManager())
        yield made
    theme_manager()._dressed = None  # another one has dressed the application meanwhile
    theme_manager().apply(ThemeChoice.LIGHT)


def ground(window: MainWindow) -> str:
    """The colour that is seen in a corner of the page."""
    image = window.loader.grab().toImage()
    return image.pixelColor(4, image.height() - 4).name()


def test_the_window_follows_the_system_while_it_is_open(system: System, open_window, qtbot) -> None:
    window = open_window()
    assert theme_manager().choice is ThemeChoice.SYSTEM
    seen = [ground(window)]
    for scheme in (Qt.ColorScheme.Dark, Qt.ColorScheme.Light, Qt.ColorScheme.Dark):
        with qtbot.waitSignal(theme_manager().changed):
            system.become(scheme)
        seen.append(ground(window))
    assert seen == [LIGHT.surface, DARK.surface, LIGHT.surface, DARK.surface]


def test_icons_change_with_the_system(system: System, open_window) -> None:
    window = open_window()
    before = window.header.menu_button.icon().pixmap(18, 18).toImage()
    system.become(Qt.ColorScheme.Dark)
    assert window.header.menu_button.icon().pixmap(18, 18).toImage() != before
    system.become(Qt.ColorScheme.Light)
    assert window.header.menu_button.icon().pixmap(18, 18).toImage() == before


def test_a_theme_that_was_chosen_stays_whatever_the_system_does(system: System, open_window) -> None:
    window = open_window()
    window.actions_.themes[ThemeChoice.DARK].trigger()
    assert (current_theme(), ground(window)) == (DARK, DARK.surface)
    system.become(Qt.ColorScheme.Dark)
    system.become(Qt.ColorScheme.Light)
    assert (current_theme(), ground(window)) == (DARK, DARK.surface)
    window.actions_.themes[ThemeChoice.SYSTEM].trigger()
    assert (current_theme(), ground(window)) == (LIGHT, LIGHT.surface)
    system.become(Qt.ColorScheme.Dark)
    assert (current_theme(), ground(window)) == (DARK, DARK.surface)


def test_a_system_that_says_nothing_is_light(system: System, open_window) -> None:
    system.become(Qt.ColorScheme.Unknown)
    window = open_window()
    assert ground(window) == LIGHT.surface


def test_a_switch_of_the_system_keeps_the_size_of_text(system: System, open_window) -> None:
    window = open_window()
    window.actions_.larger_text.trigger()
    size = window.loader.font().pointSizeF()
    system.become(Qt.ColorScheme.Dark)
    assert window.loader.font().pointSizeF() == size
    window.actions_.usual_text.trigger()
