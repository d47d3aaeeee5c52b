"""The top line: title of the conversation, the current model, and the menu.

Signals: sidebar_toggled, model_clicked, live_toggled.
"""

from __future__ import annotations

from PySide6.QtCore import QSize, Qt, Signal
from PySide6.QtGui import QResizeEvent
from PySide6.QtWidgets import QHBoxLayout, QMenu, QSizePolicy, QToolButton, QWidget

from app.controller import ModelPhase, ModelState
from app.language import tr
from app.titles import one_line
from app.ui.elided_label import ElidedLabel
from app.ui.icons import icon
from app.ui.load_progress import progress_sentence
from app.ui.push_button import PushButton
from app.ui.recent_models import shown_name
from app.ui.style_sheet import LABEL_GAP, set_label, set_role
from app.ui.text_size import follow_text_size, scaled, set_icon_size, text_size
from app.ui.theme import ICON_SIZE, SPACE_M, SPACE_S, Theme, current_theme, theme_manager
from app.ui.tooltips import plain_tooltip

_CHIP_WIDTH = 380  # a longer name is shortened
_CHIP_MIN_WIDTH = 150
_LEAST_TITLE = 90
_HEIGHT = 48
_NAME_PLACE = "\0"  # where the name of the model goes, in words whose order a language has its own way with


class ModelChip(PushButton):
    """Name and state of the model; a click opens the loader."""

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent=parent)
        self._state = ModelState()
        self._words = _chip_words(self._state)
        self._quiet = False
        set_icon_size(self, ICON_SIZE)
        self.setSizePolicy(QSizePolicy.Policy.Maximum, QSizePolicy.Policy.Fixed)
        self.set_state(self._state)
        theme_manager().changed.connect(self._paint_icon)
        text_size().changed.connect(self._fit_text)

    def set_state(self, state: ModelState) -> None:
        self._state = state
        before, name, after, tooltip = self._words = _chip_words(state)
        self._fit_text()
        self.updateGeometry()
        self.setAccessibleName(tr("Model: {state}", state=f"{before}{name}{after}"))
        self.setToolTip(plain_tooltip(tr("{words} ({keys})", words=tooltip, keys="Ctrl+Shift+M")))
        self._dress()

    def set_quiet(self, quiet: bool) -> None:
        """While models are being chosen the chip doesn't call for a click."""
        self._quiet = quiet
        self._dress()

    def _fit_text(self) -> None:
        """Shortens the model's name, and the words around it only where there is no room for them alone."""
        before, name, after, _ = self._words
        metrics = self.fontMetrics()
        room = self.width() - self._room_beside_text() - metrics.horizontalAdvance(before + after)
        text = f"{before}{metrics.elidedText(name, Qt.TextElideMode.ElideMiddle, room)}{after}"
        if room < 0:
            room += metrics.horizontalAdvance(before + after)
            text = metrics.elidedText(text, Qt.TextElideMode.ElideRight, room)
        set_label(self, text)

    def _room_beside_text(self) -> int:
        return super().sizeHint().width() - self.fontMetrics().horizontalAdvance(self.text()) + 2

    def _dress(self) -> None:
        calls = self._state.phase is ModelPhase.NONE and not self._quiet
        set_role(self, "primary-chip" if calls else "chip")
        self._paint_icon(current_theme())

    def _paint_icon(self, theme: Theme) -> None:
        match self._state.phase:
            case ModelPhase.NONE:
                self.setIcon(icon("model", theme.text_muted if self._quiet else theme.accent_text))
            case ModelPhase.LOADING:
                self.setIcon(icon("ring", theme.warning))
            case ModelPhase.READY:
                self.setIcon(icon("dot", theme.success))

    # Qt overrides

    def sizeHint(self) -> QSize:
        full = self.fontMetrics().horizontalAdvance("".join(self._words[:3]) + LABEL_GAP)
        most = scaled(_CHIP_WIDTH)
        return QSize(min(self._room_beside_text() + full, most), super().sizeHint().height())

    def minimumSizeHint(self) -> QSize:
        least = scaled(_CHIP_MIN_WIDTH)
        return QSize(min(least, self.sizeHint().width()), super().minimumSizeHint().height())

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        self._fit_text()


def _chip_words(state: ModelState) -> tuple[str, str, str, str]:
    """What stands on the chip (words before the model's name, the name, words after it), and its tooltip."""
    if state.phase is ModelPhase.NONE:
        return tr("Choose a model"), "", "", tr("Choose a model to chat with")
    if state.phase is ModelPhase.READY:
        return "", one_line(state.name), "", tr("{name} is ready; choose another model", name=state.name)
    fraction = state.progress.fraction if state.progress is not None else None
    if fraction is not None:
        words = tr("Loading {name} · {fraction:.0%}", name=_NAME_PLACE, fraction=fraction)
    else:
        words = tr("Loading {name} …", name=_NAME_PLACE)
    before, _, after = words.partition(_NAME_PLACE)
    name = shown_name(state.path) if state.path is not None else state.name
    return before, one_line(name), after, _loading_tooltip(state)


def _loading_tooltip(state: ModelState) -> str:
    progress = progress_sentence(state.progress)
    if state.summary is None:
        return tr("{progress}; show the progress", progress=progress)
    return tr(
        "{name} stays loaded until it is ready. {progress}; show the progress",
        name=state.summary.name,
        progress=progress,
    )


class Header(QWidget):
    """Builds the line; the window fills the menu."""

    sidebar_toggled = Signal()
    model_clicked = Signal()
    live_toggled = Signal()

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.setProperty("role", "header")
        self.setAttribute(Qt.WidgetAttribute.WA_StyledBackground)
        follow_text_size(self, self._fit)
        self.sidebar_button = QToolButton(self)
        self.sidebar_button.setAccessibleName(tr("Show or hide the conversations"))
        self.sidebar_button.setToolTip(tr("Show or hide the conversations (Ctrl+B)"))
        self.title = ElidedLabel("", self)
        self.title.setProperty("role", "header-title")
        self.title.setMinimumWidth(_LEAST_TITLE)
        self.chip = ModelChip(self)
        self.live_button = QToolButton(self)
        self.live_button.setAccessibleName(tr("Show or hide what the engine keeps"))
        self.live_button.setToolTip(tr("Show or hide what the engine keeps (Ctrl+J)"))
        self.menu_button = QToolButton(self)
        self.menu_button.setAccessibleName(tr("Menu"))
        self.menu_button.setToolTip(tr("Menu (F10)"))
        self.menu_button.setPopupMode(QToolButton.ToolButtonPopupMode.InstantPopup)
        layout = QHBoxLayout(self)
        layout.setContentsMargins(SPACE_S, 0, SPACE_M, 0)
        layout.setSpacing(SPACE_S)
        layout.addWidget(self.sidebar_button)
        layout.addWidget(self.title, 1)
        layout.addWidget(self.chip)
        layout.addWidget(self.live_button)
        layout.addWidget(self.menu_button)
        for button in (self.sidebar_button, self.live_button, self.menu_button):
            set_icon_size(button, ICON_SIZE)
            button.setFocusPolicy(Qt.FocusPolicy.TabFocus)
        self.sidebar_button.clicked.connect(self.sidebar_toggled)
        self.live_button.clicked.connect(self.live_toggled)
        self.chip.clicked.connect(self.model_clicked)
        self._paint_icons(current_theme())
        theme_manager().changed.connect(self._paint_icons)

    def set_menu(self, menu: QMenu) -> None:
        """Opens inside the window: along the edge at which its button begins, which is made the outer one."""
        menu.setLayoutDirection(self.layoutDirection())
        mirrored = self.layoutDirection() == Qt.LayoutDirection.LeftToRight
        self.menu_button.setLayoutDirection(
            Qt.LayoutDirection.RightToLeft if mirrored else Qt.LayoutDirection.LeftToRight
        )
        self.menu_button.setMenu(menu)

    def _fit(self) -> None:
        self.setFixedHeight(max(_HEIGHT, self.fontMetrics().height() * 2 + SPACE_M))

    def _paint_icons(self, theme: Theme) -> None:
        self.sidebar_button.setIcon(icon("sidebar", theme.text_muted))
        self.live_button.setIcon(icon("panel", theme.text_muted))
        self.menu_button.setIcon(icon("more", theme.text_muted))
