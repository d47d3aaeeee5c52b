"""The page where a model is picked (folder, file, drop, recent, found), with its card, its load and how that
ended.

Signals: inspect_requested(Path), load_requested(Path), cancel_requested, closed; device_chosen and
budget_chosen of `RunOptions`, whose answers are to be in place when it asks for the next inspection.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from PySide6.QtCore import Qt, QTimer, Signal
from PySide6.QtGui import QResizeEvent
from PySide6.QtWidgets import (
    QBoxLayout,
    QFileDialog,
    QFrame,
    QHBoxLayout,
    QLabel,
    QScrollArea,
    QToolButton,
    QVBoxLayout,
    QWidget,
)

from app.controller import ModelPhase, ModelState
from app.language import tr
from app.ui.drop_target import model_path_of
from app.ui.icon_label import IconLabel
from app.ui.icons import icon
from app.ui.model_card import ModelCard
from app.ui.model_facts import why_not_loadable
from app.ui.push_button import PushButton
from app.ui.recent_models import RecentModels
from app.ui.run_options import RunOptions
from app.ui.style_sheet import set_label, set_role
from app.ui.text_size import follow_text_size, scaled, set_icon_size, text_size
from app.ui.theme import (
    ICON_SIZE,
    SPACE_L,
    SPACE_M,
    SPACE_S,
    SPACE_XL,
    SPACE_XXL,
    Theme,
    current_theme,
    theme_manager,
)
from engine.config import DeviceChoice
from engine.notices import Notice

if TYPE_CHECKING:
    from engine.inspection import ModelReport

_COLUMN = 620
_WIDE = 80  # characters in a line: with fewer, the page is a narrow one
_BUSY = Notice(
    "load-under-way",
    "A model is being loaded.",
    "Wait for it or cancel the load, then choose again.",
)


class ModelLoader(QWidget):
    """Asks for inspections and loads; what it shows comes from reports and model states alone."""

    inspect_requested = Signal(object)  # Path
    load_requested = Signal(object)  # Path
    cancel_requested = Signal()
    closed = Signal()
    device_chosen = Signal(str)  # DeviceChoice
    budget_chosen = Signal(object)  # bytes | None
    run_chosen = Signal(object, object)  # Path, RunChoice
    refused = Signal(object)  # Notice: what was picked is no model

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._state = ModelState()
        self.models_folder: Path | None = None  # where a person keeps models
        self._load_when_inspected: Path | None = None
        self._found_paths: tuple[Path, ...] = ()
        self._plan_part = ""  # of the next report, that is to have the focus
        self._looks_again = False  # while the person is busy with the options
        self._dialog: QFileDialog | None = None
        self._build()
        self._connect_signals()
        self._paint_icons(current_theme())
        self.set_model_state(self._state)

    # What the person does

    def pick(self, path: Path) -> None:
        """Looks at a path that was chosen or dropped."""
        if self._state.phase is ModelPhase.LOADING:
            self.refused.emit(_BUSY)
            return
        model = model_path_of(path)
        if model is None:
            self.refused.emit(
                Notice(
                    "not-a-model",
                    f"“{path.name}” isn't part of a model.",
                    "Choose a model's folder (the one that holds config.json) or a GGUF file.",
                )
            )
            return
        self._load_when_inspected = None
        self._inspect(model.absolute())

    def show_plan_of(self, path: Path, part: str) -> None:
        """The card of a model, with the slider of its "context" or its "weights" ready to be moved."""
        self.pick(path)
        self._plan_part = part

    def pick_recent(self, path: Path) -> None:
        """A model that worked before is loaded at once; the card stays only if something is wrong with it."""
        self._load_when_inspected = path.absolute()
        self._inspect(path.absolute())

    def choose_folder(self) -> None:
        self._open_dialog(tr("Choose a model folder"), QFileDialog.FileMode.Directory, "")

    def choose_file(self) -> None:
        self._open_dialog(
            tr("Choose a GGUF file"), QFileDialog.FileMode.ExistingFile, tr("GGUF models (*.gguf)")
        )

    # What the window hands in

    def set_model_state(self, state: ModelState) -> None:
        before, self._state = self._state, state
        if state.phase is ModelPhase.LOADING and state.path is not None:
            if self.card.path != state.path:
                self.card.show_unseen(state.path)
            self.card.show_loading(state.progress, working_model=_name(state))
            self.card.show()
            if before.phase is not ModelPhase.LOADING:
                self._reveal_card()  # its progress and Cancel stand at its end
        elif before.phase is ModelPhase.LOADING:
            if state.phase is ModelPhase.READY and state.path == before.path:
                self.card.hide()  # loaded: the chat takes over
            else:
                self.card.show_cancelled()  # or it failed; then `show_failure` follows
        self.close_button.setVisible(state.phase is not ModelPhase.NONE)
        self._set_choices_enabled(state.phase is not ModelPhase.LOADING)
        self._dress_choice()
        if state.phase is ModelPhase.NONE and before.phase is ModelPhase.READY:
            self._look_again()  # there is more room

    def show_report(self, report: ModelReport) -> None:
        """Takes the answer to `inspect_requested`; one for another path has been overtaken."""
        if report.path != self.card.path or self._state.phase is ModelPhase.LOADING:
            return
        self.card.show_report(report)
        if self._looks_again:
            self._looks_again = False
            self._reveal_options(not self.options.box.isHidden())  # the card may have grown
            return
        self._reveal_card()
        wanted, self._load_when_inspected = self._load_when_inspected, None
        if wanted == report.path and not why_not_loadable(report):
            self.load_requested.emit(report.path)
        elif self._plan_part and self.card.plan.isVisibleTo(self.card):
            self.card.plan.slider(self._plan_part).setFocus()
        elif self.card.load_button.isEnabled():
            self.card.load_button.setFocus()
        self._plan_part = ""

    def show_inspection_failure(self, path: Path, notice: Notice) -> None:
        """Takes the other answer to `inspect_requested`."""
        if path != self.card.path or self._state.phase is ModelPhase.LOADING:
            return
        self._load_when_inspected = None
        self.card.show_inspection_failure(notice)
        self._reveal_card()

    def show_failure(self, path: Path, notice: Notice) -> None:
        """A load failed."""
        if self.card.path != path:
            self.card.show_unseen(path)
        self.card.show_failure(notice, working_model=_name(self._state))
        self.card.show()
        self._dress_choice()
        self._reveal_card()

    def show_run_options(self, device: DeviceChoice, budget: int | None) -> None:
        """What is remembered of them."""
        self.options.show_choice(device, budget)

    def set_recent_models(self, paths: Sequence[Path]) -> None:
        self.recent.set_paths(paths)
        self._show_found()

    def set_found_models(self, paths: Sequence[Path]) -> None:
        """Models that lie where models usually do. They are shown in their order, without the recent ones."""
        self._found_paths = tuple(paths)
        self._show_found()

    def set_recent_problems(self, problems: Mapping[Path, str]) -> None:
        self.recent.set_problems(problems)

    def _show_found(self) -> None:
        recent = {model.path for model in self.recent.models}
        self.found.set_paths([path for path in self._found_paths if path not in recent])

    def _inspect(self, path: Path) -> None:
        self._looks_again = False
        self.card.show_inspecting(path)
        self.card.show()
        self._dress_choice()
        self._reveal_card()
        self.inspect_requested.emit(path)

    def _reveal_options(self, opened: bool) -> None:
        """They open downwards, where the page may end."""
        if opened:
            QTimer.singleShot(
                0, self.options, lambda: self._scroll.ensureWidgetVisible(self.options, 0, SPACE_M)
            )

    def _look_again(self) -> None:
        """What the card says depends on where the model is to run."""
        path = self.card.path
        if path is not None and not self.card.isHidden() and self._state.phase is not ModelPhase.LOADING:
            self._looks_again = True
            self.inspect_requested.emit(path)

    def _reveal_card(self) -> None:
        """Scrolls to the card once it has its new size."""

        def reveal() -> None:
            self._scroll.ensureWidgetVisible(self.card, 0, SPACE_L)
            self._scroll.horizontalScrollBar().setValue(0)  # a line begins at the left

        QTimer.singleShot(0, self.card, reveal)

    def _dress_choice(self) -> None:
        """One button calls for a click at a time: choosing, until a card with its own button is there."""
        calls = self.card.isHidden()
        self._explanation.setVisible(calls)  # then it is known, and the card is to have the room
        set_role(self.folder_button, "primary" if calls else "")
        theme = current_theme()
        self.folder_button.setIcon(icon("folder", theme.accent_text if calls else theme.text))

    def _open_dialog(self, title: str, mode: QFileDialog.FileMode, name_filter: str) -> None:
        """Not modal to the loop: answers stream on and loads go on behind it."""
        if self._dialog is not None:
            self._dialog.raise_()
            return
        dialog = QFileDialog(self, title, self._start_folder())
        dialog.setFileMode(mode)
        if name_filter:
            dialog.setNameFilter(name_filter)
        if mode is QFileDialog.FileMode.Directory:
            dialog.setOption(QFileDialog.Option.ShowDirsOnly, False)
        dialog.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
        dialog.fileSelected.connect(self._on_file_selected)
        dialog.finished.connect(self._on_dialog_finished)
        self._dialog = dialog
        dialog.open()

    def _on_file_selected(self, name: str) -> None:
        if name:
            self.pick(Path(name))

    def _on_dialog_finished(self) -> None:
        self._dialog = None

    def _start_folder(self) -> str:
        """The folder that was chosen for models, else where the last model lies, else the home folder. An
        unreachable one is Qt's to replace.
        """
        if self.models_folder is not None:
            return str(self.models_folder)
        known = self._state.path or (self.recent.models[0].path if self.recent.models else None)
        return str(known.parent if known is not None else Path.home())

    def _set_choices_enabled(self, enabled: bool) -> None:
        reason = "" if enabled else tr("Cancel the load first")
        for button in (self.folder_button, self.file_button):
            button.setEnabled(enabled)
            button.setToolTip(reason or button.property("usual_tooltip"))
        self.recent.setEnabled(enabled)
        self.found.setEnabled(enabled)

    def _connect_signals(self) -> None:
        self.folder_button.clicked.connect(self.choose_folder)
        self.file_button.clicked.connect(self.choose_file)
        self.close_button.clicked.connect(self.closed)
        self.recent.chosen.connect(self.pick_recent)
        self.found.chosen.connect(self.pick)
        self.card.load_requested.connect(self.load_requested)
        self.card.cancel_requested.connect(self.cancel_requested)
        self.card.run_chosen.connect(self.run_chosen)
        self.options.disclosure.toggled.connect(self._reveal_options)
        for chosen, passed_on in (
            (self.options.device_chosen, self.device_chosen),
            (self.options.budget_chosen, self.budget_chosen),
        ):
            chosen.connect(passed_on)
            chosen.connect(self._look_again)
        theme_manager().changed.connect(self._paint_icons)
        text_size().changed.connect(self._arrange)

    def _build(self) -> None:
        self.setAccessibleName(tr("Choose a model"))
        self._bird = IconLabel("kestrel", self, size=40)
        self._title = QLabel(tr("Choose a model"), self)
        self._title.setProperty("role", "display")
        self._title.setWordWrap(True)
        self._explanation = QLabel(
            tr(
                "Kestrel runs language models on this computer; nothing you write leaves it. "
                "Choose a model's folder or a GGUF file, or drop one anywhere on this window."
            ),
            self,
        )
        self._explanation.setProperty("role", "muted")
        self._explanation.setWordWrap(True)
        self.folder_button = _choice(
            self, tr("Choose a folder…"), tr("With config.json and safetensors (Ctrl+O)")
        )
        self.file_button = _choice(
            self, tr("Choose a GGUF file…"), tr("A whole model in one file (Ctrl+Shift+O)")
        )
        self.card = ModelCard(self)
        self.card.hide()
        self.options = RunOptions(self)
        self.recent = RecentModels(self, title=tr("Recent models"), loads=True)
        self.found = RecentModels(self, title=tr("Found on this computer"), loads=False)
        self.close_button = QToolButton(self)
        self.close_button.setAccessibleName(tr("Back to the chat"))
        self.close_button.setToolTip(tr("Back to the chat (Esc)"))
        set_icon_size(self.close_button, ICON_SIZE)
        self._lay_out()

    def _lay_out(self) -> None:
        heading = QHBoxLayout()
        heading.setSpacing(SPACE_M)
        heading.addWidget(self._bird)
        heading.addWidget(self._title, 1)
        heading.addWidget(self.close_button, 0, Qt.AlignmentFlag.AlignTop)
        self._choices = choices = QBoxLayout(QBoxLayout.Direction.LeftToRight)
        choices.setSpacing(SPACE_M)
        choices.addWidget(self.folder_button)
        choices.addWidget(self.file_button)
        choices.addStretch(1)
        column = QWidget(self)
        follow_text_size(column, lambda: column.setMaximumWidth(scaled(_COLUMN)))
        inner = QVBoxLayout(column)
        inner.setContentsMargins(0, SPACE_XXL, 0, SPACE_XL)
        inner.setSpacing(SPACE_L)
        inner.addLayout(heading)
        inner.addWidget(self._explanation)
        inner.addLayout(choices)
        inner.addSpacing(SPACE_S)
        inner.addWidget(self.card)
        inner.addWidget(self.options)
        inner.addWidget(self.recent)
        inner.addWidget(self.found)
        inner.addStretch(1)
        page = QWidget(self)
        page.setProperty("role", "surface")
        self._centred = centred = QHBoxLayout(page)
        centred.setContentsMargins(SPACE_XL, 0, SPACE_XL, 0)
        centred.addStretch(1)
        centred.addWidget(column, 20)
        centred.addStretch(1)
        self._scroll = QScrollArea(self)
        self._scroll.setWidgetResizable(True)
        self._scroll.setFrameShape(QFrame.Shape.NoFrame)
        self._scroll.setFocusPolicy(Qt.FocusPolicy.NoFocus)
        self._scroll.setWidget(page)
        layout = QVBoxLayout(self)
        layout.setContentsMargins(0, 0, 0, 0)
        layout.addWidget(self._scroll)

    def _paint_icons(self, theme: Theme) -> None:
        self._dress_choice()
        self.file_button.setIcon(icon("file", theme.text))
        self.close_button.setIcon(icon("close", theme.text_muted))

    def _arrange(self) -> None:
        """Where there is little room, what stands side by side goes below each other."""
        wide = self.width() >= _WIDE * self.fontMetrics().averageCharWidth()
        direction = QBoxLayout.Direction
        self._choices.setDirection(direction.LeftToRight if wide else direction.TopToBottom)
        self._choices.setStretch(2, 1 if wide else 0)  # of the empty end
        margin = SPACE_XL if wide else SPACE_M
        self._centred.setContentsMargins(margin, 0, margin, 0)
        self.card.set_wide(wide)

    # Qt overrides

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        self._arrange()


def _choice(parent: QWidget, text: str, tooltip: str) -> PushButton:
    button = PushButton(parent=parent)
    set_label(button, text)
    button.setAccessibleName(text.rstrip("…"))
    button.setProperty("usual_tooltip", tooltip)
    button.setToolTip(tooltip)
    set_icon_size(button, ICON_SIZE)
    follow_text_size(button, lambda: button.setMinimumHeight(button.fontMetrics().height() + 2 * SPACE_M))
    return button


def _name(state: ModelState) -> str:
    """The model that answers now, also while another one loads."""
    return state.summary.name if state.summary is not None else ""
