"""Text has the size that was chosen, everywhere and at once, and nothing is cut off by it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from PySide6.QtCore import QPoint, QPointF, Qt
from PySide6.QtGui import QTextDocument, QWheelEvent
from PySide6.QtWidgets import (
    QApplication,
    QLabel,
    QLineEdit,
    QPushButton,
    QToolButton,
    QWidget,
)
from surfaces import SURFACES, show_chat, told

from app.settings import TEXT_SIZES, Theme, load_settings
from app.ui.elided_label import ElidedLabel
from app.ui.header import ModelChip
from app.ui.icon_label import IconLabel
from app.ui.main_window import MainWindow
from app.ui.text_size import follow_text_size, next_size, scaled, text_size
from app.ui.theme import theme_manager
from app.ui.wrapped_label import WrappedLabel

USUAL = 100


@pytest.fixture(autouse=True)
def _usual_size(qapp: QApplication) -> Iterator[None]:
    yield
    theme_manager().apply(Theme.LIGHT, text_percent=USUAL)


def put_size(percent: int) -> None:
    theme_manager().apply(theme_manager().choice, text_percent=percent)


def turn_wheel(widget: QWidget, angle: int, *, control: bool = True) -> None:
    """Over a widget. What one doesn't take goes to its parent, as with the events of a real wheel."""
    modifiers = Qt.KeyboardModifier.ControlModifier if control else Qt.KeyboardModifier.NoModifier
    over: QWidget | None = widget
    while over is not None:
        place = QPointF(over.rect().center())
        event = QWheelEvent(
            place,
            QPointF(over.mapToGlobal(place)),
            QPoint(),
            QPoint(0, angle),
            Qt.MouseButton.NoButton,
            modifiers,
            Qt.ScrollPhase.NoScrollPhase,
            False,
        )
        taken = QApplication.sendEvent(over, event) and event.isAccepted()
        over = None if taken else over.parentWidget()


@pytest.fixture
def chat(window: MainWindow) -> MainWindow:
    """With a conversation that has everything."""
    show_chat(window)
    return window


def settle(window: MainWindow) -> None:
    window.chat.transcript.work.run_to_end()


# The steps


def test_steps_go_from_size_to_size_and_stay_at_the_ends() -> None:
    size, seen = TEXT_SIZES[0], [TEXT_SIZES[0]]
    while next_size(size, 1) != size:
        size = next_size(size, 1)
        seen.append(size)
    assert tuple(seen) == TEXT_SIZES
    assert next_size(USUAL, -100) == TEXT_SIZES[0]
    assert next_size(USUAL, 100) == TEXT_SIZES[-1]
    assert next_size(next_size(USUAL, 1), -1) == USUAL


@pytest.mark.parametrize("larger", [Qt.Key.Key_Equal, Qt.Key.Key_Plus])
def test_keys_make_text_larger_and_smaller_and_usual_again(window: MainWindow, qtbot, larger: Qt.Key) -> None:
    window.activateWindow()
    qtbot.waitUntil(window.isActiveWindow)
    control = Qt.KeyboardModifier.ControlModifier
    sizes = []
    for key in (larger, larger, Qt.Key.Key_Minus, Qt.Key.Key_0):
        qtbot.keyClick(window, key, control)
        sizes.append(text_size().percent)
    first = next_size(USUAL, 1)
    assert sizes == [first, next_size(first, 1), first, USUAL]


def test_the_wheel_with_control_changes_the_size_and_scrolls_nothing(chat: MainWindow) -> None:
    bar = chat.chat.transcript.verticalScrollBar()
    bar.setValue(bar.maximum() // 2)
    document = next(chat.chat.transcript.documents)
    before = bar.value()
    turn_wheel(document.viewport(), 120)
    assert text_size().percent == next_size(USUAL, 1)
    turn_wheel(document.viewport(), -120)
    assert text_size().percent == USUAL
    settle(chat)
    assert abs(bar.value() - before) <= 2
    turn_wheel(document.viewport(), -120, control=False)
    assert text_size().percent == USUAL
    assert bar.value() > before


def test_parts_of_a_notch_add_up_to_one_step(chat: MainWindow) -> None:
    viewport = chat.chat.transcript.viewport()
    for _ in range(7):
        turn_wheel(viewport, 15)
    assert text_size().percent == USUAL
    turn_wheel(viewport, 15)
    assert text_size().percent == next_size(USUAL, 1)


def test_no_text_grows_by_itself_under_the_wheel(chat: MainWindow) -> None:
    """Qt has read-only text do so, each part of a message for itself."""
    for _ in TEXT_SIZES:
        chat.actions_.larger_text.trigger()
    settle(chat)
    documents = list(chat.chat.transcript.documents)
    before = [document.font().pointSizeF() for document in documents]
    for document in documents:
        turn_wheel(document.viewport(), 120)
    assert [document.font().pointSizeF() for document in documents] == before


# What is remembered


def test_the_size_is_remembered(window: MainWindow, open_window, app_paths) -> None:
    window.actions_.larger_text.trigger()
    wanted = next_size(USUAL, 1)
    assert load_settings(app_paths.settings_file).settings.text_percent == wanted
    window.close()
    put_size(USUAL)
    open_window()
    assert text_size().percent == wanted


def test_the_settings_change_it_at_once_and_a_reset_undoes_it(window: MainWindow) -> None:
    window.actions_.settings.trigger()
    dialog = window.settings.dialog
    row = dialog.sections.text_size
    assert row.box.count() == len(TEXT_SIZES)
    row.box.setCurrentIndex(TEXT_SIZES.index(150))
    row.box.activated.emit(TEXT_SIZES.index(150))
    assert text_size().percent == window.controller.settings.text_percent == 150
    dialog.reset_asked.emit()
    assert text_size().percent == window.controller.settings.text_percent == USUAL
    assert row.box.currentIndex() == TEXT_SIZES.index(USUAL)


# What it reaches


def sizes_of(root: QWidget) -> dict[int, tuple[QWidget, float]]:
    """Point sizes of all widgets that are ours or show words, by the widget."""
    return {
        id(one): (one, one.font().pointSizeF())
        for one in (root, *root.findChildren(QWidget))
        if not one.objectName().startswith("qt_scrollarea_")
    }


@pytest.mark.parametrize("surface", SURFACES, indirect=True)
def test_every_widget_has_the_size_that_was_chosen(surface: QWidget, window: MainWindow) -> None:
    percent = 200
    before = sizes_of(surface)
    put_size(percent)
    settle(window)
    after = sizes_of(surface)
    wrong = {
        told(widget): (size, after[key][1])
        for key, (widget, size) in before.items()
        if key in after and abs(after[key][1] - size * percent / 100) > 0.06
    }
    assert not wrong
    assert len(after) > 3


def written_sizes(document: QTextDocument) -> list[float]:
    """Of each run of text of a document; of formulas, in pixels."""
    found = []
    block = document.begin()
    while block.isValid():
        place = block.begin()
        while not place.atEnd():
            char_format = place.fragment().charFormat()
            em = char_format.doubleProperty(char_format.Property.UserProperty.value + 4)
            size = char_format.fontPointSize() or document.defaultFont().pointSizeF()
            found.append(em or size)
            place += 1
        block = block.next()
    return found


def test_every_run_of_a_message_has_the_size_that_was_chosen(chat: MainWindow) -> None:
    documents = list(chat.chat.transcript.documents)
    before = [written_sizes(document.document()) for document in documents]
    assert sum(map(len, before)) > 20
    put_size(200)
    settle(chat)
    after = [written_sizes(document.document()) for document in documents]
    for old, new in zip(before, after, strict=True):
        assert new == pytest.approx([2 * size for size in old], rel=0.04)


def test_an_icon_is_as_large_as_the_text_beside_it(qtbot) -> None:
    label = IconLabel("info", size=18)
    qtbot.addWidget(label)
    for percent in (200, 80, 100):
        put_size(percent)
        assert label.width() == scaled(18) == round(18 * percent / 100)


def test_what_follows_the_size_ends_with_its_widget(qtbot) -> None:
    calls: list[int] = []
    widget = QWidget()
    follow_text_size(widget, lambda: calls.append(text_size().percent))
    put_size(150)
    widget.deleteLater()
    QApplication.sendPostedEvents(widget, 52)  # QEvent.Type.DeferredDelete
    put_size(200)
    assert calls == [USUAL, 150]


def test_what_is_read_of_a_long_message_stays_where_it_is(chat: MainWindow, qtbot) -> None:
    chat.chat.transcript.show_messages(list(chat.chat._messages))
    settle(chat)
    transcript = chat.chat.transcript
    view = max(transcript.views, key=lambda one: one.height())
    bar = transcript.verticalScrollBar()
    bar.setValue(view.y() + view.height() // 2)
    share = (bar.value() - view.y()) / view.height()
    put_size(200)
    settle(chat)
    assert (bar.value() - view.y()) / view.height() == pytest.approx(share, abs=0.05)


# What is cut off


def is_cut_off(widget: QWidget) -> str:
    """In what way a text has less room than it needs; "" if it has enough."""
    metrics = widget.fontMetrics()
    if isinstance(widget, (ElidedLabel, ModelChip)):
        return "" if widget.height() >= metrics.height() - 1 else "height"
    if isinstance(widget, QLabel) and widget.text():
        if widget.wordWrap():
            return "" if widget.height() >= widget.heightForWidth(widget.width()) - 1 else "wrapped height"
        if widget.width() < widget.sizeHint().width() - 1:
            return "width"
        return "" if widget.height() >= metrics.height() - 1 else "height"
    if isinstance(widget, (QPushButton, QToolButton)) and widget.text():
        hint = widget.sizeHint()
        if widget.width() < hint.width() - 2:
            return "width"
        return "" if widget.height() >= metrics.height() else "height"
    if isinstance(widget, QLineEdit):
        return "" if widget.height() >= metrics.height() else "height"
    return ""


def cut_off(root: QWidget) -> dict[str, str]:
    return {
        f"{told(widget)} {getattr(widget, 'text', str)()[:40]!r}": problem
        for widget in (root, *root.findChildren(QWidget))
        if widget.isVisible() and widget.window() is root.window()
        if (problem := is_cut_off(widget))
    }


def test_the_walk_finds_what_is_cut_off(qtbot) -> None:
    page = QWidget()
    qtbot.addWidget(page)
    narrow, low, wrapped = (
        QLabel("Some words", page),
        QPushButton("Some words", page),
        WrappedLabel("w " * 90, page),
    )
    narrow.setGeometry(0, 0, 20, 40)
    low.setGeometry(0, 50, 300, 8)
    wrapped.setGeometry(0, 100, 100, 20)
    page.show()
    assert sorted(cut_off(page).values()) == ["height", "width", "wrapped height"]


@pytest.fixture(params=["English", "Chinese"])
def spoken(request: pytest.FixtureRequest) -> str:
    if request.param == "Chinese":
        request.getfixturevalue("in_chinese")
    return request.param


@pytest.mark.slow
@pytest.mark.parametrize("surface", SURFACES, indirect=True)
def test_no_text_is_cut_off_at_any_size(spoken: str, surface: QWidget, window: MainWindow, qtbot) -> None:
    window.resize(1500, 950)
    for percent in (80, 150, 200, 100):
        put_size(percent)
        settle(window)
        try:
            qtbot.waitUntil(lambda: not cut_off(surface), timeout=1000)
        except qtbot.TimeoutError:
            assert not cut_off(surface), f"at {percent} %"
