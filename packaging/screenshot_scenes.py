"""The states of the window that pictures are taken of, in the order in which a person would come to them.

Each scene leaves the window so that the next one can begin. A name of a picture stands once, in `take`.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from PySide6.QtCore import QTimer, QUrl

from app.controller import ModelPhase, ModelState
from app.making_room import RoomPlan, plan_room
from app.transfer_job import TransferProgress, TransferStage
from app.ui import dialogs
from app.ui.message_actions import MessageAction
from engine.notices import Notice

if TYPE_CHECKING:
    from screenshots import Stage

SETTLE_MS = 350  # for hover effects, formulas and the last layout pass
ENOUGH_CHARACTERS = 260  # of the answer, for the picture in the middle of it
TOKENIZER = {
    "version": "1.0",
    "added_tokens": [],
    "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "use_regex": True},
    "decoder": {"type": "ByteLevel"},
    "model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "c": 2}, "merges": []},
}


def first_start(stage: Stage) -> None:
    stage.take("first-start")


def plan(stage: Stage) -> None:
    loader = stage.window.loader
    stage.wait(stage.controller.model_inspected, begin=lambda: loader.pick(stage.model))
    stage.take("plan")


def loading(stage: Stage) -> None:
    taken = False

    def on_state(state: ModelState) -> None:
        nonlocal taken
        fraction = state.progress.fraction if state.progress is not None else None
        if not taken and fraction is not None and fraction >= 0.4:
            taken = True
            stage.save("loading")

    changed = stage.controller.model_state_changed
    changed.connect(on_state)
    stage.wait(
        changed,
        lambda state: state.phase is not ModelPhase.LOADING,
        begin=stage.window.loader.card.load_button.click,
    )
    changed.disconnect(on_state)
    if stage.controller.model_state.phase is not ModelPhase.READY:
        raise SystemExit("The model did not load; see the window's own words with `python -m app MODEL`.")


def new_chat(stage: Stage) -> None:
    for notice in stage.window.banners.notices():
        stage.window.banners.dismiss(notice.code)
    stage.take("new-chat")


def mid_answer(stage: Stage) -> None:
    num_characters = 0

    def enough(_conversation: str, _message: str, delta) -> bool:
        nonlocal num_characters
        num_characters += len(delta.text)
        return num_characters >= ENOUGH_CHARACTERS

    controller = stage.controller
    stage.wait(
        controller.answer_extended,
        enough,
        begin=lambda: stage.window.chat.send_requested.emit(stage.texts.question),
        or_else=controller.answer_finished,
    )
    stage.save("mid-answer")
    if controller.answering:
        stage.wait(controller.answer_finished, begin=controller.stop_answer)


def versions(stage: Stage) -> None:
    """A second version of the answer, the live panel beside it."""
    window, controller = stage.window, stage.controller
    if not window.sides.is_wanted(window.dock):
        window.actions_.toggle_live.trigger()
    answer = window.chat.transcript.views[-1]
    stage.wait(
        controller.answering_changed,
        lambda answering: not answering,
        begin=lambda: controller.regenerate_answer(answer.message_id),
    )
    window.chat.transcript.views[-1].actions_.reveal(True)
    stage.take("versions")
    window.actions_.toggle_live.trigger()


def conversation(stage: Stage) -> None:
    """A long answer with all that Markdown has, among other conversations."""
    file = stage.folder / "conversations.json"
    file.write_text(json.dumps(stage.texts.conversations), encoding="utf-8")
    controller, window = stage.controller, stage.window
    stage.wait(
        controller.transfer.imported,
        begin=lambda: controller.transfer.import_files([file]),
        or_else=controller.notice_raised,
    )
    stage.settle()
    for notice in window.banners.notices():
        window.banners.dismiss(notice.code)
    title = stage.texts.conversations[0]["title"]
    found = next(one for one in window.conversations.model.summaries if one.title == title)
    stage.wait(
        controller.conversation_opened, begin=lambda: window.conversations.open_requested.emit(found.id)
    )
    stage.settle()
    window.actions_.toggle_live.trigger()
    stage.settle()
    window.chat.transcript.verticalScrollBar().setValue(0)
    stage.take("conversation")
    window.actions_.toggle_live.trigger()


def transfer(stage: Stage) -> None:
    """A long import on its way, and what was deleted before it."""
    bar = stage.window.conversations.transfer_bar
    bar.show_progress(TransferProgress(TransferStage.ADDING, "conversations.json", 312, 1_480))
    stage.window.conversations.undo_bar.show_deleted(2)
    stage.take("transfer")
    bar.show_progress(None)
    stage.window.conversations.undo_bar.hide()


def search(stage: Stage) -> None:
    bar = stage.window.conversations
    bar.focus_search()
    stage.wait(stage.controller.search.found, begin=lambda: bar.filter_bar.field.setText(stage.texts.query))
    stage.take("search")
    bar.filter_bar.field.clear()


def attachments(stage: Stage) -> None:
    file = stage.folder / stage.texts.file_name
    file.write_text(stage.texts.file_text, encoding="utf-8")
    stage.window.chat.composer.set_text(stage.texts.unsent)
    stage.window.attachments.attach([file])
    stage.settle()
    stage.take("attachments")
    for item in stage.controller.attachments.items:
        stage.controller.attachments.remove(item.id)
    stage.window.chat.composer.set_text("")


def editing(stage: Stage) -> None:
    chat = stage.window.chat
    chat.ask(MessageAction.EDIT)
    stage.take("editing")
    chat.composer.end_edit()


def sampling(stage: Stage) -> None:
    stage.window.actions_.chat_settings.trigger()
    stage.take("sampling")
    stage.window.close_dialogs()


def settings(stage: Stage) -> None:
    stage.window.settings.open()
    stage.take("settings")
    stage.window.close_dialogs()


def kept(stage: Stage) -> None:
    controller = stage.controller
    stage.wait(controller.kept_states.measured, begin=stage.window.actions_.kept_states.trigger)
    stage.take("kept")
    stage.window.close_dialogs()


def questions(stage: Stage) -> None:
    window = stage.window
    dialogs.ask_to_delete_message(window, on_accept=lambda: None)
    stage.take("delete-message")
    window.close_dialogs()
    dialogs.ask_to_open(window, QUrl("https://birds.example/kestrels?season=spring"))
    stage.take("open-link")
    window.close_dialogs()


def shortcuts(stage: Stage) -> None:
    stage.window.actions_.shortcuts.trigger()
    stage.take("shortcuts")
    stage.window.close_dialogs()


def menu(stage: Stage) -> None:
    """It is open as long as `showMenu` lasts, which is why the picture is taken in the meantime."""
    button = stage.window.header.menu_button

    def take() -> None:
        stage.save("menu")
        button.menu().close()

    QTimer.singleShot(SETTLE_MS, take)
    button.showMenu()


def notices(stage: Stage) -> None:
    """A model that isn't there, and one that had no room on the card, with what can be done about it."""
    window = stage.window
    stage.wait(
        stage.controller.load_failed, begin=lambda: stage.controller.load_model(Path("/models/Llama-3.2-1B"))
    )
    window.show_notice(
        Notice(
            "state-fallback",
            "The graphics card has no memory left for this conversation; it is computed on the CPU "
            "until there is.",
            "Close other programs that use the card, or choose a shorter context.",
        )
    )
    stage.take("notice")
    window.notices.open_list()
    stage.take("past-notices")
    window.close_dialogs()
    for notice in window.banners.notices():
        window.banners.dismiss(notice.code)


def another_model(stage: Stage) -> None:
    """Beside the one that is loaded; and where that one has to go first."""
    loader = stage.window.loader
    other = stage.folder / "Another-135M-Instruct.gguf"
    other.symlink_to(stage.model)
    stage.window.show_models()
    stage.wait(stage.controller.model_inspected, begin=lambda: loader.pick(other))
    stage.take("another-model")
    card, loaded = loader.card, stage.controller.loaded_model
    assert card.report is not None
    assert loaded is not None
    beside = plan_room(card.report, card.report.config, loaded)
    assert beside is not None
    card.plan.show_plan(RoomPlan(beside.plan, loaded, goes_first=True))
    stage.take("making-room")
    stage.window.show_chat()


def error(stage: Stage) -> None:
    stage.window.show_models()
    stage.wait(stage.controller.model_inspected, begin=lambda: stage.window.loader.pick(stage.broken))
    stage.take("error")


SCENES = (
    first_start,
    plan,
    loading,
    new_chat,
    mid_answer,
    versions,
    conversation,
    transfer,
    search,
    attachments,
    editing,
    menu,
    sampling,
    settings,
    kept,
    questions,
    shortcuts,
    notices,
    another_model,
    error,
)


def make_broken_model(folder: Path) -> Path:
    """A model folder whose weights were never downloaded."""
    folder.mkdir(parents=True)
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": 2048,
        "intermediate_size": 8192,
        "num_attention_heads": 32,
        "num_hidden_layers": 16,
        "num_key_value_heads": 8,
        "rms_norm_eps": 1e-5,
        "rope_theta": 500000.0,
        "vocab_size": 128256,
        "max_position_embeddings": 131072,
        "tie_word_embeddings": True,
        "bos_token_id": 1,
        "eos_token_id": 2,
    }
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    (folder / "tokenizer.json").write_text(json.dumps(TOKENIZER), encoding="utf-8")
    names = {f"model.layers.{i}.norm": f"model-{i:05}-of-00002.safetensors" for i in (1, 2)}
    index = {"metadata": {"total_size": 128}, "weight_map": names}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index), encoding="utf-8")
    return folder
