"""Which model there is: loading, failing, going back to the one before, recent models, and the look before
a load.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import Enum, auto
from pathlib import Path
from typing import TYPE_CHECKING

from PySide6.QtCore import QObject, Signal, Slot

from app.load_marker import LoadMarker
from app.making_room import LoadedModel, plan_room
from app.model_runs import RunChoice
from app.operations import BackgroundRunner
from app.settings import with_recent_model
from app.settings_keeper import SettingsKeeper
from app.worker import EngineWorker, SlotTable
from engine.config import EngineConfig
from engine.notices import Notice
from engine.progress import LoadProgress

if TYPE_CHECKING:
    from engine.inspection import ModelReport
    from engine.model_summary import ModelSummary

INSPECTION_JOIN_TIMEOUT_MS = 2_000  # it only reads: nothing is lost when it is left behind

Inspector = Callable[[Path, EngineConfig], "ModelReport"]


class ModelPhase(Enum):
    NONE = auto()
    LOADING = auto()
    READY = auto()


@dataclass(frozen=True)
class ModelState:
    """Which model there is. While a second model loads, `phase` is LOADING, `path`, `name` and `progress` are
    those of the one that loads, and `summary` still describes the one that goes on working; None where it has
    to go first.
    """

    phase: ModelPhase = ModelPhase.NONE
    path: Path | None = None
    name: str = ""
    progress: LoadProgress | None = None  # None while LOADING: it waits for the engine's thread
    summary: ModelSummary | None = None


def inspect(path: Path, config: EngineConfig) -> ModelReport:
    """The real inspector. Its modules are imported on the thread that inspects."""
    from engine.inspection import inspect_model

    return inspect_model(path, config)


class ModelSession(QObject):
    """Speaks with the worker about loads; every load ends in a state change, and a failed one in
    `load_failed` too.
    """

    state_changed = Signal(object)  # ModelState
    load_failed = Signal(object, object)  # Path, Notice
    inspected = Signal(object)  # ModelReport
    inspection_failed = Signal(object, object)  # Path, Notice
    recent_models_changed = Signal(list)  # list[Path]
    notice_raised = Signal(object)

    def __init__(
        self,
        worker: EngineWorker,
        settings: SettingsKeeper,
        *,
        states_folder: Path,
        marker: LoadMarker,
        disk: BackgroundRunner,
        inspector: Inspector = inspect,
        parent: QObject | None = None,
    ) -> None:
        super().__init__(parent)
        self._worker = worker
        self._settings = settings
        self._states_folder = states_folder
        self._marker = marker
        self._disk = disk
        self._inspection = BackgroundRunner("inspection", self)
        self._inspector = inspector
        self.state = ModelState()
        self.last_failure: Notice | None = None  # of the last load, when no model is there because of it
        self._working = ModelState()  # what a load that ends badly goes back to
        self._load_id: int | None = None
        self._load_path: Path | None = None
        self._num_load_wishes = 0  # an automatic load gives way to any that is asked for meanwhile
        self._marked = False
        self._inspection_wish = 0
        self._report: ModelReport | None = None  # the last, as long as memory is as it was
        self._table = SlotTable()
        self._bring_back: Path | None = None  # what a load that ends badly has unloaded
        self._closed = False
        worker.load_progressed.connect(self._on_progressed)
        worker.model_loaded.connect(self._on_loaded)
        worker.model_moved.connect(self._on_moved)
        worker.load_failed.connect(self._on_failed)
        worker.load_cancelled.connect(self._on_cancelled)
        worker.model_unloaded.connect(self._on_unloaded)
        worker.slots_changed.connect(self._on_slots_changed)

    def engine_config(self, path: Path) -> EngineConfig:
        """With which the model at `path` is loaded."""
        settings = self._settings.current
        config = EngineConfig(
            device=settings.device,
            vram_budget=settings.vram_bytes if settings.device != "cpu" else None,
            context=settings.context_tokens,
            threads=settings.threads,
            state_ram_budget=settings.state_ram_bytes,
            state_disk_budget=settings.state_disk_bytes,
            states_folder=self._states_folder,
        )
        return settings.model_runs.get(path, RunChoice()).applied_to(config)

    @property
    def loaded(self) -> LoadedModel | None:
        """The model that is there, with the memory that a load would find once it is gone."""
        summary, metrics = self._working.summary, self._table.metrics
        if summary is None or metrics is None:
            return None
        return LoadedModel.of(summary.path, summary.name, metrics)

    def load(self, path: Path) -> None:
        """Load `path`; a load that has not ended yet is given up. The model that is loaded goes on working
        until this one is ready, unless there is no room for both: then it is unloaded first, and loaded again
        should this load fail or be cancelled.
        """
        path = path.absolute()
        self._num_load_wishes += 1
        self.last_failure = None
        self._load_path = path
        config, working = self.engine_config(path), self._working
        goes_first = self._goes_first(path, config)
        if goes_first:
            self._bring_back = working.path
        self._load_id = self._worker.load_model(path, config, unloads_first=goes_first)
        summary = None if goes_first else working.summary
        self._set_state(ModelState(ModelPhase.LOADING, path=path, name=path.name, summary=summary))

    def load_last_model(self) -> None:
        """Load the model of the last time, unless its load took the program down then."""
        wish = self._num_load_wishes
        self._disk.run(
            self._marker.read,
            lambda crashed: self._on_marker_read(crashed, wish),
            self.notice_raised.emit,
            doing="looking for the mark of a load that never ended",
        )

    def cancel_load(self) -> None:
        self._num_load_wishes += 1
        self._worker.cancel_load()

    def unload(self) -> None:
        self._num_load_wishes += 1
        self._bring_back = None
        self._worker.cancel_load()
        self._worker.unload_model()

    def inspect(self, path: Path) -> None:
        """Look at `path` in the background. Only the last one asked for is answered."""
        path = path.absolute()
        self._inspection_wish += 1
        wish = self._inspection_wish

        def on_inspected(report: ModelReport | None) -> None:
            if report is not None and wish == self._inspection_wish:
                self._report = report
                self.inspected.emit(report)

        def on_error(notice: Notice) -> None:
            if wish == self._inspection_wish:
                self.inspection_failed.emit(path, notice)

        config = self.engine_config(path)
        self._inspection.run(
            # One that has been overtaken while it waited is not begun.
            lambda: self._inspector(path, config) if wish == self._inspection_wish else None,
            on_inspected,
            on_error,
            doing=f"looking at {path.name}",
        )

    def shutdown(self) -> bool:
        """After the worker's. False: an inspection did not end in time."""
        self._closed = True
        self._bring_back = None
        self._inspection_wish += 1
        self._remove_mark()
        return self._inspection.shutdown(INSPECTION_JOIN_TIMEOUT_MS)

    # The load that nobody asked for

    def _on_marker_read(self, crashed: Path | None, wish: int) -> None:
        path = self._settings.current.last_model
        if self._closed:
            return
        if crashed is not None:
            self._marked = True
            self._remove_mark()
        if path is None or wish != self._num_load_wishes:
            return
        if crashed == path:
            self._settings.change(last_model=None)
            self.notice_raised.emit(_ended_the_program(path))
            return
        self._marked = True
        self._disk.run(
            lambda: self._marker.write(path),
            lambda _: self._load_marked(path, wish),
            lambda notice: self._on_not_marked(path, notice),
            doing=f"preparing to load {path.name}",
        )

    def _load_marked(self, path: Path, wish: int) -> None:
        if wish == self._num_load_wishes and not self._closed:
            self.load(path)
        else:
            self._remove_mark()

    def _on_not_marked(self, path: Path, notice: Notice) -> None:
        self._marked = False
        self.notice_raised.emit(
            replace(notice, hint=f"{path.name} was not loaded by itself; load it by hand.")
        )

    def _remove_mark(self) -> None:
        if self._marked:
            self._marked = False
            self._disk.run(
                self._marker.remove, lambda _: None, self.notice_raised.emit, doing="ending a load"
            )

    # What the worker says

    @Slot(int, object)
    def _on_progressed(self, load_id: int, progress: LoadProgress) -> None:
        if load_id == self._load_id:
            self._set_state(replace(self.state, progress=progress))

    @Slot(int, object)
    def _on_loaded(self, load_id: int, summary: ModelSummary) -> None:
        path = summary.path
        self._report = None
        if load_id == self._load_id:
            self._bring_back = None
        self._working = ModelState(ModelPhase.READY, path=path, name=summary.name, summary=summary)
        if load_id == self._load_id:
            self._end_load()
        else:  # it was ready in the instant in which another was asked for, and works until that one is
            self._set_state(replace(self.state, summary=summary))
        recent = with_recent_model(self._settings.current, path)
        self._settings.change(last_model=path, recent_models=recent)
        self.recent_models_changed.emit(list(recent))
        for notice in joined_by_code(summary.notices):
            self.notice_raised.emit(notice)

    @Slot(object)
    def _on_moved(self, summary: ModelSummary) -> None:
        self._working = replace(self._working, summary=summary)
        self._set_state(replace(self.state, summary=summary))

    @Slot(int, object)
    def _on_failed(self, load_id: int, notice: Notice) -> None:
        if load_id != self._load_id:
            return
        path = self._load_path
        self._end_load()
        if self.state.phase is ModelPhase.NONE:
            self.last_failure = notice
        self.load_failed.emit(path, notice)
        if self._has_to_bring_back:
            self.notice_raised.emit(notice)  # its card gives way to that of the one that comes back
            self._load_unloaded()

    @Slot(int)
    def _on_cancelled(self, load_id: int) -> None:
        if load_id == self._load_id:
            self._end_load()
            if self._has_to_bring_back:
                self._load_unloaded()

    @property
    def _has_to_bring_back(self) -> bool:
        return self._bring_back is not None and self._working.path is None and not self._closed

    def _load_unloaded(self) -> None:
        path, self._bring_back = self._bring_back, None
        assert path is not None
        self.load(path)

    def _goes_first(self, path: Path, config: EngineConfig) -> bool:
        """Whether the model that is loaded makes room for this one, as its card has said."""
        report = self._report
        if report is None or report.path != path:
            return False
        found = plan_room(report, config, self.loaded)
        return found is not None and found.goes_first

    @Slot(object)
    def _on_slots_changed(self, table: SlotTable) -> None:
        self._table = table

    @Slot()
    def _on_unloaded(self) -> None:
        self._report = None
        self._working = ModelState()
        if self._load_id is None:
            self._set_state(self._working)
        else:  # a load was asked for after the unloading
            self._set_state(replace(self.state, summary=None))
        if self._bring_back is None:  # else nobody asked for it, and the next start may have it again
            self._settings.change(last_model=None)

    def _end_load(self) -> None:
        self._load_id = None
        self._load_path = None
        self._remove_mark()
        self._set_state(self._working)

    def _set_state(self, state: ModelState) -> None:
        self.state = state
        self.state_changed.emit(state)


def joined_by_code(notices: Sequence[Notice]) -> list[Notice]:
    """One notice for each code, since the window shows a second one of a code in place of the first."""
    joined: dict[str, Notice] = {}
    for notice in notices:
        first = joined.get(notice.code)
        message = notice.message if first is None else f"{first.message} {notice.message}"
        joined[notice.code] = replace(first or notice, message=message)
    return list(joined.values())


def _ended_the_program(path: Path) -> Notice:
    return Notice(
        "load-ended-program",
        f"The program ended without warning while {path.name} was being loaded,"
        " so it is not loaded by itself again.",
        "Choose it again to try once more, or choose another model.",
    )
