"""The application's style sheet, made from a theme.

Looks are picked by the dynamic property `role` (set it before the widget is shown, or call `set_role`):
buttons "primary", "quiet", "danger", "chip", "primary-chip", "row"; labels "muted", "small", "title",
"display", "section", "current", "danger", "warning", "warning-small"; tool buttons "small"; frames "card",
"surface", "banner", "header", "status", "line"; text fields "field", "search"; lists "sections";
scroll areas "focusable".
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from PySide6.QtWidgets import QPushButton, QWidget

from app.ui.text_size import scaled

if TYPE_CHECKING:
    from app.ui.theme import Theme

LABEL_GAP = "\N{EN SPACE}"  # between an icon and its words


def set_role(widget: QWidget, role: str) -> None:
    """Gives a widget a look of the style sheet, also after it has been shown."""
    if widget.property("role") == role:
        return
    widget.setProperty("role", role)
    widget.style().unpolish(widget)
    widget.style().polish(widget)


def set_label(button: QPushButton, text: str) -> None:
    """Text beside an icon, with a little more room than Qt leaves, and any "&" shown as it is."""
    button.setText(LABEL_GAP + text.replace("&", "&&"))


def sheet_colors(theme: Theme) -> dict[str, str]:
    """The colours that the sheet names with an "@", as "#rrggbb"."""
    from app.ui.theme import mixed

    return {
        "window": theme.window,
        "surface": theme.surface,
        "raised": theme.surface_raised,
        "text": theme.text,
        "muted": theme.text_muted,
        "accent": theme.accent,
        "accent_text": theme.accent_text,
        "accent_hover": mixed(theme.text, theme.accent, 0.16),
        "border": theme.border,
        "border_strong": mixed(theme.text, theme.border, 0.25),
        "danger": theme.danger,
        "warning": theme.warning,
        "success": theme.success,
        "selection": theme.selection,
        "hover": mixed(theme.text, theme.window, 0.07),
        "pressed": mixed(theme.text, theme.window, 0.13),
        "disabled": mixed(theme.text_muted, theme.window, 0.6),
    }


def application_style_sheet(theme: Theme, *, point_size: float) -> str:
    """`point_size` is that of the interface font; the relative sizes follow from it."""
    from app.ui.theme import SCALE_DISPLAY, SCALE_SMALL, SCALE_TITLE

    radio = scaled(12)
    ring = round(radio / 4) + 1  # around the point of one that is chosen
    values = {
        **sheet_colors(theme),
        "small": f"{point_size * SCALE_SMALL:.2f}pt",
        "title": f"{point_size * SCALE_TITLE:.2f}pt",
        "display": f"{point_size * SCALE_DISPLAY:.2f}pt",
        "arrow": f"{scaled(14) + 14}px",
        "tick": f"{scaled(14)}px",
        "radio": f"{radio}px",
        "pill": f"{scaled(16) // 2 + 6}px",  # half as high as a chip
        "round": f"{radio // 2 + 1}px",
        "ring": f"{ring}px",
        "point": f"{radio + 2 - 2 * ring}px",
    }
    return re.sub(r"@(\w+)", lambda match: values[match[1]], _SHEET)


_SHEET = """
QMainWindow { background: @window; }
QDialog { background: @window; border: 1px solid @border_strong; }
QMainWindow::separator { width: 1px; height: 1px; background: @border; }
QDialogButtonBox { dialogbuttonbox-buttons-have-icons: 0; }
QMessageBox QLabel#qt_msgbox_label { font-weight: 600; }
QToolTip { background: @raised; color: @text; border: 1px solid @border; padding: 4px 6px; }

QFrame[role="surface"], QWidget[role="surface"] { background: @surface; border: none; }
QFrame[role="card"] { background: @raised; border: 1px solid @border; border-radius: 10px; }
QFrame[role="line"] { background: @border; border: none; }
QFrame[role="banner"] { background: @raised; border: 1px solid @border; border-radius: 8px; }

QWidget[role="header"] { background: @surface; border: none; border-bottom: 1px solid @border; }
QWidget[role="status"] { background: @window; border: none; border-top: 1px solid @border; }

QLabel { background: transparent; }
QLabel:disabled { color: @disabled; }
QLabel[role="muted"] { color: @muted; }
QLabel[role="small"] { color: @muted; font-size: @small; }
QLabel[role="title"] { font-size: @title; font-weight: 600; }
QLabel[role="display"] { font-size: @display; font-weight: 600; }
QLabel[role="section"] { color: @muted; font-size: @small; font-weight: 600; }
QLabel[role="header-title"] { font-weight: 600; }
QLabel[role="current"] { font-weight: 600; }
QLabel[role="danger"] { color: @danger; }
QLabel[role="warning"] { color: @warning; }
QLabel[role="warning-small"], QLabel[role="warning-small"]:disabled { color: @warning; font-size: @small; }

QPushButton {
    background: @raised; color: @text; border: 1px solid @border; border-radius: 7px; padding: 6px 14px;
}
QPushButton:hover { border-color: @border_strong; background: @hover; }
QPushButton:pressed { background: @pressed; }
QPushButton:focus { border: 1px solid @accent; }
QPushButton:disabled { color: @disabled; border-color: @border; background: transparent; }
QPushButton[role="primary"] {
    background: @accent; color: @accent_text; border-color: @accent; font-weight: 600;
}
QPushButton[role="primary"]:hover { background: @accent_hover; border-color: @accent_hover; }
QPushButton[role="primary"]:focus {
    border: 2px solid @text; padding: 5px 13px; outline: 1px solid @accent_text; outline-offset: 3px;
    outline-radius: 4px;
}
QPushButton[role="primary"]:disabled { background: @pressed; color: @disabled; border-color: @pressed; }
QPushButton[role="danger"] { color: @danger; font-weight: 600; }
QPushButton[role="quiet"] { background: transparent; border-color: transparent; }
QPushButton[role="quiet"]:hover { background: @hover; }
QPushButton[role="quiet"]:pressed { background: @pressed; }
QPushButton[role="quiet"]:focus { border: 1px solid @accent; }
QPushButton[role="chip"], QPushButton[role="primary-chip"] { border-radius: @pill; padding: 5px 13px; }
QPushButton[role="primary-chip"] { background: @accent; color: @accent_text; border-color: @accent; }
QPushButton[role="primary-chip"]:hover { background: @accent_hover; border-color: @accent_hover; }
QPushButton[role="primary-chip"]:focus {
    border: 2px solid @text; padding: 4px 12px; outline: 1px solid @accent_text; outline-offset: 3px;
    outline-radius: 10px;
}
QPushButton[role="chip"]:hover { background: @hover; }
QPushButton[role="row"] { background: transparent; border: 1px solid transparent; text-align: left; }
QPushButton[role="row"]:hover { background: @hover; }
QPushButton[role="row"]:pressed { background: @pressed; }
QPushButton[role="row"]:focus { border: 1px solid @accent; }

QToolButton {
    background: transparent; border: 1px solid transparent; border-radius: 6px; padding: 4px; color: @text;
}
QToolButton:hover { background: @hover; }
QToolButton:pressed, QToolButton:checked { background: @pressed; }
QToolButton:focus { border: 1px solid @accent; }
QToolButton:disabled { color: @disabled; }
QToolButton[role="small"] { color: @muted; font-size: @small; padding: 1px 5px; }
QToolButton::menu-indicator { image: none; width: 0; }

QLineEdit {
    background: @raised; color: @text; border: 1px solid @border; border-radius: 6px; padding: 4px 8px;
    selection-background-color: @selection; selection-color: @text; placeholder-text-color: @muted;
}
QLineEdit:focus { border-color: @accent; }
QLineEdit[role="search"] { padding-left: 0; }
QPlainTextEdit[role="field"] {
    background: @raised; color: @text; border: 1px solid @border; border-radius: 6px; padding: 4px 5px;
    selection-background-color: @selection; selection-color: @text; placeholder-text-color: @muted;
}
QPlainTextEdit[role="field"]:focus { border-color: @accent; }

QComboBox {
    background: @raised; color: @text; border: 1px solid @border; border-radius: 6px;
    padding: 4px @arrow 4px 8px;
}
QComboBox:hover { border-color: @border_strong; }
QComboBox:focus, QComboBox:on { border-color: @accent; }
QComboBox:disabled { color: @disabled; }
QComboBox::drop-down { border: none; width: 0; }
QComboBox QAbstractItemView {
    background: @raised; color: @text; border: 1px solid @border; padding: 4px; outline: none;
    selection-background-color: @selection; selection-color: @text;
}
QComboBox QAbstractItemView::item { padding: 4px 8px; border-radius: 4px; }

QCheckBox { border: 1px solid transparent; border-radius: 4px; padding: 1px 4px 1px 1px; spacing: 8px; }
QCheckBox:focus { border-color: @accent; }
QCheckBox::indicator {
    width: @tick; height: @tick; border: 1px solid @muted; border-radius: 4px; background: @raised;
}
QCheckBox::indicator:hover { border-color: @accent; }
QCheckBox::indicator:checked { border-color: @accent; background: @accent; }
QCheckBox::indicator:disabled { border-color: @border; }

QRadioButton { border: 1px solid transparent; border-radius: 4px; padding: 1px 4px 1px 1px; spacing: 6px; }
QRadioButton:focus { border-color: @accent; }
QRadioButton::indicator {
    width: @radio; height: @radio; border: 1px solid @muted; border-radius: @round; background: @raised;
}
QRadioButton::indicator:hover { border-color: @accent; }
QRadioButton::indicator:checked {
    width: @point; height: @point; border: @ring solid @accent; border-radius: @round;
    background: @accent_text;
}
QRadioButton::indicator:disabled { border-color: @border; }

QProgressBar { background: @pressed; border: none; border-radius: 3px; max-height: 6px; min-height: 6px; }
QProgressBar::chunk { background: @accent; border-radius: 3px; }

QListWidget[role="sections"]::item {
    padding: 6px 9px; border: 1px solid transparent; border-radius: 6px; color: @text;
}
QListWidget[role="sections"]::item:focus { border-color: @accent; }
QListWidget[role="sections"]::item:hover { background: @hover; }
QListWidget[role="sections"]::item:selected { background: @selection; }
QListWidget[role="sections"]::item:disabled { color: @disabled; background: transparent; }
QListView, QTreeView { background: transparent; border: none; outline: none; }

QMenu { background: @raised; color: @text; border: 1px solid @border; padding: 4px; }
QMenu::item { padding: 6px 24px 6px 12px; border-radius: 5px; }
QMenu::icon { padding-left: 8px; }
QMenu::item:selected { background: @selection; }
QMenu::item:disabled { color: @disabled; }
QMenu::separator { height: 1px; background: @border; margin: 4px 8px; }

QSplitter::handle { background: @border; }
QSplitter::handle:hover { background: @accent; }

QScrollArea { background: transparent; border: none; }
QScrollArea[role="focusable"] { border: 1px solid transparent; border-radius: 6px; }
QScrollArea[role="focusable"]:focus { border-color: @accent; }
QSlider { border: 1px solid transparent; border-radius: 6px; min-height: 20px; }
QSlider:focus { border-color: @accent; }
QSlider::groove:horizontal { height: 4px; background: @border; border-radius: 2px; }
QSlider::sub-page:horizontal { background: @accent; border-radius: 2px; }
QSlider::handle:horizontal {
    width: 12px; height: 12px; margin: -5px 0; border: 1px solid @accent; border-radius: 7px;
    background: @raised;
}
QSlider::handle:horizontal:hover { background: @accent; }
QSlider::sub-page:horizontal:disabled, QSlider::groove:horizontal:disabled { background: @border; }

QScrollBar:vertical { background: transparent; width: 11px; margin: 0; }
QScrollBar:horizontal { background: transparent; height: 11px; margin: 0; }
QScrollBar::handle { background: @border; border-radius: 4px; }
QScrollBar::handle:vertical { min-height: 32px; margin: 2px 2px 2px 1px; }
QScrollBar::handle:horizontal { min-width: 32px; margin: 1px 2px 2px 2px; }
QScrollBar::handle:hover { background: @muted; }
QScrollBar::add-line, QScrollBar::sub-line { width: 0; height: 0; }
QScrollBar::add-page, QScrollBar::sub-page { background: transparent; }
""".lstrip()
