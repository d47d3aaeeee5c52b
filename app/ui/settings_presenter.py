"""Joins the dialog of the settings with the controller; what the window itself shows of them is its own."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from PySide6.QtCore import QObject, QUrl, Signal
from PySide6.QtGui import QDesktopServices
from PySide6.QtWidgets import QWidget

from app.controller import ChatController
from app.settings import reset
from app.ui.settings_dialog import SettingsDialog
from engine.notices import Notice


class SettingsPresenter(QObject):
    """One dialog at a time. Signals: applied(), after settings have changed that the window shows;
    limits_asked(); notice_raised(Notice).
    """

    applied = Signal()
    limits_asked = Signal()
    notice_raised = Signal(object)

    def __init__(
        self,
        controller: ChatController,
        *,
        window: QWidget,
        open_url: Callable[[QUrl], bool] = QDesktopServices.openUrl,
    ) -> None:
        super().__init__(window)
        self._controller = controller
        self._window = window
        self._open_url = open_url
        self.dialog: SettingsDialog | None = None
        controller.conversations_moved.connect(self._show)

    def open(self, *, at: str = "") -> None:
        """at: the field of Settings whose section is shown first; "" for the first section."""
        if self.dialog is not None:
            self.dialog.activateWindow()
            return
        controller = self._controller
        dialog = self.dialog = SettingsDialog(controller.settings, controller.folders, self._window)
        dialog.changed.connect(self._change)
        dialog.folder_chosen.connect(self._choose_folder)
        dialog.reveal_asked.connect(self._reveal)
        dialog.limits_asked.connect(self.limits_asked)
        dialog.reset_asked.connect(self._reset)
        dialog.finished.connect(self._on_finished)
        dialog.open()
        if at:
            dialog.show_row(at)

    def _change(self, field: str, value: Any) -> None:
        self._controller.update_settings(**{field: value})
        self._show()
        self.applied.emit()

    def _choose_folder(self, field: str, folder: Path | None) -> None:
        if field == "chats_folder":
            self._controller.move_conversations(folder)
        else:
            self._change(field, folder)

    def _reset(self) -> None:
        changes = reset(self._controller.settings)
        self._controller.update_settings(**changes)
        self._controller.kept_states.limit(
            ram_bytes=changes["state_ram_bytes"], disk_bytes=changes["state_disk_bytes"]
        )
        self._show()
        self.applied.emit()

    def _reveal(self, folder: Path) -> None:
        """The folder, or the next one above it that is there: some are made when they are first needed."""
        there = next((one for one in (folder, *folder.parents) if os.path.isdir(one)), folder)
        if not self._open_url(QUrl.fromLocalFile(str(there))):
            self.notice_raised.emit(
                Notice(
                    "no-file-manager",
                    "No file manager could be opened.",
                    f"Open the folder by hand: {there}",
                )
            )

    def _show(self) -> None:
        if self.dialog is not None:
            self.dialog.show_settings(self._controller.settings, self._controller.folders)

    def _on_finished(self) -> None:
        self.dialog = None
