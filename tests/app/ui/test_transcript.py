"""A conversation of any length opens at once and scrolls alike everywhere; no more of it is built than is
near to what is seen, and nothing that a person did is lost by that.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace

import long_chats
from hypothesis import given
from hypothesis import strategies as st
from long_chats import STATS, WHEN, conversation
from PySide6.QtCore import Qt
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QApplication

from app.conversations import Conversation, ConversationSummary, Message, MessageStatus
from app.ui.chat_pane import ChatPane
from app.ui.message_view import AnswerView, UserMessageView
from app.ui.transcript_entries import NUM_BUILT, NUM_KEPT, NUM_LAST, Entry, nearest, seen_range
from app.worker import AnswerDelta

LONG = 2_000  # messages
OPEN_MS = 300.0
STALL_MS = 50.0


def message(number: int, text: str = "", **changes) -> Message:
    return replace(long_chats.message(number, text), **changes)


def settle(qtbot, pane: ChatPane) -> None:
    qtbot.waitUntil(lambda: not pane.transcript.work.busy, timeout=60_000)


def seen_ids(pane: ChatPane) -> list[str]:
    """Of the messages that are on the screen."""
    viewport = pane.transcript.viewport()
    top = pane.transcript.verticalScrollBar().value()
    views = pane.transcript.views
    return [v.message_id for v in views if v.y() < top + viewport.height() and v.y() + v.height() > top]


def longest_turn_ms(act) -> float:
    """Processor time of the longest of the turns of the event loop that `act` yields between."""
    longest = 0.0
    for _ in act:
        before = time.thread_time()
        QApplication.processEvents()  # one turn: with a time it takes further ones until that is over
        longest = max(longest, (time.thread_time() - before) * 1000)
    return longest


def test_two_thousand_messages_open_at_once_at_their_end(qtbot, pane: ChatPane) -> None:
    shown = conversation(LONG)
    before = time.thread_time()
    pane.show_conversation(shown)
    while f"m{LONG - 1}" not in seen_ids(pane) or f"m{LONG - 2}" not in [
        v.message_id for v in pane.transcript.views
    ]:
        QApplication.processEvents()
    pane.grab()
    assert (time.thread_time() - before) * 1000 < OPEN_MS
    assert pane.transcript.at_bottom


def test_two_thousand_messages_scroll_without_a_stall(qtbot, pane: ChatPane, bar) -> None:
    pane.show_conversation(conversation(LONG))
    settle(qtbot, pane)

    def scroll() -> Iterator[None]:
        for share in (0.9, 0.5, 0.1, 0.0, 0.7):
            bar.setValue(round(bar.maximum() * share))
            yield
            for _ in range(30):
                bar.setValue(bar.value() - 90)
                yield

    assert longest_turn_ms(scroll()) < STALL_MS


def test_no_more_is_built_than_is_near_to_what_is_seen(qtbot, pane: ChatPane, bar) -> None:
    pane.show_conversation(conversation(LONG))
    most = NUM_KEPT + NUM_LAST + 1
    for share in (1.0, 0.6, 0.3, 0.0):
        bar.setValue(round(bar.maximum() * share))
        settle(qtbot, pane)
        assert NUM_BUILT <= len(pane.transcript.views) <= most
        ids = [int(view.message_id[1:]) for view in pane.transcript.views]
        assert ids == sorted(ids)
        assert set(range(LONG - NUM_LAST, LONG)) <= set(ids), "keys that mean the last answer find it"


def test_the_whole_can_be_read_from_the_end_to_the_beginning(qtbot, pane: ChatPane, bar) -> None:
    count = 160
    pane.show_conversation(conversation(count))
    settle(qtbot, pane)
    read: list[str] = []
    while True:
        read += [one for one in reversed(seen_ids(pane)) if one not in read]
        if bar.value() == 0:
            break
        bar.setValue(bar.value() - 400)
        settle(qtbot, pane)
    assert read == [f"m{number}" for number in reversed(range(count))]


def test_a_jump_far_away_shows_what_is_there_and_stays(qtbot, pane: ChatPane, bar) -> None:
    pane.show_conversation(conversation(400))
    settle(qtbot, pane)
    bar.setValue(bar.maximum() // 2)
    first = None

    def something_is_seen() -> bool:
        nonlocal first
        first = next(iter(seen_ids(pane)), None)
        return first is not None

    qtbot.waitUntil(something_is_seen)
    assert first is not None
    view = pane.transcript.view(first)
    assert view is not None
    settle(qtbot, pane)
    assert first in seen_ids(pane)
    pane.transcript.jump_to_end()
    settle(qtbot, pane)
    assert seen_ids(pane)[-1] == "m399"
    assert pane.transcript.at_bottom


def test_an_answer_that_grows_while_one_reads_elsewhere_is_whole(qtbot, pane: ChatPane, bar) -> None:
    pane.show_conversation(conversation(300))
    growing = replace(message(301), text="", status=MessageStatus.WRITING, stats=None)
    pane.add_message(growing)
    bar.setValue(0)
    settle(qtbot, pane)
    for number in range(50):
        pane.extend_answer(growing.id, AnswerDelta(text=f"word {number}\n\n"))
        QApplication.processEvents()
    text = "".join(f"word {number}\n\n" for number in range(50))
    assert bar.value() == 0
    pane.finish_answer(replace(growing, text=text, status=MessageStatus.COMPLETE, stats=STATS))
    pane.transcript.jump_to_end()
    settle(qtbot, pane)
    view = pane.transcript.view(growing.id)
    assert isinstance(view, AnswerView)
    assert view.text == text


def test_what_a_person_opened_or_selected_is_still_so_when_they_come_back(qtbot, pane: ChatPane, bar) -> None:
    messages = [message(number) for number in range(400)]
    messages[1] = message(1, thinking="A thought")
    messages[2] = message(2, "line\n" * 40)
    pane.show_conversation(Conversation(ConversationSummary("c", "C", WHEN, WHEN), tuple(messages)))
    bar.setValue(0)
    settle(qtbot, pane)
    thoughtful, unfolded, selected = (pane.transcript.view(f"m{number}") for number in (1, 2, 3))
    assert isinstance(thoughtful, AnswerView)
    assert isinstance(unfolded, UserMessageView)
    assert thoughtful.thinking is not None
    assert unfolded.bubble.more_button is not None
    thoughtful.thinking.button.click()
    unfolded.bubble.more_button.click()
    document = selected.documents[0]
    QTest.mousePress(document.viewport(), Qt.MouseButton.LeftButton)
    document.selectAll()
    bar.setValue(bar.maximum())
    settle(qtbot, pane)
    assert pane.transcript.view("m5") is None
    for number, before in ((1, thoughtful), (2, unfolded), (3, selected)):
        assert pane.transcript.view(f"m{number}") is before
    assert document.textCursor().hasSelection()


def test_a_new_width_fits_everything_that_is_seen(qtbot, pane: ChatPane, bar) -> None:
    pane.show_conversation(conversation(300))
    settle(qtbot, pane)
    bar.setValue(bar.maximum() // 3)
    settle(qtbot, pane)
    for width in (520, 1300):
        pane.resize(width, 700)
        settle(qtbot, pane)
        views = pane.transcript.views
        assert len({view.width() for view in views}) == 1
        bottoms = [view.y() + view.height() for view in views]
        assert all(bottom <= view.y() for bottom, view in zip(bottoms, views[1:], strict=False))
        assert seen_ids(pane)


# What is near


@given(
    heights=st.lists(st.integers(1, 500), max_size=60),
    top=st.integers(-100, 20_000),
    height=st.integers(0, 2_000),
    count=st.integers(0, 80),
    upwards=st.booleans(),
)
def test_what_is_seen_comes_first_and_everything_once(
    heights: list[int], top: int, height: int, count: int, upwards: bool
) -> None:
    entries = []
    y = 0
    for index, one in enumerate(heights):
        entries.append(Entry(message(index), index, top=y, height=one))
        y += one + 2
    seen = seen_range(entries, top, top + height)
    really_seen = [e.index for e in entries if e.top <= top + height and e.bottom > top]
    assert set(really_seen) <= set(seen)
    order = list(nearest(len(entries), seen, count, upwards=upwards))
    assert sorted(order[: len(seen)]) == list(seen)
    assert len(set(order)) == len(order)
    assert len(order) >= min(count, len(entries))
    assert all(0 <= index < len(entries) for index in order)
