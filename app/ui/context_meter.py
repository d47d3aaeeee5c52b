"""How full the context of the open conversation is, and what is to happen when it is full."""

from __future__ import annotations

from dataclasses import dataclass

from PySide6.QtCore import QRectF, QSize, Qt, Signal
from PySide6.QtGui import QAction, QActionGroup, QPainter, QPaintEvent
from PySide6.QtWidgets import QHBoxLayout, QLabel, QMenu, QToolButton, QWidget

from app.context_policy import ContextPolicy
from app.language import mark, tr
from app.ui.icons import icon
from app.ui.style_sheet import set_role
from app.ui.text_format import format_tokens
from app.ui.text_size import set_icon_size
from app.ui.theme import SPACE_S, Theme, current_theme, theme_manager

WARN_SHARE = 0.8
_BAR = QSize(72, 5)  # pixels
_POLICIES = {
    ContextPolicy.STOP: mark("Stop, and say so"),
    ContextPolicy.DROP_OLDEST: mark("Go on without the oldest messages"),
}


@dataclass(frozen=True)
class ContextUse:
    """Tokens: `used` by prompt and answer of the last turn, of `limit` that the model keeps in view."""

    used: int
    limit: int

    @property
    def share(self) -> float:
        return min(1.0, self.used / self.limit) if self.limit > 0 else 0.0

    @property
    def is_near(self) -> bool:
        return self.limit > 0 and self.used >= WARN_SHARE * self.limit

    @property
    def words(self) -> str:
        limit = format_tokens(self.limit)
        if not self.is_near:
            return tr("Context {used:,} of {limit}", used=self.used, limit=limit)
        return tr(
            "Context {used:,} of {limit}, {share:.0%} full", used=self.used, limit=limit, share=self.share
        )


class ContextMeter(QWidget):
    """Hidden while there is no model. Signals: policy_chosen(ContextPolicy)."""

    policy_chosen = Signal(object)

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.use = ContextUse(0, 0)
        self._bar = _Bar(self)
        self.words = QLabel(self)
        set_role(self.words, "small")
        self.button = QToolButton(self)
        self.button.setPopupMode(QToolButton.ToolButtonPopupMode.InstantPopup)
        self.button.setAccessibleName(tr("What happens when the context is full"))
        self.button.setProperty("role", "small")
        self.button.setLayoutDirection(Qt.LayoutDirection.RightToLeft)  # the arrow behind the words
        set_icon_size(self.button, 12)
        self.menu = QMenu(self)
        self._group = QActionGroup(self)
        self._actions: dict[ContextPolicy, QAction] = {}
        heading = self.menu.addAction(tr("When the context is full:"))
        heading.setEnabled(False)
        for policy, name in _POLICIES.items():
            action = self._actions[policy] = self.menu.addAction(tr(name))
            action.setCheckable(True)
            self._group.addAction(action)
            action.triggered.connect(lambda _=False, policy=policy: self.policy_chosen.emit(policy))
        self.button.setMenu(self.menu)
        row = QHBoxLayout(self)
        row.setContentsMargins(0, 0, 0, 0)
        row.setSpacing(SPACE_S)
        row.addWidget(self._bar)
        row.addWidget(self.words)
        row.addWidget(self.button)
        self.set_short(False)
        theme_manager().changed.connect(self._paint)
        self._paint(current_theme())
        self.hide()

    @property
    def policy(self) -> ContextPolicy:
        return next(policy for policy, action in self._actions.items() if action.isChecked())

    def set_policy(self, policy: ContextPolicy) -> None:
        self._actions[policy].setChecked(True)
        self._show_tooltip()

    def set_short(self, short: bool) -> None:
        """Leaves out what the button says; its arrow stays."""
        style = Qt.ToolButtonStyle
        words = tr("When the context is full")
        self.button.setText("" if short else words)
        self.button.setToolTip(words if short else "")
        self.button.setToolButtonStyle(style.ToolButtonIconOnly if short else style.ToolButtonTextBesideIcon)

    def set_use(self, used: int, limit: int) -> None:
        """A limit of 0 hides it."""
        use = ContextUse(used, limit)
        if use == self.use:
            return
        self.use = use
        self.words.setText(use.words)
        set_role(self.words, "warning-small" if use.is_near else "small")
        self._bar.set_use(use)
        self._bar.setAccessibleName(use.words)
        self.setVisible(limit > 0)
        self._show_tooltip()

    def _paint(self, theme: Theme) -> None:
        self.button.setIcon(icon("chevron-down", theme.text_muted))
        self._bar.update()

    def _show_tooltip(self) -> None:
        policy = next((policy for policy, action in self._actions.items() if action.isChecked()), None)
        then = {
            ContextPolicy.STOP: tr("When the context is full, the answer ends and says so."),
            ContextPolicy.DROP_OLDEST: tr(
                "When the context is full, the oldest messages are no longer read; they stay in the chat."
            ),
        }
        lines = [tr("Question, answer and everything before them share the context."), then.get(policy, "")]
        if self.use.is_near:
            lines.insert(0, tr("The context is {share:.0%} full.", share=self.use.share))
        self.setToolTip("\n".join(line for line in lines if line))

    # Qt overrides

    def minimumSizeHint(self) -> QSize:
        """What the button says is the first to give way."""
        hint = super().minimumSizeHint()
        words = self.button.fontMetrics().horizontalAdvance(self.button.text())
        return QSize(hint.width() - words, hint.height())


class _Bar(QWidget):
    def __init__(self, parent: QWidget) -> None:
        super().__init__(parent)
        self._use = ContextUse(0, 0)
        self.setFixedSize(_BAR)

    def set_use(self, use: ContextUse) -> None:
        self._use = use
        self.update()

    # Qt overrides

    def paintEvent(self, _event: QPaintEvent) -> None:
        theme = current_theme()
        painter = QPainter(self)
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        painter.setPen(Qt.PenStyle.NoPen)
        whole = QRectF(self.rect())
        radius = whole.height() / 2
        painter.setBrush(theme.color("border"))
        painter.drawRoundedRect(whole, radius, radius)
        if self._use.used:
            filled = QRectF(whole)
            filled.setWidth(max(whole.height(), whole.width() * self._use.share))
            painter.setBrush(theme.color("warning" if self._use.is_near else "accent"))
            painter.drawRoundedRect(filled, radius, radius)
        painter.end()
