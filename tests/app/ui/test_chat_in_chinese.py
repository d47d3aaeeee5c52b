"""The chat in Chinese: no English is left in what it shows, explains or tells screen readers."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
from PySide6.QtGui import QContextMenuEvent
from PySide6.QtWidgets import QComboBox, QMenu, QWidget

from app.attachment_draft import DraftItem, DraftState
from app.attachments import Attachment, Fit
from app.chat_sampling import SamplingChoice
from app.chat_settings import ChatSettings
from app.context_policy import ContextPolicy
from app.conversations import AnswerStats, Conversation, ConversationSummary, Message, MessageStatus
from app.language import Language
from app.model_session import ModelPhase, ModelState
from app.presets import Preset
from app.ui.chat_pane import ChatPane
from app.ui.chat_settings_dialog import ChatSettingsDialog
from app.ui.message_view import WAITING_WORDS, AnswerView
from app.ui.spoken_language import speak
from app.ui.status_line import StatusLine
from engine.generation import ReuseReason, SamplingParams
from engine.model_summary import ModelSummary
from engine.notices import Notice

WHEN = datetime(2026, 1, 2, tzinfo=UTC)
STATS = AnswerStats(1200, 1000, 0.5, 99, 9.9, "end", "cuda", thinking_seconds=75.0)
NO_ROOM = "There was no room for this chat on the card, so the processor computed the answer."
# Names, and what Chinese writes as English does.
SAME = {"Python", "Top-p", "Top-k", "Min-p", "1,234 token", "论.txt"}


TOLD = ("text", "title", "placeholderText", "toolTip", "accessibleName", "accessibleDescription")


@pytest.fixture(autouse=True)
def in_chinese(qapp) -> Iterator[None]:
    """With what Qt says by itself, such as “Cancel”."""
    assert speak(Language.CHINESE) is None
    yield
    speak(Language.ENGLISH)


def texts(shown: QWidget) -> Iterator[str]:
    """All that a person is shown of it, or told, now or when pointing there."""
    for widget in (shown, *shown.findChildren(QWidget)):
        for name in TOLD:
            said = getattr(widget, name, None)
            text = said() if callable(said) and not isinstance(widget, QComboBox | QMenu) else ""
            if isinstance(text, str):
                yield text
        if isinstance(widget, QComboBox):
            yield from (widget.itemText(row) for row in range(widget.count()))
        yield from (action.text().split("\t")[0] for action in widget.actions())


def english(shown: QWidget) -> set[str]:
    """What has English words, or letters and nothing of Chinese."""
    found = set()
    for text in texts(shown):
        has_letters = re.search("[A-Za-z]", text) is not None
        is_chinese = re.search("[\u4e00-\u9fff]", text) is not None
        if re.search(r"[A-Za-z]{2,},? [a-z]{2,}", text) or (has_letters and not is_chinese):
            found.add(text)
    return found - SAME


def message(number: int, role: str, text: str, **values) -> Message:
    status = values.pop("status", MessageStatus.COMPLETE)
    thinking, stats = values.pop("thinking", ""), values.pop("stats", None)
    return Message(f"m{number}", "c", role, text, thinking, status, WHEN, stats, **values)


def show(pane: ChatPane, qtbot, *messages: Message) -> None:
    pane.show_conversation(Conversation(ConversationSummary("c", "标题", WHEN, WHEN), messages))
    qtbot.waitUntil(lambda: len(pane.transcript.views) == len(messages))


@pytest.fixture
def pane(qtbot) -> ChatPane:
    made = ChatPane()
    qtbot.addWidget(made)
    made.resize(900, 3000)
    made.show()
    return made


@pytest.mark.parametrize("ready", [True, False])
def test_a_chat_without_messages(pane: ChatPane, ready: bool) -> None:
    pane.set_model_ready(ready, "")
    assert pane.empty.title
    assert english(pane) == set()


def test_a_question_with_files_versions_and_more_lines_than_are_shown(pane: ChatPane, qtbot) -> None:
    files = (Attachment("论.txt", "文", pages=12), Attachment("论.txt", "文\n文"))
    show(pane, qtbot, message(1, "user", "行\n" * 60, attachments=files, version=2, versions=3))
    assert english(pane) == set()


@pytest.mark.parametrize("reason", list(ReuseReason))
def test_the_figures_of_an_answer(pane: ChatPane, qtbot, reason: ReuseReason) -> None:
    stats = replace(
        STATS, reuse_reason=reason.value, diverged_at=900, left_out=2, fallback=NO_ROOM, device="cpu"
    )
    answer = message(2, "assistant", "好：\n\n```python\n1\n```\n\n```\n1\n```", thinking="嗯", stats=stats)
    show(pane, qtbot, message(1, "user", "问"), answer)
    assert english(pane) == set()


@pytest.mark.parametrize("status", [one for one in MessageStatus if one is not MessageStatus.WRITING])
@pytest.mark.parametrize("finish", ["", "length", "context", "cancelled"])
def test_the_ends_of_an_answer(pane: ChatPane, qtbot, status: MessageStatus, finish: str) -> None:
    answer = message(2, "assistant", "半", status=status, stats=replace(STATS, finish_reason=finish))
    show(pane, qtbot, message(1, "user", "问"), answer)
    assert english(pane) == set()


def test_what_is_said_while_an_answer_is_waited_for(work, qtbot) -> None:
    view = AnswerView(message(1, "assistant", "", status=MessageStatus.WRITING), work)
    qtbot.addWidget(view)
    assert WAITING_WORDS not in set(texts(view))
    assert english(view) == set()


@pytest.mark.parametrize("number", [0, 1])
def test_the_menu_of_a_message(pane: ChatPane, qtbot, number: int) -> None:
    answer = message(2, "assistant", "答", stats=STATS, version=1, versions=2)
    show(pane, qtbot, message(1, "user", "问"), answer)
    view = pane.transcript.views[number]
    document = view.documents[0]
    document.selectAll()
    where = document.rect().center()
    view.contextMenuEvent(
        QContextMenuEvent(QContextMenuEvent.Reason.Mouse, where, document.mapToGlobal(where))
    )
    menu = next(menu for menu in view.findChildren(QMenu) if menu.actions())
    assert len(menu.actions()) > 5
    assert english(menu) == set()
    menu.close()


def test_what_is_written_above_a_message_and_beside_it(pane: ChatPane) -> None:
    composer = pane.composer
    composer.set_ready(True)
    composer.files.show_items(
        [
            DraftItem(1, "论.txt", DraftState.READY, Attachment("论.txt", "文", pages=3), 1_234),
            DraftItem(2, "论.txt", DraftState.READY, Attachment("论.txt", "文\n"), None),
            DraftItem(3, "论.txt", DraftState.READING),
            DraftItem(4, "论.txt", DraftState.REFUSED, problem=Notice("x", "“论” is empty.", "")),
        ]
    )
    composer.chip.add("文\n" * 500)
    composer.strip.show()
    composer.set_has_settings(True)
    for fit in (Fit(needed=5_000, room=1_200), Fit(needed=5_000, room=0)):
        composer.files.show_fit(fit)
        assert english(composer) == set()
    composer.set_answering(True)
    assert english(composer) == set()


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_the_line_at_the_bottom(qtbot, device: str) -> None:
    line = StatusLine()
    qtbot.addWidget(line)
    assert english(line) == set()
    described = {
        "cpu": "CPU, 16 threads, 4-bit and 8-bit weights",
        "cuda": "Card, weights as stored, 12 of 36 layers at a time",
    }
    summary = ModelSummary(
        *(Path("x"), "Model", "F", "A", "safetensors", 8, 9, 32_768, 36, device, described[device]),
        SamplingParams(),
        (Notice("card-missing", ""),),
    )
    line.set_model_state(ModelState(ModelPhase.READY, summary=summary))
    line.set_last_answer(STATS)
    for policy in ContextPolicy:
        line.context.set_policy(policy)
        for used in (10, 32_000):
            line.set_context_used(used)
            assert english(line) == set()
            assert english(line.context.menu) == set()


@pytest.mark.parametrize("model", ["", "模型"])
def test_the_settings_of_a_chat_and_what_they_refuse(qtbot, model: str) -> None:
    dialog = ChatSettingsDialog(
        ChatSettings(instructions="自己的话"),
        (Preset("翻译", "翻译"),),
        recommended=SamplingParams(temperature=0.6) if model else None,
        remembered=SamplingChoice(),
        model=model,
    )
    qtbot.addWidget(dialog)
    assert english(dialog) == set()
    for field in dialog.sampling.fields.values():
        field.setText("无")
        assert dialog.sampling.choice() is None
        assert english(dialog.sampling) == set()
        field.clear()
    dialog.sampling.stop.setPlainText("\n".join(str(number) for number in range(100)))
    assert dialog.sampling.choice() is None
    assert english(dialog.sampling) == set()
    dialog.presets.save_button.click()
    dialog.presets.keep_button.click()  # with no name
    assert dialog.presets.error.text()
    assert english(dialog.presets) == set()
