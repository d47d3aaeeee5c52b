"""Which model there is, and what becomes of those that are looked at: from the controller to whoever shows
it, and from the model page to the controller.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from PySide6.QtCore import QObject, Signal
from PySide6.QtGui import QAction

from app.controller import ChatController, ModelPhase, ModelState
from app.found_models import find_models, usual_places
from app.language import tr
from app.model_runs import RunChoice, with_run
from app.operations import BackgroundRunner
from app.ui.chat_pane import ChatPane
from app.ui.header import Header
from app.ui.live_panel import LivePanel
from app.ui.model_loader import ModelLoader
from app.ui.recent_models import why_unavailable
from app.ui.status_line import StatusLine
from engine.notices import Notice

if TYPE_CHECKING:
    from engine.inspection import ModelReport

_FILES_JOIN_TIMEOUT_MS = 500  # it only looks at paths: nothing is lost when it is left behind


class ModelPresenter(QObject):
    """Signals: loaded, the model whose load was shown is ready. failed, a model could not be looked at or
    loaded: Notice, which the model page shows already. notice_raised, what else there is to say: Notice.
    """

    loaded = Signal()
    failed = Signal(object)
    notice_raised = Signal(object)

    def __init__(
        self,
        controller: ChatController,
        *,
        loader: ModelLoader,
        header: Header,
        chat: ChatPane,
        status: StatusLine,
        panel: LivePanel,
        unload: QAction,
        parent: QObject,
    ) -> None:
        super().__init__(parent)
        self._controller = controller
        self._loader = loader
        self._header = header
        self._chat = chat
        self._status = status
        self._panel = panel
        self._unload = unload
        self._state = controller.model_state
        self._closed = False
        self._files = BackgroundRunner("paths", self)  # a path on a drive that is gone may take its time
        self._connect_signals()

    def show_settings(self) -> None:
        """What was chosen for models, and the recent ones."""
        settings = self._controller.settings
        self._loader.models_folder = settings.models_folder
        self._loader.show_run_options(settings.device, settings.vram_bytes)
        self._on_recent_models(settings.recent_models)
        self._on_model_state(self._state)

    def check_recent_models(self) -> None:
        """Which of them are still there."""
        paths = self._controller.settings.recent_models
        if not paths or self._closed:
            return
        self._files.run(
            lambda: {path: why_unavailable(path) for path in paths},
            self._loader.set_recent_problems,
            self.notice_raised.emit,
            doing="checking the recent models",
        )

    def look_for_models(self) -> None:
        """Which models this computer has, where they usually are."""
        if self._closed:
            return
        places = usual_places(self._controller.settings.models_folder)
        self._files.run(
            lambda: find_models(places),
            self._loader.set_found_models,
            self.notice_raised.emit,
            doing="looking for models",
        )

    def shutdown(self) -> bool:
        """False: a thread did not end in time."""
        self._closed = True
        return self._files.shutdown(_FILES_JOIN_TIMEOUT_MS)

    def _connect_signals(self) -> None:
        controller, loader = self._controller, self._loader
        loader.inspect_requested.connect(controller.inspect_model)
        loader.load_requested.connect(controller.load_model)
        loader.cancel_requested.connect(controller.cancel_load)
        loader.refused.connect(self.notice_raised)
        loader.device_chosen.connect(lambda device: controller.update_settings(device=device))
        loader.budget_chosen.connect(lambda budget: controller.update_settings(vram_bytes=budget))
        loader.run_chosen.connect(self._remember_run)
        self._unload.triggered.connect(controller.unload_model)
        controller.model_state_changed.connect(self._on_model_state)
        controller.model_inspected.connect(self._on_inspected)
        controller.inspection_failed.connect(self._on_inspection_failed)
        controller.load_failed.connect(self._on_load_failed)
        controller.recent_models_changed.connect(self._on_recent_models)

    def _remember_run(self, path: Path, choice: RunChoice) -> None:
        runs = self._controller.settings.model_runs
        self._controller.update_settings(model_runs=with_run(runs, path, choice))

    def _on_model_state(self, state: ModelState) -> None:
        before, self._state = self._state, state
        self._header.chip.set_state(state)
        self._status.set_model_state(state)
        self._panel.set_model_state(state)
        self._loader.set_model_state(state)
        self._unload.setEnabled(state.summary is not None)
        self._chat.set_model_ready(state.phase is ModelPhase.READY, _composer_hint(state))
        loaded = before.phase is ModelPhase.LOADING and state.phase is ModelPhase.READY
        if loaded and state.path == before.path:
            self.loaded.emit()

    def _on_inspected(self, report: ModelReport) -> None:
        self._loader.card.set_loaded(self._controller.loaded_model)
        self._loader.show_report(report)

    def _on_inspection_failed(self, path: Path, notice: Notice) -> None:
        self._loader.show_inspection_failure(path, notice)
        self.failed.emit(notice)

    def _on_load_failed(self, path: Path, notice: Notice) -> None:
        self._loader.show_failure(path, notice)
        self.failed.emit(notice)

    def _on_recent_models(self, paths: Sequence[Path]) -> None:
        self._loader.set_recent_models(paths)
        self.check_recent_models()


def _composer_hint(state: ModelState) -> str:
    """What the composer says while nothing can be sent; "" when something can."""
    if state.phase is ModelPhase.READY:
        return ""
    if state.phase is ModelPhase.LOADING:
        return tr(
            "{name} is being loaded. You can write already; it stays until it is sent.", name=state.name
        )
    return tr("Choose a model first; what you write here stays.")
