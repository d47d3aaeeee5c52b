"""The chat while its messages have versions: what two paths share stays, and answers find their place."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

import pytest

from app.conversations import AnswerStats, Conversation, ConversationSummary, Message, MessageStatus
from app.ui.chat_pane import ChatPane
from app.ui.message_actions import MessageAction
from app.ui.message_view import AnswerView
from app.worker import AnswerDelta

WHEN = datetime(2026, 1, 2, tzinfo=UTC)
SUMMARY = ConversationSummary("chat", "Chat", WHEN, WHEN)
STATS = AnswerStats(1200, 1000, 0.5, 99, 9.9, "end", "cpu")


def message(number: int, *, branch: str = "", **changes) -> Message:
    role = "assistant" if number % 2 else "user"
    text = f"{branch}{role} {number}"
    made = Message(f"m{branch}{number}", "chat", role, text, "", MessageStatus.COMPLETE, WHEN, STATS)
    return replace(made, **changes)


def conversation(*messages: Message) -> Conversation:
    return Conversation(SUMMARY, messages)


def path(count: int, *, common: int | None = None) -> Conversation:
    """The first `common` messages are those of the other path."""
    common = count if common is None else common
    return conversation(
        *(message(number) for number in range(common)),
        *(message(number, branch="b") for number in range(common, count)),
    )


def texts(pane: ChatPane) -> list[str]:
    return [view.text for view in pane.transcript.views]


def show(qtbot, pane: ChatPane, shown: Conversation, *, as_branch: bool = False) -> None:
    (pane.show_branch if as_branch else pane.show_conversation)(shown)
    expected = [one.text for one in shown.messages]
    qtbot.waitUntil(lambda: texts(pane) == expected)


@pytest.mark.parametrize("common", [0, 1, 3, 6])
def test_what_two_paths_share_is_kept_and_the_rest_replaced(qtbot, pane: ChatPane, common: int) -> None:
    show(qtbot, pane, path(6))
    before = pane.transcript.views
    show(qtbot, pane, path(6, common=common), as_branch=True)
    after = pane.transcript.views
    assert after[:common] == before[:common]
    assert set(after[common:]).isdisjoint(before)


def test_a_shorter_path_and_back(qtbot, pane: ChatPane) -> None:
    show(qtbot, pane, path(40))
    show(qtbot, pane, path(2), as_branch=True)
    assert pane.transcript.at_bottom
    show(qtbot, pane, path(40), as_branch=True)
    assert len(pane.transcript.views) == 40


def test_a_path_that_comes_while_the_first_is_still_being_built_is_shown_whole(qtbot, pane: ChatPane) -> None:
    pane.show_conversation(path(60))
    assert len(pane.transcript.views) < 60
    show(qtbot, pane, path(62, common=3), as_branch=True)


def test_an_answer_that_grows_in_a_part_that_is_not_built_yet_loses_nothing(qtbot, pane: ChatPane) -> None:
    show(qtbot, pane, path(2))
    growing = message(61, branch="b", text="", status=MessageStatus.WRITING, stats=None)
    shown = conversation(*path(61, common=2).messages, growing)
    pane.show_branch(shown)
    assert pane.transcript.view(growing.id) is None
    pane.extend_answer(growing.id, AnswerDelta(text="so far"))
    qtbot.waitUntil(lambda: len(pane.transcript.views) == 62)
    view = pane.transcript.views[-1]
    assert view.text == "so far"
    pane.finish_answer(replace(growing, text="so far so good", status=MessageStatus.COMPLETE, stats=STATS))
    assert view.text == "so far so good"


def test_a_message_that_is_sent_while_a_path_is_still_being_built_comes_last(qtbot, pane: ChatPane) -> None:
    show(qtbot, pane, path(2))
    pane.show_branch(path(60, common=2))
    pane.add_message(message(60))
    assert texts(pane)[-1] == "user 60"
    qtbot.waitUntil(lambda: len(pane.transcript.views) == 61)
    assert texts(pane)[-2:] == ["bassistant 59", "user 60"]
    assert pane.transcript.at_bottom


def test_an_answer_whose_turn_comes_is_begun_where_it_stands_and_nowhere_else(qtbot, pane: ChatPane) -> None:
    waiting = message(1, text="", status=MessageStatus.WAITING, stats=None)
    show(qtbot, pane, conversation(message(0), waiting))
    view = pane.transcript.views[-1]
    assert isinstance(view, AnswerView)
    assert view.waiting
    pane.begin_answer(replace(waiting, status=MessageStatus.WRITING))
    assert not view.waiting
    assert len(pane.transcript.views) == 2


def test_what_was_left_out_is_said_no_longer_when_everything_is_read_again(qtbot, pane: ChatPane) -> None:
    cut = [*path(5).messages, message(5, stats=replace(STATS, left_out=2))]
    show(qtbot, pane, conversation(*cut))
    assert [bool(view.note) for view in pane.transcript.views] == [False, False, True, False, False, False]
    pane.add_message(message(6))
    pane.add_message(message(7, text="", status=MessageStatus.WRITING, stats=None))
    assert pane.transcript.views[2].note, "until the next prompt is known"
    pane.finish_answer(message(7))
    assert not any(view.note for view in pane.transcript.views)


def test_every_message_has_its_own_versions_on_its_pager(qtbot, pane: ChatPane) -> None:
    show(qtbot, pane, conversation(message(0), message(1, version=2, versions=3)))
    first, second = (view.actions_ for view in pane.transcript.views)
    assert first.pager.isHidden()
    assert (second.pager.text, second.pager.isVisible()) == ("2 / 3", True)
    show(qtbot, pane, conversation(message(0, version=1, versions=2), message(1)), as_branch=True)
    assert first.pager.isVisible()
    assert [first.offers(MessageAction.OLDER), first.offers(MessageAction.NEWER)] == [False, True]


def test_buttons_name_themselves_and_hide_until_they_are_wanted(qtbot, pane: ChatPane) -> None:
    show(qtbot, pane, path(2))
    pane.focus_composer()
    question, answer = (view.actions_ for view in pane.transcript.views)
    names = [button.accessibleName() for one in (question, answer) for button in one.buttons.values()]
    assert names == [
        "Edit message",
        "Quote message",
        "Delete message and what follows…",
        "Answer anew",
        "Branch into a new chat from here",
        "Quote answer",
        "Delete answer and what follows…",
    ]
    edit = question.buttons[MessageAction.EDIT]
    question.reveal(False)  # wherever the mouse happens to be
    assert not edit.seen
    question.reveal(True)
    assert edit.seen
    question.reveal(False)
    edit.setFocus()
    qtbot.waitUntil(edit.hasFocus)
    assert edit.seen, "who comes by keyboard sees it as well"
    assert answer.copy.seen


def test_an_answer_is_quoted_where_one_writes(qtbot, pane: ChatPane) -> None:
    show(qtbot, pane, conversation(message(0), message(1, text="First **line**\n\n- item")))
    pane.composer.set_text("Why?")
    pane.ask(MessageAction.QUOTE)
    assert pane.composer.text == "Why?\n\n> First **line**\n>\n> - item\n\n"
    assert pane.composer.edit.textCursor().atEnd()
    qtbot.waitUntil(lambda: pane.composer.edit.firstVisibleBlock().blockNumber() == 0)


def test_what_is_selected_is_quoted_and_nothing_else(qtbot, pane: ChatPane) -> None:
    show(qtbot, pane, conversation(message(0), message(1, text="First\n\nSecond $x^2$")))
    (document,) = pane.transcript.views[1].documents
    cursor = document.textCursor()
    cursor.setPosition(len("First") + 1)
    cursor.movePosition(cursor.MoveOperation.End, cursor.MoveMode.KeepAnchor)
    document.setTextCursor(cursor)
    pane.transcript.views[1].actions_.buttons[MessageAction.QUOTE].click()
    assert pane.composer.text == "> Second $x^2$\n\n"


def test_quoting_goes_on_while_an_answer_is_written(qtbot, pane: ChatPane) -> None:
    show(qtbot, pane, path(2))
    pane.set_answering(True)
    offers = pane.transcript.views[1].actions_.offers
    assert offers(MessageAction.QUOTE)
    assert not offers(MessageAction.DELETE)
    assert not offers(MessageAction.REGENERATE)


def test_a_quotation_of_a_megabyte_is_held_as_a_paste_is(qtbot, pane: ChatPane) -> None:
    text = "word " * 200_000
    pane.composer.quote(text)
    assert pane.composer.edit.is_blank
    assert pane.composer.text.strip() == f"> {text}".strip()
