"""Models that are one click away: those that were loaded before, of which one that is gone stays in the list
with the reason, and those that were found.

Signals: chosen(Path).
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from PySide6.QtCore import Qt, Signal
from PySide6.QtWidgets import QFrame, QHBoxLayout, QLabel, QVBoxLayout, QWidget

from app.language import tr, translated
from app.ui.elided_label import ElidedLabel
from app.ui.icon_label import IconLabel
from app.ui.push_button import PushButton
from app.ui.style_sheet import set_role
from app.ui.text_format import format_folder
from app.ui.text_size import follow_text_size
from app.ui.theme import SPACE_M, SPACE_S, SPACE_XS
from app.ui.tooltips import plain_tooltip
from engine.wording import phrase


def why_unavailable(path: Path) -> str:
    """Why a model that was there once can't be opened now, in English; "" if it can. Touches the disk."""
    is_file = path.suffix.lower() == ".gguf"
    try:
        if not path.exists():
            return phrase("The file isn't there any more" if is_file else "The folder isn't there any more")
        if not os.access(path, os.R_OK | (os.X_OK if path.is_dir() else 0)):
            if is_file:
                return phrase("This file can't be read with your permissions")
            return phrase("This folder can't be read with your permissions")
    except OSError as error:  # an unplugged drive, a share that is down
        why = error.strerror or error
        if is_file:
            return phrase(f"The file can't be reached ({why})")
        return phrase(f"The folder can't be reached ({why})")
    return ""


def shown_name(path: Path) -> str:
    """The name a person knows a model by."""
    repository = _repository_of(path)
    if repository is not None:
        return repository.name.split("--")[-1]
    return (path.stem if path.suffix.lower() == ".gguf" else path.name) or str(path)


def _repository_of(path: Path) -> Path | None:
    """The folder of Hugging Face's download cache in which this is a revision."""
    folder = path.parent.parent
    return folder if path.parent.name == "snapshots" and folder.name.startswith("models--") else None


class RecentModel(PushButton):
    """One line: name, and where it lies or why it can't be had."""

    def __init__(self, path: Path, parent: QWidget | None = None, *, loads: bool = True) -> None:
        super().__init__(parent=parent)
        self._loads = loads  # what a click is said to do
        self.path = path
        self.problem = ""
        self._icon = IconLabel("file" if path.suffix.lower() == ".gguf" else "folder", self)
        self._name = ElidedLabel(shown_name(path), self)
        self._place = ElidedLabel("", self, mode=Qt.TextElideMode.ElideMiddle)
        self._place.setProperty("role", "small")
        for part in (self._icon, self._name, self._place):
            part.setAttribute(Qt.WidgetAttribute.WA_TransparentForMouseEvents)
        text = QVBoxLayout()
        text.setSpacing(0)
        text.addWidget(self._name)
        text.addWidget(self._place)
        row = QHBoxLayout(self)
        row.setContentsMargins(SPACE_M, SPACE_S, SPACE_M, SPACE_S)
        row.setSpacing(SPACE_M)
        row.addWidget(self._icon)
        row.addLayout(text, 1)
        self.setProperty("role", "row")
        follow_text_size(self, self._fit)
        self.set_problem("")

    def _fit(self) -> None:
        self.setMinimumHeight(self.fontMetrics().height() * 2 + 3 * SPACE_S)

    def set_problem(self, problem: str) -> None:
        """A model with a problem is greyed and says why; "" makes it usable."""
        self.problem = problem
        self.setEnabled(not problem)
        name, why = shown_name(self.path), translated(problem)
        self._place.setText(why or format_folder(self.path.parent))
        if problem:
            self.setAccessibleName(tr("{name}: {value}", name=name, value=why))
            self.setToolTip(plain_tooltip(f"{why}\n{self.path}"))
        else:
            self._say_what_a_click_does(name)
        set_role(self._place, "warning-small" if problem else "small")
        self._icon.set_icon(self._icon.shown[0], "border" if problem else "text_muted")

    def _say_what_a_click_does(self, name: str) -> None:
        if self._loads:
            self.setAccessibleName(tr("{name}: load this model", name=name))
            self.setToolTip(plain_tooltip(tr("Load {path}", path=self.path)))
        else:
            self.setAccessibleName(tr("{name}: look at this model", name=name))
            self.setToolTip(plain_tooltip(tr("Look at {path}", path=self.path)))


class RecentModels(QWidget):
    """The list; `loads`: a click is said to load at once, not to show the card first. The window checks the
    paths on a background thread and hands the reasons in.
    """

    chosen = Signal(object)  # Path

    def __init__(self, parent: QWidget | None = None, *, title: str, loads: bool) -> None:
        super().__init__(parent)
        self._loads = loads
        self._models: list[RecentModel] = []
        self._title = QLabel(title, self)
        self._title.setProperty("role", "section")
        frame = QFrame(self)
        frame.setProperty("role", "card")
        self._layout = QVBoxLayout(frame)
        self._layout.setContentsMargins(SPACE_XS, SPACE_XS, SPACE_XS, SPACE_XS)
        self._layout.setSpacing(0)
        layout = QVBoxLayout(self)
        layout.setContentsMargins(0, 0, 0, 0)
        layout.setSpacing(SPACE_S)
        layout.addWidget(self._title)
        layout.addWidget(frame)
        self.hide()

    @property
    def models(self) -> tuple[RecentModel, ...]:
        return tuple(self._models)

    def set_paths(self, paths: Sequence[Path]) -> None:
        """Newest first."""
        if [model.path for model in self._models] == list(paths):
            return
        for model in self._models:
            self._layout.removeWidget(model)
            model.hide()
            model.deleteLater()
        self._models = [RecentModel(path, self, loads=self._loads) for path in paths]
        for model in self._models:
            model.clicked.connect(lambda _checked=False, path=model.path: self.chosen.emit(path))
            self._layout.addWidget(model)
        self.setVisible(bool(paths))

    def set_problems(self, problems: Mapping[Path, str]) -> None:
        """Reasons by path; a path that isn't named keeps its state."""
        for model in self._models:
            if model.path in problems:
                model.set_problem(problems[model.path])
