"""What is chosen for a conversation reaches the engine, the disk and the screen, and so do attached files."""

from __future__ import annotations

import gc
import weakref
from pathlib import Path

import pytest
from controller_steps import FIRST, failing, load, send, start

from app.attachments import Attachment
from app.chat_sampling import CHAT_SAMPLING, SamplingChoice
from app.chat_settings import ChatSettings
from app.conversations import ConversationStore
from engine.generation import SamplingParams

POET = ChatSettings("Write in verse.", SamplingChoice(temperature=0.9, seed=7, max_tokens=50, stop=("END",)))
NOTES = Attachment("notes.md", "# Notes\n")
READ_NOTES = "File “notes.md”:\n```\n# Notes\n```"


@pytest.fixture
def shown(controller) -> list[ChatSettings]:
    seen: list[ChatSettings] = []
    controller.chat_settings_changed.connect(seen.append)
    return seen


def test_instructions_and_sampling_go_with_every_answer(qtbot, controller, script) -> None:
    start(qtbot, controller)
    controller.change_chat_settings(POET)
    send(qtbot, controller, "Hi")
    send(qtbot, controller, "And?")
    assert script.prompts[0] == [("system", "Write in verse."), ("user", "Hi")]
    assert script.prompts[1][0] == ("system", "Write in verse.")
    request = script.requests[0]
    assert request.sampling == SamplingParams(
        temperature=0.9, top_p=CHAT_SAMPLING.top_p, min_p=0.05, repetition_penalty=1.05, seed=7
    )
    assert (request.max_new_tokens, request.stop) == (50, ("END",))


def test_what_is_chosen_is_there_again_after_a_start(qtbot, make_controller, script) -> None:
    controller = make_controller()
    start(qtbot, controller)
    controller.change_chat_settings(POET)
    send(qtbot, controller, "Hi")
    conversation_id = controller.current_conversation_id
    assert controller.shutdown()
    again = make_controller()
    start(qtbot, again)
    assert again.chat_settings == POET
    with qtbot.waitSignal(again.conversation_opened):
        again.new_conversation()
    assert again.chat_settings == ChatSettings(), "it was chosen for the other conversation"
    with qtbot.waitSignal(again.conversation_opened):
        again.open_conversation(conversation_id)
    assert again.chat_settings == POET


def test_a_change_counts_from_the_next_answer_on(qtbot, controller, script, shown) -> None:
    start(qtbot, controller)
    send(qtbot, controller, "Hi")
    controller.change_chat_settings(POET)
    assert shown[-1] == POET
    send(qtbot, controller, "And?")
    assert [prompt[0][0] for prompt in script.prompts] == ["user", "system"]
    assert [request.sampling.seed for request in script.requests] == [None, 7]


def test_a_change_that_could_not_be_saved_is_told_and_taken_back(
    qtbot, controller, shown, monkeypatch: pytest.MonkeyPatch
) -> None:
    start(qtbot, controller)
    send(qtbot, controller, "Hi")
    monkeypatch.setattr(ConversationStore, "change_settings", failing("disk-full"))
    with qtbot.waitSignal(controller.notice_raised) as told:
        controller.change_chat_settings(POET)
    assert told.args[0].code == "disk-full"
    assert shown[-2:] == [POET, ChatSettings()]
    assert controller.chat_settings == ChatSettings()


def test_new_chats_begin_with_what_is_remembered_of_their_model(qtbot, controller, script) -> None:
    start(qtbot, controller)
    warm = SamplingChoice(temperature=1.2)
    controller.remember_sampling(warm)
    assert controller.chat_settings.sampling == warm
    send(qtbot, controller, "Hi")
    assert script.requests[0].sampling.temperature == 1.2
    load(qtbot, controller, Path("/models/second"))
    assert controller.chat_settings.sampling == warm, "this chat has it as its own"
    with qtbot.waitSignal(controller.conversation_opened):
        controller.new_conversation()
    assert controller.chat_settings == ChatSettings(), "nothing is remembered of the other model"
    load(qtbot, controller, FIRST)
    assert controller.chat_settings.sampling == warm
    controller.remember_sampling(SamplingChoice())
    assert controller.settings.model_sampling == {}


def test_another_version_of_an_answer_is_another_even_with_a_seed(qtbot, controller, script) -> None:
    start(qtbot, controller)
    controller.change_chat_settings(POET)
    with qtbot.waitSignal(controller.answer_finished) as finished:
        controller.send_message("Hi")
    qtbot.waitUntil(lambda: not controller.answering)
    with qtbot.waitSignal(controller.answering_changed, check_params_cb=lambda active: not active):
        controller.regenerate_answer(finished.args[1].id)
    first, second = (request.sampling for request in script.requests)
    assert first.seed == 7 != second.seed
    assert second.temperature == 0.9


def test_a_branch_begins_with_the_same_instructions(qtbot, controller, script) -> None:
    start(qtbot, controller)
    controller.change_chat_settings(POET)
    with qtbot.waitSignal(controller.answer_finished) as finished:
        controller.send_message("Hi")
    qtbot.waitUntil(lambda: not controller.answering)
    with qtbot.waitSignal(controller.slots_changed):
        controller.fork_conversation(finished.args[1].id)
    assert script.prompts[-1][0] == ("system", "Write in verse."), "or nothing computed could be shared"
    assert controller.chat_settings == POET


def test_files_are_read_before_the_question(qtbot, controller, script) -> None:
    start(qtbot, controller)
    with qtbot.waitSignal(controller.message_added) as added:
        controller.send_message("What is it?", [NOTES])
    assert added.args[1].attachments == (NOTES,)
    qtbot.waitUntil(lambda: not controller.answering)
    assert script.prompts == [[("user", f"{READ_NOTES}\n\nWhat is it?")]]


def test_files_alone_are_a_message(qtbot, controller, script) -> None:
    start(qtbot, controller)
    with qtbot.waitSignal(controller.answering_changed, check_params_cb=lambda active: not active):
        controller.send_message("", [NOTES])
    assert script.prompts == [[("user", READ_NOTES)]]


def test_an_edit_takes_the_files_it_is_given(qtbot, controller, script) -> None:
    start(qtbot, controller)
    with qtbot.waitSignal(controller.message_added) as added:
        controller.send_message("What is it?", [NOTES])
    qtbot.waitUntil(lambda: not controller.answering)
    with qtbot.waitSignal(controller.answering_changed, check_params_cb=lambda active: not active):
        controller.edit_message(added.args[1].id, "Never mind.", [])
    assert script.prompts[-1] == [("user", "Never mind.")]


def test_a_model_that_is_gone_is_not_kept_for_counting(qtbot, make_controller, script) -> None:
    engines: list[weakref.ref] = []

    def load_and_watch(*arguments):
        engine = script.load(*arguments)
        engines.append(weakref.ref(engine))
        return engine

    controller = make_controller(engine_factory=load_and_watch)
    start(qtbot, controller)
    with qtbot.waitSignal(controller.slots_changed):
        controller.attachments.count_text("some words")
        controller.unload_model()
    qtbot.waitUntil(lambda: controller.model_state.summary is None)

    def is_gone() -> bool:
        gc.collect()
        return [engine() for engine in engines] == [None]

    qtbot.waitUntil(is_gone)  # the thread of the engine may be on its way out of what unloaded it
