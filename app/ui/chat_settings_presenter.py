"""What is chosen for the chat that is open: shown at the composer, and changed in a dialog."""

from __future__ import annotations

from PySide6.QtCore import QObject

from app.chat_settings import ChatSettings
from app.controller import ChatController
from app.ui.chat_pane import ChatPane
from app.ui.chat_settings_dialog import ChatSettingsDialog


class ChatSettingsPresenter(QObject):
    """One dialog at a time; it belongs to the chat that was open when it was asked for."""

    def __init__(self, controller: ChatController, *, chat: ChatPane, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self._controller = controller
        self._chat = chat
        self._dialog: ChatSettingsDialog | None = None
        chat.composer.settings_requested.connect(self.open)
        controller.chat_settings_changed.connect(self._show)
        controller.conversation_opened.connect(self._on_opened)

    def open(self) -> None:
        if self._dialog is not None:
            self._dialog.activateWindow()
            return
        controller = self._controller
        summary = controller.model_state.summary
        dialog = self._dialog = ChatSettingsDialog(
            controller.chat_settings,
            controller.settings.presets,
            recommended=summary.sampling_defaults if summary is not None else None,
            remembered=controller.remembered_sampling,
            model=summary.name if summary is not None else "",
            parent=self._chat.window(),
        )
        dialog.chosen.connect(controller.change_chat_settings)
        dialog.remembered.connect(controller.remember_sampling)
        dialog.presets_changed.connect(lambda presets: controller.update_settings(presets=presets))
        dialog.finished.connect(self._on_finished)
        dialog.open()

    def _show(self, settings: ChatSettings) -> None:
        self._chat.composer.set_has_settings(settings != ChatSettings())

    def _on_opened(self) -> None:
        """Another chat is on the screen: what is being chosen was not meant for it."""
        if self._dialog is not None:
            self._dialog.reject()

    def _on_finished(self) -> None:
        self._dialog = None
