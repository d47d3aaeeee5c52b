"""What a person can see of the window, with all that can be pressed: for tests that walk through it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime

from PySide6.QtCore import QObject, Qt
from PySide6.QtWidgets import (
    QAbstractButton,
    QAbstractItemView,
    QAbstractSlider,
    QAbstractSpinBox,
    QComboBox,
    QDialog,
    QLineEdit,
    QPlainTextEdit,
    QScrollBar,
    QTextEdit,
    QWidget,
)

from app.attachments import Attachment
from app.conversations import AnswerStats, Conversation, ConversationSummary, Message, MessageStatus
from app.engine_commands import SlotTable
from app.search import ConversationHit, MessageHit, SearchResult
from app.search_text import Snippet
from app.ui import dialogs
from app.ui.main_window import MainWindow
from app.ui.message_edit import LONG_CHARACTERS
from engine.generation import DecodeStats, PrefillStats, SlotInfo
from engine.metrics import AnswerMetrics, CardSpace, MemoryUse, Metrics, Work
from engine.notices import Notice

CONTROLS = (
    QAbstractButton,
    QAbstractItemView,
    QAbstractSlider,
    QAbstractSpinBox,
    QComboBox,
    QLineEdit,
    QPlainTextEdit,
    QTextEdit,
)
_NOW = datetime(2026, 3, 4, 12, tzinfo=UTC)
_ANSWER = """\
A [link](https://example.org) in prose, and a formula $x^2$.

```python
def hover(wind: float) -> float:
    return wind * 2  # enough
```

| Bird | Speed |
| --- | --- |
| Kestrel | 63 |

- [ ] a task
"""
GB = 10**9
SLOTS = (
    SlotInfo("c1", tokens=1234, pages=20, place="pool", reused=1200, total=1234),
    SlotInfo("c2", tokens=65, pages=2, place="fallback", reused=None, total=None),
)
METRICS = Metrics(
    "cuda:0",
    MemoryUse(8 * GB, GB, GB, 0, CardSpace("NVIDIA H200", 150 * GB, 130 * GB)),
    slots=2,
    most_slots=8,
    most_pages=16,
    last_answer=AnswerMetrics(PrefillStats(310, 10, 0.1), DecodeStats(99, 0.5), Work(99 * 214, 99, 99)),
)


def controls(root: QWidget) -> Iterator[QWidget]:
    """Everything seen on a surface that the mouse can do something with, but what moves the view itself
    (scroll bars) and the parts that Qt makes inside another control.
    """
    for widget in (root, *root.findChildren(QWidget)):
        if not widget.isVisible() or not widget.isEnabled() or widget.window() is not root.window():
            continue
        if isinstance(widget, QScrollBar) or _inside_another(widget):
            continue
        if isinstance(widget, CONTROLS) or _takes_clicks(widget):
            yield widget


def _inside_another(widget: QWidget) -> bool:
    parent = widget.parentWidget()
    while parent is not None:
        if isinstance(parent, (QAbstractSpinBox, QComboBox, QLineEdit)):
            return True
        if isinstance(parent, QAbstractItemView) and widget is parent.viewport():
            return True
        parent = parent.parentWidget()
    return False


def _takes_clicks(widget: QWidget) -> bool:
    own = ("mousePressEvent", "mouseReleaseEvent", "mouseDoubleClickEvent")
    overrides = any(name in vars(kind) for kind in type(widget).__mro__ for name in own if _is_ours(kind))
    pointed = widget.cursor().shape() is Qt.CursorShape.PointingHandCursor and not _is_viewport(widget)
    return overrides or pointed


def _is_ours(kind: type) -> bool:
    return kind.__module__.startswith("app.")


def _is_viewport(widget: QWidget) -> bool:
    parent: QObject | None = widget.parent()
    return isinstance(parent, (QTextEdit, QPlainTextEdit, QAbstractItemView))


def told(widget: QWidget) -> str:
    """A widget in words, for messages of failed tests."""
    path: list[str] = []
    one: QWidget | None = widget
    while one is not None and len(path) < 3:
        path.append(type(one).__name__ + (f"({one.objectName()})" if one.objectName() else ""))
        one = one.parentWidget()
    return f"{' in '.join(path)} named {widget.accessibleName()[:40]!r}"


# The surfaces


def _message(number: int, role: str, text: str, **more: object) -> Message:
    status = more.pop("status", MessageStatus.COMPLETE)
    thinking = str(more.pop("thinking", ""))
    return Message(f"m{number}", "c1", role, text, thinking, status, _NOW, **more)  # type: ignore[arg-type]


def show_chat(window: MainWindow) -> QWidget:
    """A conversation with everything that a message can have, and all that can stand in the composer."""
    summary = ConversationSummary("c1", "Kestrels", _NOW, _NOW, pinned=True, unread=True, tags=("birds",))
    stats = AnswerStats(1200, 1000, 0.5, 99, 9.9, "end", "cpu")
    file = Attachment("wings.txt", "wide\nand long")
    messages = (
        _message(1, "user", "How do they hover?\n" * 60, attachments=(file,), version=1, versions=2),
        _message(2, "assistant", _ANSWER, thinking="Hm.", stats=stats, version=2, versions=2),
        _message(3, "user", "And then?"),
        _message(4, "assistant", "Nothing.", status=MessageStatus.STOPPED, stats=stats),
    )
    window.show_chat()
    window.conversations.set_summaries([summary])
    window.chat.show_conversation(Conversation(summary, messages))
    window.chat.transcript.work.run_to_end()
    window.chat.set_model_ready(True, "")
    composer = window.chat.composer
    composer.set_text("x" * (LONG_CHARACTERS + 1))
    composer.edit.setPlainText("More")
    return window


def show_edit(window: MainWindow) -> QWidget:
    show_chat(window)
    window.chat.composer.begin_edit("m1", "How do they hover?")
    return window


def show_empty(window: MainWindow) -> QWidget:
    window.show_chat()
    return window


def show_models(window: MainWindow) -> QWidget:
    window.show_models()
    window.loader.options.disclosure.setChecked(True)
    return window


def show_panel(window: MainWindow) -> QWidget:
    """With what `SLOTS` and `METRICS` say, which the engine has to say, too."""
    show_chat(window)
    window.resize(1400, 1000)
    window.sides.show(window.dock)
    window.panel.set_titles({"c1": "Kestrels"})
    window.panel.set_slots(SlotTable(slots=SLOTS, metrics=METRICS))
    return window


def show_banners(window: MainWindow) -> QWidget:
    for code in ("out-of-memory", "disk-full", "state-fallback", "no-model", "context-full"):
        window.show_notice(Notice(code, f"What {code} means.", "Do something."), details="More of it")
    window.show_chat()
    return window


def show_search(window: MainWindow) -> QWidget:
    show_chat(window)
    bar = window.conversations.filter_bar
    bar.field.setText("kestrel")
    bar._timer.stop()
    asks = window.conversations.blockSignals(True)  # what is found is said here, not by the store
    bar._ask()
    window.conversations.blockSignals(asks)
    hit = MessageHit("m2", "assistant", Snippet("the kestrel hovers", ((4, 11),)), _NOW)
    found = ConversationHit("c1", Snippet("Kestrels", ((0, 7),)), (hit,), num_more=2)
    window.conversations.show_result(SearchResult("kestrel", ("kestrel",), (found,)))
    return window


def show_undo(window: MainWindow) -> QWidget:
    show_chat(window)
    window.conversations.show_deleted(2)
    window.conversations.filter_bar.set_tags({"birds": 1, "wind": 2}, "birds")
    return window


def _opened(window: MainWindow, open_it: Callable[[], object]) -> QDialog:
    open_it()
    dialog = window.findChildren(QDialog)[-1]
    dialog.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose, False)
    return dialog


def show_settings(window: MainWindow) -> QWidget:
    """All sections at once, as a search for a letter that each has."""
    dialog = _opened(window, window.actions_.settings.trigger)
    for holder, section in dialog._holders:
        holder.show()
        for row in section.rows:
            row.show()
    return dialog


def show_notices(window: MainWindow) -> QWidget:
    show_banners(window)
    return _opened(window, window.actions_.past_notices.trigger)


SURFACES: dict[str, Callable[[MainWindow], QWidget]] = {
    "a chat": show_chat,
    "an edit": show_edit,
    "an empty chat": show_empty,
    "the page of models": show_models,
    "the live panel": show_panel,
    "banners": show_banners,
    "search results": show_search,
    "the list with a tag and an undo": show_undo,
    "settings": show_settings,
    "past notices": show_notices,
    "settings of a chat": lambda window: _opened(window, window.actions_.chat_settings.trigger),
    "limits of what is kept": lambda window: _opened(window, window.actions_.kept_states.trigger),
    "shortcuts": lambda window: _opened(window, window.actions_.shortcuts.trigger),
    "a question": lambda window: _opened(
        window, lambda: dialogs.ask_to_delete_message(window, on_accept=lambda: None)
    ),
    "about": lambda window: _opened(window, window.actions_.about.trigger),
}
