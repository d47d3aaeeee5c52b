"""The page where a model is picked: what the card says, when Load can be pressed, and how a load is shown."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from PySide6.QtCore import Qt, QTimer
from PySide6.QtWidgets import QApplication, QFileDialog, QLabel, QPushButton, QScrollArea
from shown_words import english_words

from app.controller import ModelPhase, ModelState
from app.language import translated
from app.ui.drop_target import model_path_of
from app.ui.load_progress import LoadProgressView, progress_sentence
from app.ui.model_facts import model_facts, why_not_loadable
from app.ui.model_loader import ModelLoader
from app.ui.recent_models import why_unavailable
from engine.inspection import Fit, ModelReport
from engine.notices import Notice
from engine.progress import LoadProgress, LoadStage
from engine.weights.sizes import WeightBytes

PROBLEM = Notice("model-file", "The folder holds no weights.", "Choose a folder with safetensors files.")


@dataclass(frozen=True)
class Summary:
    """The one field of a summary that the loader reads."""

    name: str


def report(path: Path, **changes) -> ModelReport:
    usual = ModelReport(
        path=path,
        name="SmolLM2-135M-Instruct",
        kind="safetensors",
        architecture="LlamaForCausalLM",
        family="Llama",
        parameters=134_515_008,
        file_bytes=269_060_552,
        layers=30,
        context_length=8192,
        kv_bytes_per_token=23_760,
        kv_bytes_per_token_native=92_160,
        weight_bytes=WeightBytes(native=538_060_032, q8=151_000_000, q4=80_900_000),
        fits={"ram": Fit(6_100_000_000, 4096, native=True, q8=True, q4=True)},
        problems=(),
        notices=(),
    )
    return replace(usual, **changes)


def loading(path: Path, progress: LoadProgress | None = None, *, working: str = "") -> ModelState:
    return ModelState(ModelPhase.LOADING, path, path.name, progress, Summary(working) if working else None)


def says(widget) -> str:
    """All text that a person can read on a widget now."""
    return "\n".join(label.text() for label in widget.findChildren(QLabel) if label.isVisible())


@pytest.fixture
def loader(qtbot) -> ModelLoader:
    loader = ModelLoader()
    qtbot.addWidget(loader)
    loader.resize(700, 800)
    loader.show()
    return loader


def test_facts_are_those_of_the_report(tmp_path: Path) -> None:
    facts = {name: value.replace("\u202f", " ") for name, value, _ in model_facts(report(tmp_path))}
    assert facts == {
        "Parameters": "135 M",
        "Size on disk": "269 MB",
        "Layers": "30",
        "Weights, unpacked": "538 MB",
        "Weights, 8-bit": "151 MB",
        "Weights, 4-bit": "80.9 MB",
        "Context": "8,192 tokens",
        "Chat memory": "23.8 kB per token",
        "Free memory": "6.1 GB",
    }


def test_facts_keep_their_places_when_one_is_not_known(tmp_path: Path) -> None:
    names = [name for name, _, _ in model_facts(report(tmp_path))]
    partly = model_facts(report(tmp_path, file_bytes=0, fits={}))
    assert [name for name, _, _ in partly] == names
    assert {name for name, value, _ in partly if value == "—"} == {"Size on disk", "Free memory"}


def test_nothing_is_listed_when_nothing_is_known(tmp_path: Path) -> None:
    unknown = report(
        tmp_path, parameters=0, file_bytes=0, layers=0, context_length=0, kv_bytes_per_token=0,
        kv_bytes_per_token_native=0, weight_bytes=WeightBytes(0, 0, 0), fits={}, problems=(PROBLEM,),
    )  # fmt: skip
    assert model_facts(unknown) == ()
    assert why_not_loadable(unknown)


@pytest.mark.parametrize("width", [389, 400, 440, 479, 480, 500, 560, 640, 900])
def test_nothing_of_the_page_is_cut_off_at_any_width(loader: ModelLoader, tmp_path: Path, width: int) -> None:
    loader.resize(width, 460)
    loader.options.disclosure.setChecked(True)
    loader.pick(tmp_path)
    loader.show_report(report(tmp_path))
    QApplication.processEvents()
    page = loader.findChild(QScrollArea)
    assert page.widget().width() <= page.viewport().width()


def test_picking_a_folder_asks_for_its_inspection_and_shows_that_it_runs(
    loader: ModelLoader, qtbot, tmp_path: Path
) -> None:
    with qtbot.waitSignal(loader.inspect_requested) as asked:
        loader.pick(tmp_path)
    assert asked.args == [tmp_path]
    assert loader.card.isVisible()
    assert not loader.card.load_button.isEnabled()
    assert "Looking at the files" in says(loader.card)


def test_look_that_fails_is_told_in_the_card_which_looks_no_longer(
    loader: ModelLoader, tmp_path: Path
) -> None:
    loader.pick(tmp_path)
    loader.show_inspection_failure(tmp_path / "another", PROBLEM)
    assert loader.card.shown_notices == (), "that one was left for this one"
    loader.show_inspection_failure(tmp_path, PROBLEM)
    assert loader.card.shown_notices == (PROBLEM,)
    assert "Looking" not in says(loader.card)
    assert not loader.card.load_button.isEnabled()


def test_model_that_loads_by_itself_is_not_said_to_be_looked_at(loader: ModelLoader, tmp_path: Path) -> None:
    loader.set_model_state(loading(tmp_path))
    assert "Looking" not in says(loader.card)
    loader.set_model_state(ModelState())
    assert "Looking" not in says(loader.card)
    assert loader.card.load_button.isEnabled(), "after a cancel it can be loaded by hand"


@pytest.mark.parametrize("key", [Qt.Key.Key_Space, Qt.Key.Key_Return, Qt.Key.Key_Enter])
def test_sound_model_can_be_loaded_with_the_keyboard(
    loader: ModelLoader, qtbot, tmp_path: Path, key: Qt.Key
) -> None:
    loader.pick(tmp_path)
    loader.show_report(report(tmp_path))
    assert "SmolLM2-135M-Instruct" in says(loader.card)
    assert loader.card.load_button.isEnabled()
    with qtbot.waitSignal(loader.load_requested) as asked:
        qtbot.keyClick(loader.card.load_button, key)
    assert asked.args == [tmp_path]


def test_word_that_is_wider_than_the_window_pushes_nothing_out_of_sight(
    loader: ModelLoader, qtbot, tmp_path: Path
) -> None:
    loader.pick(tmp_path)
    word = "x" * 400
    loader.show_report(report(tmp_path, notices=(Notice("a", word, word),)))
    qtbot.waitUntil(lambda: loader.card.load_button.width() > 0)
    right = loader.card.load_button.mapTo(loader.card, loader.card.load_button.rect().topRight()).x()
    assert right < loader.card.width()
    assert loader.card.minimumSizeHint().width() < loader.width()


def test_problem_is_one_sentence_in_the_card_and_load_says_why_it_is_off(
    loader: ModelLoader, tmp_path: Path
) -> None:
    loader.pick(tmp_path)
    loader.show_report(report(tmp_path, problems=(PROBLEM,)))
    assert loader.card.shown_notices == (PROBLEM,)
    assert PROBLEM.message in says(loader.card)
    assert PROBLEM.hint in says(loader.card)
    assert not loader.card.load_button.isEnabled()
    assert loader.card.load_button.toolTip() == why_not_loadable(loader.card.report)


def test_report_of_a_folder_that_was_left_for_another_is_not_shown(
    loader: ModelLoader, tmp_path: Path
) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    for folder in (first, second):
        folder.mkdir()
        loader.pick(folder)
    loader.show_report(report(first))
    assert loader.card.report is None
    loader.show_report(report(second))
    assert loader.card.path == second


def test_recent_model_is_one_click_and_stops_at_the_card_when_something_is_wrong(
    loader: ModelLoader, qtbot, tmp_path: Path
) -> None:
    loader.set_recent_models([tmp_path])
    qtbot.mouseClick(loader.recent.models[0], Qt.MouseButton.LeftButton)
    with qtbot.assertNotEmitted(loader.load_requested):
        loader.show_report(report(tmp_path, problems=(PROBLEM,)))
    assert PROBLEM.message in says(loader.card)
    qtbot.mouseClick(loader.recent.models[0], Qt.MouseButton.LeftButton)
    with qtbot.waitSignal(loader.load_requested) as asked:
        loader.show_report(report(tmp_path))
    assert asked.args == [tmp_path]


def test_found_model_shows_its_card_before_it_is_loaded(loader: ModelLoader, qtbot, tmp_path: Path) -> None:
    loader.set_found_models([tmp_path])
    assert "Found on this computer" in says(loader.found)
    with qtbot.waitSignal(loader.inspect_requested), qtbot.assertNotEmitted(loader.load_requested):
        qtbot.mouseClick(loader.found.models[0], Qt.MouseButton.LeftButton)
        loader.show_report(report(tmp_path))
    assert loader.card.load_button.isEnabled()


def test_model_stands_once_among_the_recent_and_the_found(loader: ModelLoader, tmp_path: Path) -> None:
    known, other = tmp_path / "known.gguf", tmp_path / "other.gguf"
    loader.set_found_models([known, other])
    loader.set_recent_models([known])
    assert [model.path for model in loader.found.models] == [other]
    loader.set_found_models([known])
    assert loader.found.isHidden()
    loader.set_recent_models([])
    assert [model.path for model in loader.found.models] == [known]


def test_model_of_a_download_cache_goes_by_the_name_of_its_repository(
    loader: ModelLoader, tmp_path: Path
) -> None:
    revision = tmp_path / "models--Qwen--Qwen3-0.6B" / "snapshots" / "c1899de289a04d12"
    loader.set_found_models([revision])
    assert "Qwen3-0.6B" in says(loader.found)
    assert revision.name not in says(loader.found.models[0])


def test_picking_by_hand_never_loads_by_itself(loader: ModelLoader, qtbot, tmp_path: Path) -> None:
    loader.set_recent_models([tmp_path])
    qtbot.mouseClick(loader.recent.models[0], Qt.MouseButton.LeftButton)
    loader.pick(tmp_path)
    with qtbot.assertNotEmitted(loader.load_requested):
        loader.show_report(report(tmp_path))


def test_missing_recent_model_is_greyed_with_the_reason(loader: ModelLoader, tmp_path: Path) -> None:
    gone, there = tmp_path / "模型 gone.gguf", tmp_path
    loader.set_recent_models([gone, there])
    loader.set_recent_problems({path: why_unavailable(path) for path in (gone, there)})
    missing, present = loader.recent.models
    assert not missing.isEnabled()
    assert "The file isn't there any more" in says(missing)
    assert "isn't there" in missing.accessibleName()
    assert present.isEnabled()
    gone.touch()
    loader.set_recent_problems({gone: why_unavailable(gone)})
    assert missing.isEnabled()


def test_progress_shows_stage_and_bytes(loader: ModelLoader, tmp_path: Path) -> None:
    loader.pick(tmp_path)
    loader.show_report(report(tmp_path))
    loader.set_model_state(loading(tmp_path))
    assert loader.card.progress.isVisible()
    assert not loader.card.load_button.isVisible()
    loader.set_model_state(loading(tmp_path, LoadProgress(LoadStage.WEIGHTS, 45_000_000, 90_000_000)))
    assert says(loader.card).replace("\u202f", " ").count("Reading the weights, 45 MB of 90 MB") == 1
    bar = loader.card.progress.bar
    assert bar.value() / bar.maximum() == pytest.approx(0.5, abs=0.001)


def test_bar_takes_files_larger_than_its_own_numbers(qtbot) -> None:
    view = LoadProgressView()
    qtbot.addWidget(view)
    view.show_progress(LoadProgress(LoadStage.WEIGHTS, 3 * 2**40, 4 * 2**40))
    assert view.bar.value() / view.bar.maximum() == pytest.approx(0.75, abs=0.001)
    view.show_progress(LoadProgress(LoadStage.CHECK))
    assert view.bar.maximum() == 0, "a stage that can't be counted shows no false number"


@pytest.mark.parametrize("stage", list(LoadStage))
def test_every_stage_has_its_own_words(stage: LoadStage) -> None:
    sentences = {progress_sentence(LoadProgress(one)) for one in LoadStage}
    assert len(sentences) == len(LoadStage)
    assert progress_sentence(LoadProgress(stage)) in sentences


def test_cancel_asks_once_and_the_card_comes_back(loader: ModelLoader, qtbot, tmp_path: Path) -> None:
    loader.pick(tmp_path)
    loader.show_report(report(tmp_path))
    loader.set_model_state(loading(tmp_path))
    button = loader.card.progress.cancel_button
    with qtbot.waitSignal(loader.cancel_requested):
        qtbot.mouseClick(button, Qt.MouseButton.LeftButton)
    assert not button.isEnabled()
    loader.set_model_state(ModelState())
    assert loader.card.isVisible()
    assert loader.card.load_button.isEnabled()
    loader.set_model_state(loading(tmp_path))
    assert button.isEnabled(), "the next load can be cancelled too"


def test_failed_load_says_why_and_that_the_model_before_goes_on(
    loader: ModelLoader, qtbot, tmp_path: Path
) -> None:
    before = ModelState(ModelPhase.READY, tmp_path / "old", "Old", None, Summary("Old"))
    loader.set_model_state(before)
    loader.pick(tmp_path)
    loader.show_report(report(tmp_path))
    loader.set_model_state(loading(tmp_path, working="Old"))
    assert "Old stays loaded until this one is ready." in says(loader.card)
    loader.set_model_state(before)
    loader.show_failure(tmp_path, PROBLEM)
    text = says(loader.card)
    assert PROBLEM.message in text
    assert "Old is still loaded and goes on working." in text
    with qtbot.waitSignal(loader.load_requested) as asked:
        qtbot.mouseClick(loader.card.load_button, Qt.MouseButton.LeftButton)
    assert asked.args == [tmp_path], "trying again is one click"


def test_cancel_is_in_sight_when_a_load_begins_in_a_low_window(
    loader: ModelLoader, qtbot, tmp_path: Path
) -> None:
    loader.resize(600, 380)
    loader.pick(tmp_path)
    loader.show_report(report(tmp_path))

    def is_in_sight(button: QPushButton) -> bool:
        corner = button.mapTo(loader, button.rect().bottomLeft())
        return button.isVisible() and loader.rect().contains(corner)

    qtbot.waitUntil(lambda: is_in_sight(loader.card.load_button))
    timer = QTimer()
    with qtbot.waitSignal(timer.timeout):  # the card was revealed by a timer that began before this one
        timer.start(10)
    loader.card.load_button.clearFocus()  # Qt scrolls by itself where the focus goes on from a hidden button
    height = loader.card.height()
    loader.set_model_state(loading(tmp_path, working="Old"))
    qtbot.waitUntil(lambda: loader.card.height() > height)
    qtbot.waitUntil(lambda: is_in_sight(loader.card.progress.cancel_button))


def test_card_leaves_when_its_model_is_ready(loader: ModelLoader, tmp_path: Path) -> None:
    loader.pick(tmp_path)
    loader.set_model_state(loading(tmp_path))
    loader.set_model_state(ModelState(ModelPhase.READY, tmp_path, "New", None, Summary("New")))
    assert not loader.card.isVisible()


def test_nothing_else_is_picked_while_a_model_loads(loader: ModelLoader, qtbot, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    loader.set_model_state(loading(tmp_path))
    assert not loader.folder_button.isEnabled()
    with qtbot.waitSignal(loader.refused), qtbot.assertNotEmitted(loader.inspect_requested):
        loader.pick(other)
    assert loader.card.path == tmp_path


@pytest.mark.parametrize(
    ("name", "stands_for"),
    [
        ("model-Q4.gguf", "the file"),
        ("MODEL.GGUF", "the file"),
        ("config.json", "its folder"),
        ("tokenizer.json", "its folder"),
        ("model-00001-of-00002.safetensors", "its folder"),
        ("pytorch_model.bin", "its folder"),
        ("holiday.jpg", "nothing"),
        ("notes.json", "nothing"),
    ],
)
def test_a_file_stands_for_the_model_it_belongs_to(tmp_path: Path, name: str, stands_for: str) -> None:
    path = tmp_path / name
    path.touch()
    assert model_path_of(path) == {"the file": path, "its folder": tmp_path, "nothing": None}[stands_for]


def test_folder_that_is_called_like_a_file_is_taken_as_it_is(tmp_path: Path) -> None:
    folder = tmp_path / "config.json"
    folder.mkdir()
    assert model_path_of(folder) == folder


def test_file_that_is_no_model_is_refused_in_words(loader: ModelLoader, qtbot, tmp_path: Path) -> None:
    path = tmp_path / "holiday <b>.jpg"
    path.touch()
    with qtbot.waitSignal(loader.refused) as refused:
        loader.pick(path)
    assert "holiday <b>.jpg" in refused.args[0].message
    assert refused.args[0].hint


def test_folder_dialog_picks_without_blocking(loader: ModelLoader, qtbot, tmp_path: Path) -> None:
    with qtbot.waitSignal(loader.inspect_requested) as asked:
        qtbot.mouseClick(loader.folder_button, Qt.MouseButton.LeftButton)
        dialog = loader.findChild(QFileDialog)
        assert dialog.isVisible(), "the call has returned while the dialog stands"
        dialog.setDirectory(str(tmp_path.parent))
        dialog.selectFile(str(tmp_path))
        dialog.accept()
    assert asked.args == [tmp_path]


def test_dialog_that_is_closed_can_be_opened_again(loader: ModelLoader, qtbot) -> None:
    for _ in range(2):
        loader.choose_file()
        dialog = next(one for one in loader.findChildren(QFileDialog) if one.isVisible())
        assert dialog.nameFilters() == ["GGUF models (*.gguf)"]
        dialog.reject()
        qtbot.waitUntil(lambda: loader.findChild(QFileDialog) is None)


def test_the_card_is_a_stage_of_the_loads_that_have_one(qtbot) -> None:
    view = LoadProgressView()
    qtbot.addWidget(view)
    view.show()
    assert "Card" not in says(view)
    view.show_progress(LoadProgress(LoadStage.UPLOAD, 1, 2))
    assert "Card" in says(view)
    view.restart()
    assert "Card" not in says(view)


BROKEN = Notice(
    "model-file", "M has no tokenizer: tokenizer.json is missing.", "Check the path, or pick the model again."
)


def test_nothing_of_the_model_page_is_english_where_chinese_is_spoken(
    qtbot, in_chinese, tmp_path: Path
) -> None:
    loader = ModelLoader()
    qtbot.addWidget(loader)
    gone = tmp_path / "gone.gguf"
    loader.set_recent_models([tmp_path, gone])
    loader.set_recent_problems({gone: why_unavailable(gone)})
    names = f"{tmp_path} gone gguf SmolLM2-135M-Instruct Llama LlamaForCausalLM Falcon tokenizer"
    loader.show_run_options("cuda", 8_000_000_000)
    assert english_words(loader, names=names) == set()
    loader.pick(tmp_path)
    loader.show_report(report(tmp_path, problems=(BROKEN, BROKEN)))
    assert english_words(loader, names=names) == set()
    for stage in LoadStage:
        loader.set_model_state(loading(tmp_path, LoadProgress(stage, 45, 93), working="Falcon"))
        assert english_words(loader, names=names) == set()
    loader.set_model_state(ModelState())
    loader.show_failure(tmp_path, BROKEN)
    assert english_words(loader, names=names) == set()


def test_what_was_picked_by_mistake_is_named_in_chinese(in_chinese) -> None:
    assert translated("“a {b}.txt” isn't part of a model.") == "“a {b}.txt”不是模型的一部分。"
