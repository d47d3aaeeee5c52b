"""Colours, spacing and type sizes of the window, which theme is on, and how large text is.

Widgets ask `current_theme()` while they paint or build, and connect to `theme_manager().changed` when they
keep a colour. What a style sheet can say stands in `style_sheet.py`; a widget picks a look by its `role`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from PySide6.QtCore import QLocale, QObject, Qt, Signal
from PySide6.QtGui import QColor, QFont, QFontDatabase, QFontInfo, QGuiApplication, QPalette
from PySide6.QtWidgets import QApplication

from app.language import Language, language
from app.settings import Theme as ThemeChoice
from app.ui.style_sheet import application_style_sheet
from app.ui.text_size import USUAL_PERCENT, text_size

# Spacing in device-independent pixels, on a grid of four.
SPACE_XS = 4
SPACE_S = 8
SPACE_M = 12
SPACE_L = 16
SPACE_XL = 24
SPACE_XXL = 40
RADIUS = 8
ICON_SIZE = 18
TEXT_COLUMN_WIDTH = 760  # a line of text longer than this is hard to read

# Type sizes relative to the interface font: the system's, in the size that was chosen.
SCALE_SMALL = 0.9
SCALE_TITLE = 1.2
SCALE_DISPLAY = 1.7
_HAN_FAMILIES = (
    "Noto Sans CJK SC",
    "Source Han Sans SC",
    "Noto Sans SC",
    "Microsoft YaHei UI",
    "PingFang SC",
)
_MIN_POINT_SIZE = 10.0  # bare X servers hand out 9 pt, too small for reading


@dataclass(frozen=True)
class Theme:
    """Named colours as "#rrggbb". Every pair of `text_pairs` has a contrast of at least 4.5."""

    name: Literal["light", "dark"]
    window: str  # the frame: list, header, status line
    surface: str  # where one reads: the chat
    surface_raised: str  # cards, banners, fields
    text: str
    text_muted: str
    accent: str
    accent_text: str  # on accent
    border: str
    danger: str
    warning: str
    success: str
    code_background: str
    user_bubble: str
    selection: str

    def color(self, name: str) -> QColor:
        """The named colour as a QColor; an unknown name raises AttributeError."""
        return QColor(getattr(self, name))

    def text_pairs(self) -> tuple[tuple[str, str], ...]:
        """Every (text, ground) pair of names that the window may put together: each ink on each ground."""
        return (*((ink, ground) for ink in INKS for ground in GROUNDS), ("accent_text", "accent"))


# What the colours are for. Borders are no text and carry no meaning of their own.
INKS = ("text", "text_muted", "accent", "danger", "warning", "success")
GROUNDS = ("window", "surface", "surface_raised", "code_background", "user_bubble", "selection")

LIGHT = Theme(
    name="light",
    window="#f3f1ec",
    surface="#fcfbf9",
    surface_raised="#ffffff",
    text="#20242a",
    text_muted="#565c64",
    accent="#27598a",
    accent_text="#ffffff",
    border="#d9d5cc",
    danger="#ae2a20",
    warning="#855100",
    success="#28683a",
    code_background="#f1efe9",
    user_bubble="#e3ebf3",
    selection="#cddff0",
)

DARK = Theme(
    name="dark",
    window="#16181b",
    surface="#1c1f23",
    surface_raised="#25292e",
    text="#e7e5e1",
    text_muted="#a9aeb5",
    accent="#84b6e2",
    accent_text="#0d1a26",
    border="#373c43",
    danger="#f5948a",
    warning="#e6b362",
    success="#7fc793",
    code_background="#131518",
    user_bubble="#293848",
    selection="#2b4159",
)


def contrast(first: str, second: str) -> float:
    """Contrast of two "#rrggbb" colours, 1 to 21, as WCAG 2.1 defines it."""
    lighter, darker = sorted((_luminance(first), _luminance(second)), reverse=True)
    return (lighter + 0.05) / (darker + 0.05)


def _luminance(color: str) -> float:
    channels = [int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def mixed(first: str, second: str, share: float) -> str:
    """`share` of the first colour over the second, for tints of a ground."""
    parts = [
        round(int(first[i : i + 2], 16) * share + int(second[i : i + 2], 16) * (1 - share)) for i in (1, 3, 5)
    ]
    return "#" + "".join(f"{part:02x}" for part in parts)


class ThemeManager(QObject):
    """Knows the choice and the theme that follows from it, and dresses the application.

    Signals: changed(Theme), after font, palette and style sheet are in place: colours or sizes have changed.
    """

    changed = Signal(object)

    def __init__(self) -> None:
        super().__init__()
        self._choice = ThemeChoice.SYSTEM
        self._theme = LIGHT
        self._listening = False
        self._dressed: tuple[Theme, int, Language] | None = None

    @property
    def choice(self) -> ThemeChoice:
        return self._choice

    @property
    def theme(self) -> Theme:
        return self._theme

    def apply(self, choice: ThemeChoice = ThemeChoice.SYSTEM, *, text_percent: int | None = None) -> None:
        """Dresses the running QApplication; called once at start and again when the person chooses.

        text_percent: how large text is, of the system's size; None leaves it as it is.
        """
        app = QApplication.instance()
        assert isinstance(app, QApplication), "a theme needs a QApplication"
        self._choice = choice
        if text_percent is not None:
            text_size().percent = text_percent
        hints = QGuiApplication.styleHints()
        if not self._listening:
            self._listening = True
            hints.colorSchemeChanged.connect(self._follow_system)
        if hasattr(hints, "setColorScheme"):  # Qt 6.8: native title bars follow too
            schemes = {ThemeChoice.LIGHT: Qt.ColorScheme.Light, ThemeChoice.DARK: Qt.ColorScheme.Dark}
            hints.setColorScheme(schemes.get(choice, Qt.ColorScheme.Unknown))
        self._dress(app)

    def _follow_system(self) -> None:
        app = QApplication.instance()
        if isinstance(app, QApplication):
            self._dress(app)

    def _dress(self, app: QApplication) -> None:
        before, self._dressed = self._dressed, (self._wanted(), text_size().percent, language())
        if self._dressed == before and app.styleSheet():
            return
        if app.style().name() != "fusion":
            app.setStyle("fusion")
        self._theme = self._dressed[0]
        font = _interface_font()
        if font != app.font():
            app.setFont(font)
        app.setPalette(_palette(self._theme))
        app.setStyleSheet(application_style_sheet(self._theme, point_size=_point_size(font)))
        if before is not None and before[1] != self._dressed[1]:
            text_size().changed.emit()
        self.changed.emit(self._theme)

    def _wanted(self) -> Theme:
        if self._choice is ThemeChoice.SYSTEM:
            dark = QGuiApplication.styleHints().colorScheme() == Qt.ColorScheme.Dark
            return DARK if dark else LIGHT
        return DARK if self._choice is ThemeChoice.DARK else LIGHT


_manager: ThemeManager | None = None


def theme_manager() -> ThemeManager:
    """The one manager of the program; made when it is first asked for."""
    global _manager
    if _manager is None:
        _manager = ThemeManager()
    return _manager


def current_theme() -> Theme:
    return theme_manager().theme


def scaled_font(scale: float, *, bold: bool = False) -> QFont:
    """The interface font at a relative size (SCALE_...)."""
    font = QFont(QApplication.font())
    font.setPointSizeF(_point_size(font) * scale)
    if bold:
        font.setWeight(QFont.Weight.DemiBold)
    return font


def han_families() -> tuple[str, ...]:
    """To stand behind the families of a font. A system that is told nothing draws Chinese in the shapes of
    Japanese; one that speaks Japanese, Korean or traditional Chinese knows what it does, unless the window
    itself speaks simplified Chinese.
    """
    own = QLocale.system()
    knows = own.language() in (QLocale.Language.Japanese, QLocale.Language.Korean)
    knows = knows or own.script() == QLocale.Script.TraditionalHanScript
    return () if knows and language() is not Language.CHINESE else _HAN_FAMILIES


def _interface_font() -> QFont:
    """The system's own, in the size that was chosen."""
    font = QFontDatabase.systemFont(QFontDatabase.SystemFont.GeneralFont)
    # A general name such as "Sans Serif" would give way to the next family that there is.
    font.setFamilies([*dict.fromkeys([*font.families(), QFontInfo(font).family()]), *han_families()])
    size = max(_MIN_POINT_SIZE, _point_size(font)) * text_size().percent / USUAL_PERCENT
    if abs(size - font.pointSizeF()) > 0.01:  # else one that follows the system goes on to do so
        font.setPointSizeF(size)
    return font


def _point_size(font: QFont) -> float:
    return font.pointSizeF() if font.pointSizeF() > 0 else _MIN_POINT_SIZE


def _palette(theme: Theme) -> QPalette:
    palette = QPalette()
    role = QPalette.ColorRole
    colors = {
        role.Window: theme.window,
        role.WindowText: theme.text,
        role.Base: theme.surface_raised,
        role.AlternateBase: theme.surface,
        role.Text: theme.text,
        role.PlaceholderText: theme.text_muted,
        role.Button: theme.surface_raised,
        role.ButtonText: theme.text,
        role.BrightText: theme.danger,
        role.Highlight: theme.selection,
        role.HighlightedText: theme.text,
        role.Link: theme.accent,
        role.LinkVisited: theme.accent,
        role.ToolTipBase: theme.surface_raised,
        role.ToolTipText: theme.text,
        role.Light: mixed(theme.text, theme.window, 0.03),
        role.Midlight: mixed(theme.text, theme.window, 0.06),
        role.Mid: theme.border,
        role.Dark: mixed(theme.text, theme.border, 0.25),
        role.Shadow: mixed(theme.text, theme.border, 0.5),
        role.Accent: theme.accent,
    }
    for key, color in colors.items():
        palette.setColor(key, QColor(color))
    disabled = QColor(mixed(theme.text_muted, theme.window, 0.6))
    for key in (role.WindowText, role.Text, role.ButtonText, role.HighlightedText):
        palette.setColor(QPalette.ColorGroup.Disabled, key, disabled)
    return palette
