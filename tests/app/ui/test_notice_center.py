"""A banner says what can be done, and its buttons do it; what is gone can be read again."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
from PySide6.QtCore import QObject, Qt, Signal
from PySide6.QtGui import QGuiApplication
from PySide6.QtWidgets import QPlainTextEdit, QPushButton, QVBoxLayout, QWidget

from app.answer_stats import AnswerStats
from app.controller import ModelPhase, ModelState
from app.conversations import Message, MessageStatus
from app.notice_log import NoticeLog
from app.ui import notice_actions
from app.ui.answer_footer import AnswerFooter
from app.ui.banner import Banner, BannerStack
from app.ui.copy_button import CopyButton
from app.ui.notice_actions import NoticeAction, actions_of
from app.ui.notice_center import NoticeCenter
from engine.notices import Notice

FULL = Notice("state-fallback", "The card has no memory left for this conversation.", "Close something.")


class Controller(QObject):
    """The verbs that a button may ask for."""

    slots_changed = Signal(object)

    def __init__(self) -> None:
        super().__init__()
        self.done: list[object] = []
        self.past_notices = NoticeLog()
        summary = SimpleNamespace(
            path=Path("/m"), name="Model", family="Llama", layers=4, weights="q8", weight_bytes=9,
            context_length=512, device_description="A card",
        )  # fmt: skip
        self.model_state = ModelState(ModelPhase.READY, Path("/m"), "Model", summary=summary)

    def free_slots(self) -> None:
        self.done.append("freed")

    def load_model(self, path: Path) -> None:
        self.done.append(path)


@pytest.fixture
def controller(qapp) -> Controller:
    return Controller()


@pytest.fixture
def center(qtbot, controller: Controller) -> NoticeCenter:
    window = QWidget()
    qtbot.addWidget(window)
    column = QVBoxLayout(window)
    banners = BannerStack(window)
    column.addWidget(banners)
    column.addWidget(QWidget(), 1)
    window.resize(800, 600)
    window.show()
    center = NoticeCenter(controller, banners=banners, window=window)
    center.banners = banners
    return center


def button(center: NoticeCenter, action: NoticeAction) -> QPushButton:
    [banner] = center.banners.findChildren(Banner)
    [found] = [each for each in banner.action_buttons if each.text() == action.value[0]]
    return found


def test_free_slots_frees_them_and_the_banner_goes(
    center: NoticeCenter, controller: Controller, qtbot
) -> None:
    center.banners.show_notice(FULL)
    qtbot.mouseClick(button(center, NoticeAction.FREE_SLOTS), Qt.MouseButton.LeftButton)
    assert controller.done == ["freed"]
    assert center.banners.notices() == ()


def test_load_again_loads_the_model_again(center: NoticeCenter, controller: Controller, qtbot) -> None:
    center.banners.show_notice(Notice("card-fallback", "The card is full."))
    qtbot.mouseClick(button(center, NoticeAction.RELOAD), Qt.MouseButton.LeftButton)
    assert controller.done == [Path("/m")]


@pytest.mark.parametrize(
    ("code", "action", "signal", "arguments"),
    [
        ("state-fallback", NoticeAction.SHORTER_CONTEXT, "plan_asked", ["context"]),
        ("window-on", NoticeAction.LOWER_PRECISION, "plan_asked", ["weights"]),
        ("state-fallback", NoticeAction.SETTINGS, "settings_asked", []),
        ("no-model", NoticeAction.MODELS, "models_asked", []),
        ("disk-full", NoticeAction.LIMITS, "limits_asked", []),
    ],
)
def test_a_button_leads_to_where_it_says(
    center: NoticeCenter, qtbot, code: str, action: NoticeAction, signal: str, arguments: list[str]
) -> None:
    center.banners.show_notice(Notice(code, "Something happened."))
    with qtbot.waitSignal(getattr(center, signal)) as asked:
        qtbot.keyClick(button(center, action), Qt.Key.Key_Space)
    assert asked.args == arguments
    assert center.banners.notices(), "it stands until it is done"


def test_a_notice_that_nothing_helps_has_no_buttons(center: NoticeCenter) -> None:
    center.banners.show_notice(Notice("a-code-of-a-later-version", "Something happened."))
    [banner] = center.banners.findChildren(Banner)
    assert banner.action_buttons == []


def test_every_code_that_has_buttons_is_one_that_is_raised() -> None:
    root = Path(notice_actions.__file__).parents[2]
    files = [path for name in ("app", "engine") for path in (root / name).rglob("*.py")]
    files.remove(Path(notice_actions.__file__))
    source = "".join(path.read_text(encoding="utf-8") for path in files)
    assert [code for code in notice_actions._ACTIONS if f'"{code}"' not in source] == []
    assert all(len(set(actions_of(code))) == len(actions_of(code)) for code in notice_actions._ACTIONS)


def test_a_report_is_copied_with_what_it_happened_on(center: NoticeCenter, qtbot) -> None:
    center.banners.show_notice(FULL, details="Traceback: line 1")
    [banner] = center.banners.findChildren(Banner)
    copy = banner.findChild(CopyButton)
    assert copy.accessibleName() == "Copy report"
    qtbot.mouseClick(copy, Qt.MouseButton.LeftButton)
    text = QGuiApplication.clipboard().text()
    for words in (FULL.message, FULL.hint, "Code: state-fallback", "Model: Model", "Traceback: line 1"):
        assert words in text


def test_details_open_to_the_whole_report(center: NoticeCenter, qtbot) -> None:
    center.banners.show_notice(FULL)
    [banner] = center.banners.findChildren(Banner)
    details = banner.findChild(QPlainTextEdit)
    assert not details.isVisible()
    [opens] = [each for each in banner.findChildren(QPushButton) if each.text() == "Details"]
    qtbot.mouseClick(opens, Qt.MouseButton.LeftButton)
    assert details.isVisible()
    assert "Device: A card" in details.toPlainText()


def test_a_notice_that_was_dismissed_is_in_the_list_of_past_ones(center: NoticeCenter, qtbot) -> None:
    center.banners.show_notice(Notice("first", "The first."))
    center.banners.show_notice(FULL)
    center.banners.dismiss("first")
    center.banners.dismiss(FULL.code)
    dialog = center.open_list()
    assert not dialog.isModal() or dialog.parent() is not None
    assert [dialog.list.item(row).text().split("  ")[1] for row in range(dialog.list.count())] == [
        FULL.message,
        "The first.",
    ]
    assert FULL.hint in dialog.report.toPlainText()
    dialog.list.setCurrentRow(1)
    assert "Code: first" in dialog.report.toPlainText()
    qtbot.mouseClick(dialog.copy_button, Qt.MouseButton.LeftButton)
    assert QGuiApplication.clipboard().text() == dialog.report.toPlainText()
    qtbot.mouseClick(dialog.clear_button, Qt.MouseButton.LeftButton)
    assert dialog.empty.isVisible()
    assert center.log.past == ()
    dialog.close()


def message(fallback: str) -> Message:
    stats = AnswerStats(10, 0, 0.5, 30, 0.1, "end", "cpu", fallback=fallback)
    return Message("m", "c", "assistant", "Text.", "", MessageStatus.COMPLETE, 0.0, stats)


def test_an_answer_in_fallback_is_marked_and_others_are_not(qtbot) -> None:
    footer = AnswerFooter(lambda: "")
    qtbot.addWidget(footer)
    footer.show_message(message(FULL.message))
    footer.resize(600, footer.arrange(600))
    footer.show()
    assert footer.fallback.isVisible()
    assert footer.fallback.toolTip() == FULL.message
    assert FULL.message in footer.fallback.accessibleName()
    assert not footer.fallback.geometry().intersects(footer.figures.geometry())
    footer.show_message(message(""))
    assert not footer.fallback.isVisible()
