"""Pages between the versions of a message: "‹ 2 / 3 ›". Hidden where there is only one."""

from __future__ import annotations

from PySide6.QtCore import Signal
from PySide6.QtWidgets import QHBoxLayout, QLabel, QWidget

from app.language import mark, tr
from app.ui.shy_button import ShyButton
from app.ui.style_sheet import set_role

# By what is paged.
_OLDER = {
    "message": mark("Earlier version of the message"),
    "answer": mark("Earlier version of the answer"),
}
_NEWER = {
    "message": mark("Later version of the message"),
    "answer": mark("Later version of the answer"),
}
_PLACES = {
    "message": mark("Version {version} of {versions} of the message"),
    "answer": mark("Version {version} of {versions} of the answer"),
}


class VersionPager(QWidget):
    """Signals: paged(int) with how many versions further on."""

    paged = Signal(int)

    def __init__(self, what: str, parent: QWidget | None = None) -> None:
        """`what` is paged: "message" or "answer"."""
        super().__init__(parent)
        self._what = what
        self.older = ShyButton("chevron-left", tr(_OLDER[what]), self, keys="Alt+PgUp")
        self.newer = ShyButton("chevron-right", tr(_NEWER[what]), self, keys="Alt+PgDown")
        self._place = QLabel(self)
        set_role(self._place, "small")
        row = QHBoxLayout(self)
        row.setContentsMargins(0, 0, 0, 0)
        row.setSpacing(0)
        row.addWidget(self.older)
        row.addWidget(self._place)
        row.addWidget(self.newer)
        self.older.clicked.connect(lambda: self.paged.emit(-1))
        self.newer.clicked.connect(lambda: self.paged.emit(+1))
        self.hide()

    @property
    def text(self) -> str:
        return self._place.text()

    def show_version(self, version: int, versions: int) -> None:
        self._place.setText(f"{version} / {versions}")
        self._place.setAccessibleName(tr(_PLACES[self._what], version=version, versions=versions))
        self.older.setEnabled(version > 1)
        self.newer.setEnabled(version < versions)
        self.setVisible(versions > 1)

    def apply_theme(self) -> None:
        self.older.apply_theme()
        self.newer.apply_theme()
