"""What can be said of a model before anything heavy starts: facts, problems in plain words, and Load.

The card also shows a load of its model and how it ended. It knows records only.
Signals: load_requested(Path), cancel_requested, run_chosen(Path, RunChoice).
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from PySide6.QtCore import Qt, Signal
from PySide6.QtWidgets import QFrame, QGridLayout, QHBoxLayout, QLabel, QVBoxLayout, QWidget

from app.language import tr, translated
from app.making_room import LoadedModel, plan_room
from app.ui.elided_label import ElidedLabel
from app.ui.icon_label import IconLabel
from app.ui.load_progress import LoadProgressView
from app.ui.model_facts import NOT_LOADABLE, model_facts, why_not_loadable
from app.ui.plan_view import PlanView
from app.ui.plan_words import verdict
from app.ui.push_button import PushButton
from app.ui.recent_models import shown_name
from app.ui.style_sheet import set_role
from app.ui.text_format import format_folder
from app.ui.text_size import follow_text_size, scaled
from app.ui.theme import (
    SPACE_L,
    SPACE_M,
    SPACE_S,
    SPACE_XL,
)
from app.ui.wrapped_label import WrappedLabel
from engine.config import EngineConfig
from engine.notices import Notice
from engine.progress import LoadProgress

if TYPE_CHECKING:
    from engine.inspection import ModelReport

_FACT_COLUMNS, _FEWER_COLUMNS = 3, 2
_LOAD_WIDTH = 110  # pixels, at least


class NoticeLine(QWidget):
    """One notice inside the card: icon, sentence, what to do. kind: "error", "warning", "info" or "chip"."""

    def __init__(self, notice: Notice, parent: QWidget, *, kind: str) -> None:
        super().__init__(parent)
        self._icon = icon = IconLabel(kind, self)
        self.message = WrappedLabel("", self)
        self._hint = hint = WrappedLabel("", self)
        hint.setProperty("role", "muted")
        self.set_notice(notice, kind=kind)
        text = QVBoxLayout()
        text.setSpacing(2)
        text.addWidget(self.message)
        text.addWidget(hint)
        row = QHBoxLayout(self)
        row.setContentsMargins(0, 0, 0, 0)
        row.setSpacing(SPACE_S)
        row.addWidget(icon, 0, Qt.AlignmentFlag.AlignTop)
        row.addLayout(text, 1)

    def set_notice(self, notice: Notice, *, kind: str) -> None:
        """Another one in its place."""
        self.notice = notice
        self._icon.set_icon(kind, {"error": "danger", "warning": "warning"}.get(kind, "accent"))
        set_role(self.message, "danger" if kind == "error" else "")
        self.message.setText(translated(notice.message))
        self._hint.setText(translated(notice.hint))
        self._hint.setVisible(bool(notice.hint))


class ModelCard(QFrame):
    """One picked model. `path` is what was picked; `report` is None until it has been looked at."""

    load_requested = Signal(object)  # Path
    cancel_requested = Signal()
    run_chosen = Signal(object, object)  # Path, RunChoice: how it is to be loaded, from now on

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.setProperty("role", "card")
        self.path: Path | None = None
        self.report: ModelReport | None = None
        self._loaded: LoadedModel | None = None
        self._loading = False
        self._columns = _FACT_COLUMNS
        self._lines: list[NoticeLine] = []
        self._build()
        self.load_button.clicked.connect(self._ask_to_load)
        self.plan.changed.connect(self._on_plan_changed)
        self.progress.cancel_requested.connect(self.cancel_requested)

    @property
    def shown_notices(self) -> tuple[Notice, ...]:
        """What the card says now, problems first."""
        planned = () if self.verdict.isHidden() else (self.verdict.notice,)
        return (*planned, *(line.notice for line in self._lines))

    def set_wide(self, wide: bool) -> None:
        """How many facts have room side by side."""
        self._columns = _FACT_COLUMNS if wide else _FEWER_COLUMNS
        items = [self._facts_layout.takeAt(0) for _ in range(self._facts_layout.count())]
        for place, item in enumerate(items):
            self._facts_layout.addItem(item, *divmod(place, self._columns))
        self._stretch_columns()

    def set_loaded(self, loaded: LoadedModel | None) -> None:
        """The model that is there while this one is looked at; for the next report."""
        self._loaded = loaded

    def show_inspecting(self, path: Path) -> None:
        """The files are being looked at."""
        self._show_path(path)
        self._set_reason(tr("Looking at the files…"))

    def show_unseen(self, path: Path) -> None:
        """A model that is loaded without having been looked at before."""
        self._show_path(path)
        self._set_reason("")

    def show_inspection_failure(self, notice: Notice) -> None:
        """The files could not be looked at; what they hold stays unknown."""
        self._set_lines([NoticeLine(notice, self, kind="error")])
        self._set_reason(tr(NOT_LOADABLE))

    def show_report(self, report: ModelReport) -> None:
        self.path, self.report = report.path, report
        self._title.setText(report.name or shown_name(report.path))
        family = [part for part in (report.family, report.architecture) if part]
        kind = {"gguf": tr("GGUF file"), "safetensors": tr("Hugging Face folder")}.get(report.kind or "", "")
        self._subtitle.setText("  ·  ".join(dict.fromkeys([*family, kind] if kind else family)))
        self._set_facts(model_facts(report))
        lines = [NoticeLine(notice, self, kind="error") for notice in report.problems]
        lines += [NoticeLine(notice, self, kind="info") for notice in report.notices]
        self._set_lines(lines)
        self._set_loading(False)
        if report.planner is not None:
            self.plan.begin(report.config, report.context_length)
            self._show_plan()
        self._set_reason(why_not_loadable(report))

    def show_loading(self, progress: LoadProgress | None, *, working_model: str = "") -> None:
        """`working_model` is the name of one that answers meanwhile."""
        if not self._loading:
            self._set_lines(())
            self.progress.restart()
            self._set_loading(True)
        self.progress.show_progress(progress)
        self._set_meanwhile(
            tr("{name} stays loaded until this one is ready.", name=working_model) if working_model else ""
        )

    def show_failure(self, notice: Notice, *, working_model: str = "") -> None:
        """The load failed; the model that was loaded before goes on working, and the card says so."""
        self._set_loading(False)
        self._set_lines([NoticeLine(notice, self, kind="error")])
        self._set_meanwhile(
            tr("{name} is still loaded and goes on working.", name=working_model) if working_model else ""
        )
        self.load_button.setText(tr("Try again"))
        self._set_reason("")

    def show_cancelled(self) -> None:
        """Back to what it was before the load."""
        if self.report is not None:
            self.show_report(self.report)
        else:
            self._set_loading(False)
            self._set_reason("")

    @property
    def _config(self) -> EngineConfig:
        """Of a load with what is chosen here."""
        assert self.report is not None
        return self.plan.choice.applied_to(self.report.config)

    def _show_plan(self) -> None:
        assert self.report is not None
        room = plan_room(self.report, self._config, self._loaded)
        if room is None:
            return
        self.plan.show_plan(room)
        kind, notice = verdict(room.plan, self.report.card_name)
        self.verdict.set_notice(notice, kind=kind)
        for part in (self.plan, self.verdict):
            part.setVisible(not self._loading)

    def _on_plan_changed(self) -> None:
        self._show_plan()
        assert self.path is not None
        self.run_chosen.emit(self.path, self.plan.choice)

    def _show_path(self, path: Path) -> None:
        self.path, self.report = path, None
        self._title.setText(shown_name(path))
        self._subtitle.setText(format_folder(path.parent))
        self._set_facts(())
        self._set_lines(())
        self.plan.hide()
        self.verdict.hide()
        self._set_loading(False)

    def _ask_to_load(self) -> None:
        assert self.path is not None, "nothing was picked"
        if self.report is not None and self.report.planner is not None:
            wanted = self.report.config.context
            if wanted is not None and wanted > self.report.context_length:  # set for every model
                self.run_chosen.emit(self.path, self.plan.choice)
        self.load_requested.emit(self.path)

    def _set_reason(self, reason: str) -> None:
        """Why Load can't be pressed; "" when it can."""
        self.load_button.setEnabled(not reason)
        self.load_button.setToolTip(reason or tr("Load this model (Enter)"))
        self._reason.setText(reason)

    def _set_meanwhile(self, sentence: str) -> None:
        self._meanwhile.setText(sentence)
        self._meanwhile.setVisible(bool(sentence))

    def _set_loading(self, loading: bool) -> None:
        self._loading = loading
        self.progress.setVisible(loading)
        if loading:
            self.plan.hide()
            self.verdict.hide()
        self._actions.setVisible(not loading)
        self.load_button.setText(tr("Load"))
        self._set_meanwhile("")

    def _set_lines(self, lines: list[NoticeLine] | tuple[()]) -> None:
        for line in self._lines:
            self._lines_layout.removeWidget(line)
            line.hide()
            line.deleteLater()
        self._lines = list(lines)
        for line in self._lines:
            self._lines_layout.addWidget(line)
            line.show()
        self._lines_box.setVisible(bool(self._lines))

    def _set_facts(self, facts: tuple[tuple[str, str, str], ...]) -> None:
        while (item := self._facts_layout.takeAt(0)) is not None:
            widget = item.widget()
            widget.hide()
            widget.deleteLater()
        for place, (name, value, explanation) in enumerate(facts):
            self._facts_layout.addWidget(
                _fact(self._facts_box, name, value, explanation),
                *divmod(place, self._columns),
            )
        self._facts_box.setVisible(bool(facts))

    def _stretch_columns(self) -> None:
        for column in range(_FACT_COLUMNS):
            self._facts_layout.setColumnStretch(column, 1 if column < self._columns else 0)

    def _build(self) -> None:
        self._icon = IconLabel("model", self, color="accent", size=28)
        self._title = ElidedLabel("", self, mode=Qt.TextElideMode.ElideMiddle)
        self._title.setProperty("role", "title")
        self._subtitle = ElidedLabel("", self)
        self._subtitle.setProperty("role", "muted")
        self._facts_box = QWidget(self)
        self._facts_layout = QGridLayout(self._facts_box)
        self.plan = PlanView(self)
        self.verdict = NoticeLine(Notice("plan-card", ""), self, kind="chip")
        self.verdict.hide()
        self._lines_box = QWidget(self)
        self._lines_layout = QVBoxLayout(self._lines_box)
        self._meanwhile = WrappedLabel(parent=self)
        self.progress = LoadProgressView(self)
        self._actions = QWidget(self)
        self._reason = QLabel(self._actions)
        self._reason.setProperty("role", "muted")
        self._reason.setWordWrap(True)
        self.load_button = PushButton(tr("Load"), self._actions)
        self.load_button.setAccessibleName(tr("Load this model"))
        self.load_button.setProperty("role", "primary")
        follow_text_size(self, lambda: self.load_button.setMinimumWidth(scaled(_LOAD_WIDTH)))
        self._lay_out()

    def _lay_out(self) -> None:
        names = QVBoxLayout()
        names.setSpacing(2)
        names.addWidget(self._title)
        names.addWidget(self._subtitle)
        top = QHBoxLayout()
        top.setSpacing(SPACE_M)
        top.addWidget(self._icon, 0, Qt.AlignmentFlag.AlignTop)
        top.addLayout(names, 1)
        self._facts_layout.setContentsMargins(0, 0, 0, 0)
        self._facts_layout.setHorizontalSpacing(SPACE_XL)
        self._facts_layout.setVerticalSpacing(SPACE_M)
        self._stretch_columns()
        self._lines_layout.setContentsMargins(0, 0, 0, 0)
        self._lines_layout.setSpacing(SPACE_M)
        actions = QHBoxLayout(self._actions)
        actions.setContentsMargins(0, 0, 0, 0)
        actions.setSpacing(SPACE_M)
        actions.addWidget(self._reason, 1)
        actions.addWidget(self.load_button, 0, Qt.AlignmentFlag.AlignBottom)
        layout = QVBoxLayout(self)
        layout.setContentsMargins(SPACE_L + 2, SPACE_L, SPACE_L + 2, SPACE_L)
        layout.setSpacing(SPACE_L)
        layout.addLayout(top)
        for part in (
            self._facts_box,
            self.plan,
            self.verdict,
            self._lines_box,
            self._meanwhile,
            self.progress,
            self._actions,
        ):
            layout.addWidget(part)


def _fact(parent: QWidget, name: str, value: str, explanation: str) -> QWidget:
    box = QWidget(parent)
    label, text = QLabel(name, box), QLabel(value, box)
    set_role(label, "small")
    text.setTextFormat(Qt.TextFormat.PlainText)
    text.setAccessibleName(tr("{name}: {value}", name=name, value=value))
    box.setToolTip(explanation)
    layout = QVBoxLayout(box)
    layout.setContentsMargins(0, 0, 0, 0)
    layout.setSpacing(1)
    layout.addWidget(label)
    layout.addWidget(text)
    return box
