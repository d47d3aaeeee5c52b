"""Whatever is drawn can be told from what it is drawn on, in both themes.

Text has a contrast of at least 4.5, marks that mean something (rings of the focus, lines of a plot, parts of
a bar) of at least 3, as WCAG 2.1 has it. What is disabled, and lines that only divide, are exempt.

No colour slips by: colours stand in the themes alone, each has its use there; rules of style sheets are read
and judged one by one; and every tint that a painter mixes for itself is in `TINTS`.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass, fields
from pathlib import Path

import pytest
from PySide6.QtWidgets import QApplication, QWidget
from surfaces import SURFACES

import app.ui
from app.settings import Theme as ThemeChoice
from app.ui.code_highlight import Part, part_colors
from app.ui.main_window import MainWindow
from app.ui.search_results import mark_color
from app.ui.share_bar import FREE, share_colors
from app.ui.style_sheet import application_style_sheet, sheet_colors
from app.ui.theme import DARK, GROUNDS, INKS, LIGHT, Theme, contrast, mixed, theme_manager

TEXT, MARK = 4.5, 3.0
UI = Path(app.ui.__file__).parent
SOURCES = sorted(UI.glob("*.py"))
BOTH = pytest.mark.parametrize("theme", [LIGHT, DARK], ids=lambda theme: theme.name)
WIDE = ("window", "surface", "surface_raised")  # where anything may stand


@pytest.fixture(autouse=True)
def _restored_theme(qapp: QApplication) -> Iterator[None]:
    yield
    theme_manager().apply(ThemeChoice.LIGHT)


def too_faint(pairs: dict[str, tuple[str, str]], least: float) -> dict[str, float]:
    """Of pairs of "#rrggbb" by what they are, those that are below."""
    found = {name: round(contrast(*pair), 2) for name, pair in pairs.items()}
    return {name: value for name, value in found.items() if value < least}


# The themes


def test_every_colour_of_a_theme_has_its_use() -> None:
    names = {one.name for one in fields(Theme)} - {"name"}
    assert names == {*INKS, *GROUNDS, "accent_text", "border"}


@BOTH
def test_every_ink_can_be_read_on_every_ground_and_on_what_the_mouse_makes_of_it(theme: Theme) -> None:
    grounds = {name: getattr(theme, name) for name in GROUNDS}
    grounds |= {name: sheet_colors(theme)[name] for name in ("hover", "pressed")}
    pairs = {
        f"{ink} on {name}": (getattr(theme, ink), ground) for ink in INKS for name, ground in grounds.items()
    }
    assert too_faint(pairs, TEXT) == {}


@BOTH
def test_code_can_be_read_in_all_its_colours(theme: Theme) -> None:
    colors = part_colors(theme)
    assert set(colors) == set(Part)
    pairs = {part.name: (color, theme.code_background) for part, color in colors.items()}
    assert too_faint(pairs, TEXT) == {}


@BOTH
def test_found_words_can_be_read_on_their_mark(theme: Theme) -> None:
    theme_manager().apply(ThemeChoice.DARK if theme is DARK else ThemeChoice.LIGHT)
    grounds = (theme.window, theme.selection, theme.surface, theme.user_bubble, theme.code_background)
    assert too_faint({ground: (theme.text, mark_color(ground)) for ground in grounds}, TEXT) == {}


# Style sheets


@dataclass(frozen=True)
class Rule:
    selector: str  # one: 'QPushButton[role="quiet"]:hover'
    values: dict[str, str]

    @property
    def element(self) -> str:
        return re.sub(r"(?<!:):[\w!-]+", "", self.selector)

    @property
    def states(self) -> frozenset[str]:
        return frozenset(re.findall(r"(?<!:):([\w!-]+)", self.selector))


def rules_of(sheet: str) -> list[Rule]:
    rules = []
    for selectors, body in re.findall(r"([^{}]+)\{([^{}]*)\}", sheet):
        values = dict(part.split(":", 1) for part in body.split(";") if ":" in part)
        values = {name.strip(): value.strip() for name, value in values.items()}
        rules += [Rule(" ".join(selector.split()), values) for selector in selectors.split(",")]
    return rules


def color_in(value: str) -> str:
    found = re.search(r"#[0-9a-f]{6}", value)
    return found[0] if found else ""


def generic(element: str) -> str:
    return re.sub(r"\[[^\]]*\]|#[\w-]+", "", element)


class Sheet:
    """What holds for a rule: what it says, else the same element without states, else any of its kind."""

    def __init__(self, text: str, theme: Theme) -> None:
        self.rules = rules_of(text)
        self._theme = theme

    def value(self, rule: Rule, *names: str) -> str:
        for candidate in self._candidates(rule):
            for name in names:
                if name in candidate.values:
                    return candidate.values[name]
        return ""

    def grounds(self, rule: Rule) -> list[str]:
        """On which what belongs to a rule may stand; where it has none, on any."""
        ground = color_in(self.value(rule, "background", "background-color"))
        return [ground] if ground else [getattr(self._theme, name) for name in WIDE]

    def _candidates(self, rule: Rule) -> Iterator[Rule]:
        kinds = (rule.element, generic(rule.element))
        for kind in kinds:
            less = [one for one in self.rules if one.element == kind and one.states <= rule.states]
            yield from sorted(less, key=lambda one: -len(one.states))


def text_pairs(sheet: Sheet) -> dict[str, tuple[str, str]]:
    pairs = {}
    for rule in sheet.rules:
        if "disabled" in rule.states:
            continue
        ink = color_in(sheet.value(rule, "color"))
        if ink and {"color", "background", "background-color"} & rule.values.keys():
            pairs |= {f"{rule.selector} on {one}": (ink, one) for one in sheet.grounds(rule)}
        if placeholder := color_in(rule.values.get("placeholder-text-color", "")):
            pairs |= {f"{rule.selector} placeholder": (placeholder, one) for one in sheet.grounds(rule)}
        if selection := color_in(rule.values.get("selection-background-color", "")):
            chosen = color_in(rule.values["selection-color"])
            pairs[f"{rule.selector} selection"] = (chosen, selection)
    return pairs


def focus_marks(sheet: Sheet, theme: Theme) -> dict[str, tuple[str, str]]:
    """The rings of what has the focus, on what is around them."""
    pairs = {}
    for rule in sheet.rules:
        if "focus" not in rule.states or not {"border", "border-color", "outline"} & rule.values.keys():
            continue
        ring = color_in(rule.values.get("border-color", "") or rule.values.get("border", ""))
        pairs |= {f"{rule.selector} on {name}": (ring, getattr(theme, name)) for name in WIDE}
        if inner := color_in(rule.values.get("outline", "")):
            pairs |= {f"{rule.selector} inner ring": (inner, one) for one in sheet.grounds(rule)}
    return pairs


@BOTH
def test_every_rule_of_the_style_sheet_can_be_read(theme: Theme) -> None:
    pairs = text_pairs(Sheet(application_style_sheet(theme, point_size=10), theme))
    assert len(pairs) > 60
    assert too_faint(pairs, TEXT) == {}


@BOTH
def test_rings_of_the_focus_can_be_seen(theme: Theme) -> None:
    pairs = focus_marks(Sheet(application_style_sheet(theme, point_size=10), theme), theme)
    assert len(pairs) > 20
    assert too_faint(pairs, MARK) == {}


FOCUSED = ("QPushButton", "QToolButton", "QLineEdit", "QComboBox", "QCheckBox", "QRadioButton", "QSlider",
           'QPlainTextEdit[role="field"]', 'QScrollArea[role="focusable"]')  # fmt: skip


@pytest.mark.parametrize("element", FOCUSED)
def test_every_kind_of_control_has_a_ring(element: str) -> None:
    rules = rules_of(application_style_sheet(LIGHT, point_size=10))
    assert any(rule.element == element and "focus" in rule.states for rule in rules)


@BOTH
def test_marks_of_controls_can_be_seen(theme: Theme) -> None:
    """Boxes to tick, handles, and how far a bar has come."""
    sheet = Sheet(application_style_sheet(theme, point_size=10), theme)
    pairs = {}
    for rule in sheet.rules:
        if "disabled" in rule.states:
            continue
        if rule.element in ("QCheckBox::indicator", "QRadioButton::indicator", "QSlider::handle"):
            edge = color_in(sheet.value(rule, "border-color", "border"))
            pairs |= {f"{rule.selector} on {name}": (edge, getattr(theme, name)) for name in WIDE}
    track = sheet_colors(theme)["pressed"]
    pairs["QProgressBar::chunk"] = (theme.accent, track)
    pairs["sub-page of a slider"] = (theme.accent, theme.border)
    assert len(pairs) > 10
    assert too_faint(pairs, MARK) == {}


@BOTH
def test_style_sheets_of_single_widgets_can_be_read(window: MainWindow, theme: Theme) -> None:
    window._choose_theme(ThemeChoice.DARK if theme is DARK else ThemeChoice.LIGHT)
    judged = set()
    for show in SURFACES.values():
        surface = show(window)
        for widget in (window, *window.findChildren(QWidget)):
            if text := widget.styleSheet():
                sheet = Sheet(text, theme)
                assert too_faint(text_pairs(sheet), TEXT) == {}, type(widget).__name__
                assert too_faint(focus_marks(sheet, theme), MARK) == {}, type(widget).__name__
                judged.add(type(widget).__name__)
        if surface is not window:
            surface.close()
    assert {"DisclosureButton", "QToolButton"} <= judged


# Painters

_HOVER = "mixed(theme.text, theme.window, 0.06)"
_LINE, _GROUND, _MARK = "line", "ground", "mark"
TINTS: dict[tuple[str, str], str] = {
    ("composer.py", "mixed(theme.accent, theme.border, 0.7)"): _MARK,  # ring of the field
    ("composer.py", "mixed(theme.text, theme.surface_raised, 0.1)"): "disabled",
    ("composer.py", "mixed(theme.text, ground, 0.16)"): "under accent_text",
    ("conversation_delegate.py", _HOVER): _GROUND,
    ("icons.py", "mixed(theme.text_muted, theme.window, 0.6)"): "disabled",
    ("key_caps.py", "mixed(theme.text, theme.border, 0.25)"): _LINE,  # the words on a cap say all
    ("prose_view.py", "mixed(theme.accent, theme.surface, 0.7)"): _MARK,  # line under a link
    ("search_results.py", _HOVER): _GROUND,
    ("search_results.py", "mixed(current_theme().accent, ground, 0.3)"): "see `mark_color` above",
    ("share_bar.py", "mixed(theme.accent, theme.window, 0.7)"): _MARK,
    ("share_bar.py", "mixed(theme.text_muted, theme.window, 0.75)"): _MARK,
    ("slot_delegate.py", _HOVER): _GROUND,
}
OPAQUE_NO_MORE = {  # modules that paint with an opacity, and what
    "choice_box.py": "the arrow of a box that is disabled",
    "conversation_delegate.py": "a dot that breathes, up to its whole colour",
    "drop_target.py": "the ground over what is covered, nearly whole",
    "speed_plot.py": "below a line of the plot, which is whole",
    "waiting_dots.py": "dots that breathe",
}
DEFINING = ("theme.py", "style_sheet.py")


def calls(source: Path) -> Iterator[ast.Call]:
    tree = ast.parse(source.read_text(encoding="utf-8"))
    return (node for node in ast.walk(tree) if isinstance(node, ast.Call))


def name_of(call: ast.Call) -> str:
    return call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")


def test_every_tint_that_a_painter_mixes_is_known() -> None:
    mixes = {
        (source.name, ast.unparse(call))
        for source in SOURCES
        if source.name not in DEFINING
        for call in calls(source)
        if name_of(call) == "mixed"
    }
    assert mixes == set(TINTS)


@BOTH
def test_tints_can_be_told_from_what_they_are_drawn_on(theme: Theme) -> None:
    texts, marks = {}, {}
    for (module, written), use in TINTS.items():
        if use == _GROUND:
            tint = eval(written, {"theme": theme, "mixed": mixed})
            texts |= {f"{module}: {ink} on a tint": (getattr(theme, ink), tint) for ink in INKS}
        elif use == _MARK:
            tint = eval(written, {"theme": theme, "mixed": mixed})
            marks |= {f"{module}: {written} on {one}": (tint, getattr(theme, one)) for one in WIDE}
    accent_hover = sheet_colors(theme)["accent_hover"]
    texts["the button that sends, under the mouse"] = (theme.accent_text, accent_hover)
    assert too_faint(texts, TEXT) == {}
    assert too_faint(marks, MARK) == {}


def test_only_known_painters_paint_with_an_opacity() -> None:
    found = {
        source.name
        for source in SOURCES
        for call in calls(source)
        if name_of(call) in ("setOpacity", "setAlpha", "setAlphaF")
    }
    assert found == set(OPAQUE_NO_MORE)


def test_colours_stand_nowhere_but_in_the_themes() -> None:
    """But black where something is only measured, and what a formula has in the place of its colour."""
    allowed = {"theme.py", "code_highlight.py"}
    found = {
        (source.name, node.value)
        for source in SOURCES
        if source.name not in allowed
        for node in ast.walk(ast.parse(source.read_text(encoding="utf-8")))
        if isinstance(node, ast.Constant)
        and isinstance(node.value, str)
        and re.search(r"#[0-9a-fA-F]{6}\b", node.value)
    }
    assert found == {("formula_typesetter.py", "#010203"), ("search_results.py", "#000000")}
    named = {
        (source.name, node.attr)
        for source in SOURCES
        for node in ast.walk(ast.parse(source.read_text(encoding="utf-8")))
        if isinstance(node, ast.Attribute) and ast.unparse(node.value).endswith("GlobalColor")
    }
    assert {color for _, color in named} <= {"transparent"}


@BOTH
def test_parts_of_a_bar_and_lines_of_a_plot_can_be_seen(theme: Theme) -> None:
    """But what is free, which is the bar itself: it has an edge."""
    pairs = {
        f"{kind} on {name}": (color, getattr(theme, name))
        for kind, color in share_colors(theme).items()
        if kind != FREE
        for name in WIDE
    }
    assert too_faint(pairs, MARK) == {}


@BOTH
def test_the_meter_of_the_context_can_be_seen_on_its_track(theme: Theme) -> None:
    pairs = {name: (getattr(theme, name), theme.border) for name in ("accent", "warning")}
    assert too_faint(pairs, MARK) == {}
