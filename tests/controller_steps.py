"""What tests do with a controller on the fake engine, step by step."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable
from pathlib import Path

from app.controller import ChatController, ModelPhase
from app.conversations import MessageStatus, StoreError

FIRST = Path("/models/first")


def watch(controller: ChatController, record) -> list[tuple]:
    """Everything the controller says, in order."""
    names = (
        "conversations_changed conversation_opened branch_shown message_added"
        " answer_waiting answer_started answer_extended answer_finished answering_changed"
        " model_state_changed load_failed model_inspected recent_models_changed"
        " send_accepted send_rejected notice_raised"
    )
    return record(**{name: getattr(controller, name) for name in names.split()})


def start(qtbot, controller: ChatController, *, model: Path | None = FIRST) -> None:
    """Start, and wait until the first conversation (or the empty chat) is shown and the model is there."""
    with qtbot.waitSignal(controller.conversation_opened):
        controller.start()
    if model is not None:
        load(qtbot, controller, model)


def load(qtbot, controller: ChatController, path: Path) -> None:
    with qtbot.waitSignal(
        controller.model_state_changed, check_params_cb=lambda state: state.phase is ModelPhase.READY
    ):
        controller.load_model(path)


def send(qtbot, controller: ChatController, text: str) -> None:
    """Send, and wait until the answer is on disk."""
    with qtbot.waitSignal(controller.answering_changed, check_params_cb=lambda answering: not answering):
        controller.send_message(text)


def begin(qtbot, controller: ChatController, script, text: str, *, after: int = 1) -> threading.Event:
    """Send, and return the gate that the answer waits at once `after` pieces are on screen."""
    gate = script.gates[after] = threading.Event()
    with qtbot.waitSignal(controller.answer_extended):
        controller.send_message(text)
    return gate


def delete_for_good(qtbot, controller: ChatController, conversation_id: str) -> None:
    """Delete, and let the undo go as soon as there is one."""
    with qtbot.waitSignal(controller.trash.changed):
        controller.trash.delete([conversation_id])
    controller.trash.finish()


def on_disk(paths, conversation_id: str) -> list[tuple[str, str, MessageStatus]]:
    """What another process would find now. Does not change the file, unlike opening the store does."""
    raw = sqlite3.connect(f"{paths.conversations_file.as_uri()}?mode=ro", uri=True)
    rows = raw.execute(
        "SELECT role, text, status FROM messages WHERE conversation_id = ? ORDER BY sequence",
        (conversation_id,),
    ).fetchall()
    raw.close()
    return [(role, text, MessageStatus(status)) for role, text, status in rows]


def only(events: list[tuple], *names: str) -> list[tuple]:
    return [event for event in events if event[0] in names]


def codes(events: list[tuple]) -> list[str]:
    return [event[1].code for event in events if event[0] == "notice_raised"]


def rejected(controller: ChatController, events: list[tuple], text: str) -> str:
    """The code of the refusal, which must come at once."""
    del events[:]
    controller.send_message(text)
    ((name, kept, notice),) = events
    assert (name, kept) == ("send_rejected", text)
    assert notice.message
    assert notice.hint
    return notice.code


def failing(code: str) -> Callable[..., object]:
    def fail(*_arguments, **_options) -> None:
        raise StoreError(code, "It could not be saved.", "Free some space.")

    return fail
