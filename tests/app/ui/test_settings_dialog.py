"""All settings in one place, found by their words, and each does what it says at once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from PySide6.QtCore import Qt, QUrl
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QAbstractButton, QComboBox, QFileDialog, QLineEdit, QMessageBox

from app.context_policy import ContextPolicy
from app.paths import Folders
from app.presets import Preset
from app.settings import Settings, Theme
from app.ui.main_window import MainWindow
from app.ui.settings_dialog import SettingsDialog
from app.ui.theme import theme_manager

FOLDERS = Folders(*(Path(f"/home/me/{name}") for name in ("models", "chats", "cache", "settings", "log")))


@pytest.fixture
def dialog(qtbot) -> SettingsDialog:
    made = SettingsDialog(Settings(), FOLDERS)
    made.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose, False)
    qtbot.addWidget(made)
    made.show()
    return made


@pytest.fixture
def opened(window: MainWindow) -> SettingsDialog:
    """In the window."""
    window.actions_.settings.trigger()
    assert window.settings.dialog is not None
    return window.settings.dialog


LOOK = ["Theme", "Language", "Size of text"]


def shown(dialog: SettingsDialog) -> list[str]:
    return [row.name for row in dialog.shown_rows()]


def test_a_section_is_shown_at_a_time(dialog: SettingsDialog) -> None:
    assert shown(dialog) == LOOK
    dialog.list.setCurrentRow(3)
    assert shown(dialog) == ["Models", "Conversations", "Prepared weights", "Settings", "Log"]


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ("显存", ["显存上限"]),
        ("VRAM 上限", ["显存上限"]),
        ("深色", ["主题"]),
        ("主题颜色", ["主题"]),
        ("颜色设色", []),
        ("崩溃", ["日志"]),
        ("模型文件夹", ["模型"]),
        ("字体缩放", ["文字大小"]),
        ("恢复出厂设置", ["重置"]),
        ("外观", ["主题", "语言", "文字大小"]),
        ("没有这种东西", []),
    ],
)
def test_a_search_finds_chinese_words_that_stand_without_spaces(
    in_chinese, dialog: SettingsDialog, query: str, found: list[str]
) -> None:
    dialog.search.setText(query)
    assert shown(dialog) == found


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ("vram", ["At most of the card's memory"]),
        ("DARK", ["Theme"]),
        ("  oldest   messages ", ["When the context is full"]),
        ("kept of conv", ["What is kept of conversations"]),
        ("factory", ["Reset"]),
        ("crash", ["Log"]),
        ("look", LOOK),
        ("no such thing", []),
    ],
)
def test_a_search_finds_settings_of_all_sections_by_their_words(
    dialog: SettingsDialog, query: str, found: list[str]
) -> None:
    QTest.keyClicks(dialog.search, query)
    assert shown(dialog) == found
    assert dialog.nothing.isVisible() is not bool(found)
    QTest.keyClick(dialog.search, Qt.Key.Key_Escape)
    assert shown(dialog) == LOOK, "the section comes back, and the dialog stays"
    assert dialog.isVisible()


def test_a_number_that_can_not_be_used_is_told_and_changes_nothing(dialog: SettingsDialog, record) -> None:
    events = record(changed=dialog.changed)
    dialog.list.setCurrentRow(1)
    for row, text in (
        (dialog.sections.context, "0"),
        (dialog.sections.threads, "9,999"),
        (dialog.sections.budget, "1,024"),
    ):
        row.field.setText(text)
        QTest.keyClick(row.field, Qt.Key.Key_Return)
        assert text in row.error.text()
        assert row.error.isVisible()
    assert events == []
    assert dialog.isVisible(), "Enter ended the field, not the dialog"


def test_numbers_are_read_as_people_write_them(dialog: SettingsDialog, record) -> None:
    events = record(changed=dialog.changed)
    for row, text in (
        (dialog.sections.context, "32,768"),
        (dialog.sections.budget, "2.5 GB"),
        (dialog.sections.threads, "4"),
    ):
        row.field.setText(text)
        row.field.editingFinished.emit()
        row.field.editingFinished.emit()  # the focus leaves after Enter
    dialog.sections.threads.field.clear()
    dialog.sections.threads.field.editingFinished.emit()
    assert events == [
        ("changed", "context_tokens", 32_768),
        ("changed", "vram_bytes", 2_500_000_000),
        ("changed", "threads", 4),
        ("changed", "threads", None),
    ]


def test_every_control_has_a_name_and_a_tooltip(dialog: SettingsDialog) -> None:
    parts = [
        part
        for kind in (QAbstractButton, QLineEdit, QComboBox)
        for part in dialog.findChildren(kind)
        if not isinstance(part.parent(), QLineEdit) and part is not dialog.close_button
    ]
    assert len(parts) > 15
    for part in parts:
        assert part.accessibleName(), part
        assert part.toolTip(), part


def test_what_is_chosen_counts_at_once_and_is_on_disk(window: MainWindow, opened: SettingsDialog) -> None:
    opened.sections.theme.box.setCurrentIndex(2)
    opened.sections.theme.box.activated.emit(2)
    assert theme_manager().choice is Theme.DARK
    assert window.actions_.themes[Theme.DARK].isChecked()
    opened.sections.policy.box.setCurrentIndex(1)
    opened.sections.policy.box.activated.emit(1)
    assert window.status.context.policy is ContextPolicy.DROP_OLDEST
    opened.sections.device.box.setCurrentIndex(2)
    opened.sections.device.box.activated.emit(2)
    assert window.loader.options.device == "cpu"
    assert (window.controller.settings.theme, window.controller.settings.device) == (Theme.DARK, "cpu")


def test_a_reset_asks_first_and_leaves_presets(window: MainWindow, opened: SettingsDialog) -> None:
    preset = Preset("Poet", "Write in verse.")
    window.controller.update_settings(presets=(preset,), theme=Theme.DARK, threads=3, state_disk_bytes=0)
    opened.sections.reset.button.click()
    box = opened.findChild(QMessageBox)
    assert window.controller.settings.threads == 3
    next(button for button in box.buttons() if button.text() == "Reset").click()
    settings = window.controller.settings
    assert (settings.theme, settings.threads, settings.state_disk_bytes) == (Theme.SYSTEM, None, None)
    assert settings.presets == (preset,)
    assert opened.sections.threads.field.text() == ""
    assert theme_manager().choice is Theme.SYSTEM


def test_folders_are_shown_chosen_and_given_back(
    window: MainWindow, opened: SettingsDialog, qtbot, tmp_path: Path
) -> None:
    row = opened.sections.folders["models"]
    assert row.path.text() == str(Path.home())
    row.change_button.click()
    dialog = opened.findChild(QFileDialog)
    dialog.fileSelected.emit(str(tmp_path))
    dialog.close()
    assert window.controller.settings.models_folder == tmp_path
    assert row.path.text() == str(tmp_path)
    assert window.loader._start_folder() == str(tmp_path)
    row.default_button.click()
    assert window.controller.settings.models_folder is None
    with qtbot.waitSignal(window.controller.conversations_moved):
        opened.folder_chosen.emit("chats_folder", tmp_path / "chats")
    assert opened.sections.folders["chats"].path.text() == str(tmp_path / "chats")
    assert (tmp_path / "chats" / "conversations.sqlite3").exists()


def test_a_folder_is_shown_in_the_file_manager_or_the_next_one_that_is_there(
    window: MainWindow, opened: SettingsDialog, tmp_path: Path
) -> None:
    asked: list[QUrl] = []
    window.settings._open_url = lambda url: asked.append(url) or len(asked) == 1
    opened.reveal_asked.emit(tmp_path / "not" / "made yet")
    assert asked == [QUrl.fromLocalFile(str(tmp_path))]
    assert not window.banners.notices()
    opened.reveal_asked.emit(tmp_path)
    assert [notice.code for notice in window.banners.notices()] == ["no-file-manager"]


def test_a_second_wish_for_the_settings_opens_no_second_dialog(
    window: MainWindow, opened: SettingsDialog
) -> None:
    window.actions_.settings.trigger()
    assert window.settings.dialog is opened
    opened.close()
    assert window.settings.dialog is None


def test_the_limits_of_what_is_kept_open_from_here(window: MainWindow, opened: SettingsDialog, qtbot) -> None:
    with qtbot.waitSignal(window.controller.kept_states.measured):
        opened.sections.limits.button.click()


@pytest.fixture(autouse=True)
def _theme_as_it_was() -> Callable[[], None]:
    yield
    theme_manager().apply(Theme.SYSTEM)
