"""Notices over the chat: one for each code, there until dismissed, text shown as text."""

from __future__ import annotations

from itertools import combinations
from pathlib import Path

import pytest
from PySide6.QtCore import QPoint, QRect, Qt
from PySide6.QtWidgets import (
    QApplication,
    QLabel,
    QPlainTextEdit,
    QPushButton,
    QToolButton,
    QVBoxLayout,
    QWidget,
)
from shown_words import english_words

from app.ui import severity
from app.ui.banner import Banner, BannerStack
from app.ui.push_button import PushButton
from app.ui.severity import Severity, severity_of
from app.ui.wrapped_label import WrappedLabel
from engine.errors import EngineError
from engine.notices import Notice


def notice(code: str, message: str = "") -> Notice:
    return Notice(code, message or f"What happened: {code}.", "What to do.")


@pytest.fixture
def stack(qtbot) -> BannerStack:
    stack = BannerStack()
    qtbot.addWidget(stack)
    return stack


def shown(stack: BannerStack) -> list[str]:
    banners = [banner for banner in stack.findChildren(Banner) if not banner.isHidden()]
    return [banner.notice.code for banner in sorted(banners, key=lambda banner: banner.y())]


def test_stack_takes_no_room_while_there_is_nothing_to_say(stack: BannerStack) -> None:
    assert stack.isHidden()
    stack.show_notice(notice("a"))
    assert not stack.isHidden()
    stack.dismiss("a")
    assert stack.isHidden()


def test_same_code_is_brought_up_to_date_instead_of_stacked_twice(stack: BannerStack) -> None:
    stack.show_notice(notice("a", "First."))
    stack.show_notice(notice("b"))
    stack.show_notice(notice("a", "Second."), severity=Severity.ERROR)
    assert [one.code for one in stack.notices()] == ["a", "b"]
    assert stack.notices()[0].message == "Second."
    [banner] = [banner for banner in stack.findChildren(Banner) if banner.notice.code == "a"]
    assert banner.accessibleName().startswith("Error: Second.")


def test_close_button_dismisses_that_notice_alone(stack: BannerStack, qtbot) -> None:
    for code in "ab":
        stack.show_notice(notice(code))
    [banner] = [banner for banner in stack.findChildren(Banner) if banner.notice.code == "a"]
    qtbot.mouseClick(banner.findChild(QToolButton), Qt.MouseButton.LeftButton)
    assert [one.code for one in stack.notices()] == ["b"]


def test_dismissing_what_is_not_there_changes_nothing(stack: BannerStack) -> None:
    stack.show_notice(notice("a"))
    stack.dismiss("never-raised")
    assert [one.code for one in stack.notices()] == ["a"]


def test_a_flood_is_folded_and_none_is_lost(stack: BannerStack, qtbot) -> None:
    for number in range(6):
        stack.show_notice(notice(f"n{number}"))
    stack.resize(700, 500)
    stack.show()
    assert len(stack.notices()) == 6
    assert set(shown(stack)) == {"n5", "n4", "n3"}
    [more] = [button for button in stack.findChildren(QPushButton) if button.text() == "Show 3 more"]
    qtbot.mouseClick(more, Qt.MouseButton.LeftButton)
    assert set(shown(stack)) == {f"n{number}" for number in range(6)}
    for number in range(6):
        stack.dismiss(f"n{number}")
    for number in range(4):
        stack.show_notice(notice(f"m{number}"))
    assert len(shown(stack)) == 3, "unfolding must not outlive the notices it was asked for"


def test_markup_in_a_file_name_is_shown_as_text(stack: BannerStack) -> None:
    stack.show_notice(notice("a", "The file <b>x</b><img src='http://a.b/c.png'> is damaged."))
    labels = [label for label in stack.findChildren(QLabel) if "<b>" in label.text()]
    assert labels
    assert all(label.textFormat() == Qt.TextFormat.PlainText for label in labels)


@pytest.mark.parametrize("width", [380, 900])
def test_every_line_of_a_notice_is_seen_and_the_close_button_too(qtbot, width: int) -> None:
    window = QWidget()
    qtbot.addWidget(window)
    stack = BannerStack()
    column = QVBoxLayout(window)
    column.addWidget(stack)
    column.addWidget(QWidget(), 1)
    window.resize(width, 600)
    window.show()
    stack.show_notice(notice("a", "A sentence that is longer than one line of a narrow window. " * 3))
    stack.show_notice(notice("b", "/folder/" + "x" * 300))
    qtbot.waitUntil(lambda: all(banner.height() > 20 for banner in stack.findChildren(Banner)))
    for label in stack.findChildren(WrappedLabel):
        assert label.height() >= label.heightForWidth(label.width()), label.text()
    for button in stack.findChildren(QToolButton):
        assert window.rect().contains(button.mapTo(window, button.rect().center()))


@pytest.mark.parametrize("width", [340, 480, 1000])
def test_what_can_be_done_about_a_notice_is_read_in_full(qtbot, width: int) -> None:
    message = "The card has no memory left for this conversation; it is computed on the CPU until there is."
    told = Notice("state-fallback", message, "Close other programs.")
    banner = Banner(told, severity=Severity.WARNING, details="why")
    qtbot.addWidget(banner)
    banner.resize(width, banner.heightForWidth(width))
    banner.show()
    buttons = [button for button in banner.findChildren(PushButton) if button.isVisible()]
    assert len(buttons) == 4
    areas = [QRect(button.mapTo(banner, QPoint(0, 0)), button.size()) for button in buttons]
    for button, area in zip(buttons, areas, strict=True):
        assert button.width() >= button.sizeHint().width()
        assert banner.rect().contains(area)
    assert not any(one.intersects(other) for one, other in combinations(areas, 2))


def test_details_stay_closed_until_asked_for(stack: BannerStack, qtbot) -> None:
    stack.show_notice(notice("a"), details="Traceback: line 1")
    stack.resize(700, 300)
    stack.show()
    details = stack.findChild(QPlainTextEdit)
    button = next(one for one in stack.findChildren(QPushButton) if one.text() == "Details")
    assert not details.isVisible()
    qtbot.mouseClick(button, Qt.MouseButton.LeftButton)
    assert details.isVisible()
    assert details.toPlainText() == "Traceback: line 1"
    stack.show_notice(notice("a"))
    assert not details.isVisible(), "the newer notice has no details"
    assert not button.isVisible()


def test_what_is_not_known_by_its_code_is_never_played_down() -> None:
    assert severity_of("a-code-of-a-later-version") is Severity.WARNING


def test_every_code_whose_look_is_known_is_one_that_is_raised() -> None:
    root = Path(severity.__file__).parents[2]
    files = [path for name in ("app", "engine") for path in (root / name).rglob("*.py")]
    files.remove(Path(severity.__file__))
    source = "".join(path.read_text(encoding="utf-8") for path in files)
    assert [code for code in severity._ERRORS | severity._INFOS if f'"{code}"' not in source] == []


OWN_ERRORS = [kind for kind in EngineError.__subclasses__() if kind.__module__ == EngineError.__module__]


@pytest.mark.parametrize("code", [kind.code for kind in OWN_ERRORS])
def test_errors_of_the_engine_look_like_errors_unless_a_choice_is_meant(code: str) -> None:
    mild = ("setting", "context-full", "model-unloaded")  # what the person chose, and can choose again
    expected = Severity.WARNING if code in mild else Severity.ERROR
    assert severity_of(code) is expected


@pytest.mark.parametrize("size", [(640, 460), (420, 460), (1000, 700), (1600, 1000)])
def test_notices_never_take_the_window_from_the_chat_and_none_of_them_is_cut(
    qtbot, size: tuple[int, int]
) -> None:
    window = QWidget()
    qtbot.addWidget(window)
    column = QVBoxLayout(window)
    column.setContentsMargins(0, 0, 0, 0)
    stack = BannerStack(window)
    chat = QWidget(window)
    chat.setMinimumHeight(200)
    column.addWidget(stack)
    column.addWidget(chat, 1)
    window.resize(1600, 1000)
    window.show()
    for number in range(5):
        stack.show_notice(Notice(f"code-{number}", "The disk is full. " * 6, "Free some space on it. " * 4))
    window.resize(*size)
    QApplication.processEvents()
    shown = [banner for banner in stack.findChildren(Banner) if not banner.isHidden()]
    assert 1 <= len(shown) <= 3
    assert len(shown) == 1 or stack.height() <= window.height() // 2
    for label in (label for banner in shown for label in banner.findChildren(QLabel) if label.text()):
        assert label.height() >= label.heightForWidth(label.width())
    more = stack.findChild(PushButton, options=Qt.FindChildOption.FindDirectChildrenOnly)
    assert more.text() == f"Show {5 - len(shown)} more"


def test_a_notice_is_shown_in_the_language_that_is_set_and_reported_in_english(qtbot, in_chinese) -> None:
    stack = BannerStack()
    qtbot.addWidget(stack)
    stack.report = lambda notice, details: f"{notice.message} {details}"
    said = Notice(
        "no-model", "“a.txt” isn't part of a model.", "Wait for it or cancel the load, then choose again."
    )
    stack.show_notice(said, details="in short")
    assert stack.notices() == (said,)
    assert english_words(stack, names="a.txt") == set()
    assert [label.text() for label in stack.findChildren(WrappedLabel)] == [
        "“a.txt”不是模型的一部分。",
        "请等待加载完成或取消加载，然后重新选择。",
    ]
    details = next(one for one in stack.findChildren(PushButton) if one.text() == "详情")
    qtbot.mouseClick(details, Qt.MouseButton.LeftButton)
    assert stack.findChild(QPlainTextEdit).toPlainText() == f"{said.message} in short"
