"""A small button with an icon and no words. A shy one shows itself only where the mouse or the focus is."""

from __future__ import annotations

from PySide6.QtCore import Qt
from PySide6.QtGui import QPaintEvent
from PySide6.QtWidgets import QToolButton, QWidget

from app.language import tr
from app.ui.icons import icon
from app.ui.text_size import follow_text_size, set_icon_size
from app.ui.theme import current_theme

_ICON = 15  # pixels


class ShyButton(QToolButton):
    """`name` is what screen readers and the tooltip say. `reveal(True)` says that the mouse is near."""

    def __init__(
        self, image: str, name: str, parent: QWidget | None = None, *, shy: bool = False, keys: str = ""
    ) -> None:
        super().__init__(parent)
        self._image = image
        self._shy = shy
        self._near = False
        self._keys = keys
        self.set_name(name)
        self.setCursor(Qt.CursorShape.PointingHandCursor)
        self.setFocusPolicy(Qt.FocusPolicy.TabFocus)
        set_icon_size(self, _ICON)
        self.apply_theme()
        follow_text_size(self, lambda: self.setFixedSize(self.sizeHint()))

    @property
    def seen(self) -> bool:
        return not self._shy or self._near or self.hasFocus()

    def set_name(self, name: str) -> None:
        self.setAccessibleName(name)
        self.setToolTip(tr("{name} ({keys})", name=name, keys=self._keys) if self._keys else name)

    def apply_theme(self) -> None:
        self.setIcon(icon(self._image, current_theme().text_muted))

    def reveal(self, near: bool) -> None:
        self._near = near
        self.update()

    # Qt overrides

    def paintEvent(self, event: QPaintEvent) -> None:
        if self.seen:
            super().paintEvent(event)
