"""What is shown is in the language that is set; what was made in English is found again in it."""

from __future__ import annotations

import errno
import os
import re
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path

import polib
import pytest
from bad_models import BAD_MODELS, BadModel
from hypothesis import given
from hypothesis import strategies as st
from model_files import copy_model, edit_json, set_config

from app.conversation_database import store_error, unavailable
from app.faults import notice_from
from app.import_json import ImportRefusedError
from app.language import Language, language, mark, of_system, set_language, tr, tr_n, translated
from app.pdf_text import _read_answer
from app.sentence_book import split_places
from engine.checkpoints.model_folder import open_model
from engine.config import EngineConfig
from engine.cpu.memory import out_of_memory
from engine.cuda.availability import NoCard, _old_driver
from engine.cuda.driver_faults import card_fault, card_full, card_full_at
from engine.errors import EngineError
from engine.generation import SamplingParams
from engine.notices import Notice
from engine.resolution import resolve_config
from engine.sampling import validate
from engine.templates.template_sandbox import SandboxedTemplate
from engine.weights.sizes import WeightBytes
from engine.wording import format_tokens

SENTENCES = Path(__file__).resolve().parents[2] / "resources" / "languages" / "zh_CN" / "sentences.po"


@pytest.fixture
def in_english() -> Iterator[None]:
    set_language(Language.ENGLISH)
    yield
    set_language(Language.ENGLISH)


# English is what the code holds


@pytest.mark.usefixtures("in_english")
def test_english_is_the_text_itself() -> None:
    assert language() is Language.ENGLISH
    assert tr("Loaded {name}", name="a") == "Loaded a"
    assert tr("{braces} stay") == "{braces} stay"
    assert mark("Today") == "Today"
    assert translated("The disk is full.") == "The disk is full."


@pytest.mark.usefixtures("in_english")
@pytest.mark.parametrize(
    ("count", "text"), [(0, "0 pages"), (1, "1 page"), (2, "2 pages"), (12_345, "12,345 pages")]
)
def test_english_has_one_and_many(count: int, text: str) -> None:
    assert tr_n("{count} page", "{count:,} pages", count) == text


@pytest.mark.usefixtures("in_english")
@given(st.text())
def test_a_value_with_braces_is_a_value(value: str) -> None:
    assert tr("<{name}>", name=value) == f"<{value}>"


# Which language


@pytest.mark.parametrize(
    ("names", "wanted"),
    [
        (["zh-Hans-CN", "en-US"], Language.CHINESE),
        (["zh_CN"], Language.CHINESE),
        (["ZH"], Language.CHINESE),
        (["en-GB", "zh-CN"], Language.ENGLISH),
        (["fr-FR", "zh-CN", "en"], Language.CHINESE),
        (["fr-FR", "de"], Language.ENGLISH),
        (["zhx", "", "-"], Language.ENGLISH),
        ([], Language.ENGLISH),
    ],
)
def test_the_first_wanted_language_that_there_is_counts(names: list[str], wanted: Language) -> None:
    assert of_system(names) is wanted


def test_a_language_that_cant_be_read_leaves_the_one_that_is_set(monkeypatch, in_chinese: None) -> None:
    def fails(name: str) -> None:
        raise OSError("gone")

    monkeypatch.setattr("app.language.read_catalogue", fails)
    with pytest.raises(OSError, match="gone"):
        set_language(Language.CHINESE)
    assert language() is Language.CHINESE
    assert translated("Close other programs.") == "请关闭其他程序。"


# Chinese


def test_chinese_has_one_form_for_every_count(in_chinese: None) -> None:
    assert {translated(format_tokens(count)) for count in (1, 2, 1_234)} == {
        "1 个 token",
        "2 个 token",
        "1,234 个 token",
    }


def test_what_no_catalogue_knows_stays_itself(in_chinese: None) -> None:
    assert tr("Unheard of {name}", name="{a}") == "Unheard of {a}"
    assert tr_n("{count} quux", "{count} quuxes", 3) == "3 quuxes"
    assert translated("Colourless green ideas sleep furiously.") == "Colourless green ideas sleep furiously."


def test_the_empty_hint_stays_empty(in_chinese: None) -> None:
    assert translated("") == ""


# What the program really says


def words_of_templates() -> frozenset[str]:
    """English words of the templates that no translation has a use for: none of them may be left."""
    entries = polib.pofile(str(SENTENCES), encoding="utf-8").translated_entries()
    english = {word for entry in entries for part in split_places(entry.msgid)[0] for word in _words(part)}
    chinese = {word for entry in entries for part in split_places(entry.msgstr)[0] for word in _words(part)}
    return frozenset(english - chinese)


def _words(text: str) -> list[str]:
    """Whole words: no parts of file names, keys, paths, versions."""
    return re.findall(r"(?<![\w./\\'“_-])[A-Za-z]{2,}(?![\w/\\_-]|\.\w)", text)


WORDS_OF_TEMPLATES = words_of_templates()
OF_CONFIGS = {"bits", "default", "quantization"}  # keys and values that stand in sentences as they are


def assert_chinese(text: str, *, values: tuple[str, ...] = ()) -> None:
    """values: stand in the sentence as they are."""
    for number, value in enumerate(values):
        text = text.replace(value, f"/value{number}")
    said = translated(text)
    left = [word for word in _words(said) if word in WORDS_OF_TEMPLATES - OF_CONFIGS]
    assert left == [], said
    assert text == "" or re.search(r"[\u4e00-\u9fff]", said), said
    assert all(f"/value{number}" in said for number in range(len(values)) if f"/value{number}" in text)


@pytest.fixture(params=BAD_MODELS, ids=str)
def bad_model(request: pytest.FixtureRequest) -> BadModel:
    case: BadModel = request.param
    if case.needs_ordinary_user and os.geteuid() == 0:
        pytest.skip("permissions don't bind the superuser")
    return case


def test_what_is_said_of_a_bad_model_is_said_in_chinese(
    bad_model: BadModel, tmp_path: Path, in_chinese: None
) -> None:
    path = bad_model.make(tmp_path)
    with pytest.raises(EngineError) as caught:
        open_model(path)
    for text in (caught.value.message, caught.value.hint):
        assert_chinese(text, values=(str(path), str(path.parent)))


def _notices_of_odd_settings(tmp_path: Path) -> tuple[Notice, ...]:
    folder = copy_model("tiny-qwen3", tmp_path / "model")
    edit_json(folder / "generation_config.json", lambda config: config.update(temperature=-1, top_p="high"))
    set_config(folder, rope_theta=...)
    return tuple(open_model(folder).notices)


def test_the_notices_of_a_model_with_odd_settings_are_said_in_chinese(
    tmp_path: Path, in_chinese: None
) -> None:
    notices = _notices_of_odd_settings(tmp_path)
    assert notices
    for notice in notices:
        assert_chinese(notice.message)
        assert_chinese(notice.hint)


def _error(call: Callable[[], object]) -> EngineError:
    with pytest.raises(EngineError) as caught:
        call()
    return caught.value


def _sqlite(code: int) -> sqlite3.Error:
    error = sqlite3.OperationalError("disk I/O error")
    error.sqlite_errorcode = code
    return error


JINJA = "Expected an expression, got 'end of statement block'"
DATABASE = Path("/home/ann/chats/conversations.sqlite")
ERRORS: dict[str, Callable[[], EngineError | Notice | Exception]] = {
    "sampling": lambda: _error(lambda: validate(SamplingParams(temperature=-1.0))),
    "penalty": lambda: _error(lambda: validate(SamplingParams(repetition_penalty=1e9))),
    "memory": lambda: out_of_memory(10**15, f"A cache for {format_tokens(1234)}"),
    "card full": lambda: card_full(10**10, 5_000_000),
    "card full of something unknown": lambda: card_full(1000, None),
    "driver full": lambda: card_full_at("the kernels", None),
    "card refused": lambda: card_fault("cuMemcpy failed: invalid argument", doing="an upload", lost=False),
    "card lost": lambda: card_fault("cuCtx failed: unknown error", doing="the kernel rope", lost=True),
    "driver old": lambda: _old_driver((11, 4), 12).as_error(),
    "driver old, told": lambda: _old_driver((11, 4), 99).as_notice(),
    "no card at all": lambda: NoCard("none", "the NVIDIA driver finds no card").as_error(),
    "template": lambda: _error(lambda: SandboxedTemplate("{% if %}")),
    "template too long": lambda: _error(lambda: SandboxedTemplate("x" * 10_000_000)),
    "store full": lambda: store_error(_sqlite(sqlite3.SQLITE_FULL), DATABASE, doing="saving the message"),
    "store locked": lambda: store_error(_sqlite(sqlite3.SQLITE_BUSY), DATABASE, doing="deleting the message"),
    "store damaged": lambda: store_error(
        _sqlite(sqlite3.SQLITE_CORRUPT), DATABASE, doing="searching the conversations"
    ),
    "store unavailable": lambda: unavailable(DATABASE, OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))),
    "system": lambda: notice_from(
        OSError(errno.EACCES, os.strerror(errno.EACCES), "/a/b"), doing="saving the settings"
    ),
    "fault": lambda: notice_from(KeyError("x"), doing="unloading the model"),
    "encrypted PDF": lambda: _error(lambda: _read_answer(b'{"problem": "encrypted"}', "is empty.pdf")),
    "long PDF": lambda: _error(lambda: _read_answer(b'{"problem": "too-long"}', "a.pdf")),
    "import": lambda: ImportRefusedError("chats.zip", "the archive is damaged or encrypted"),
}


@pytest.mark.parametrize("name", sorted(ERRORS))
def test_what_the_program_says_is_said_in_chinese(name: str, in_chinese: None) -> None:
    said = ERRORS[name]()
    values = (str(DATABASE), str(DATABASE.parent), JINJA, "unknown error", "invalid argument")
    assert_chinese(said.message, values=values)
    assert_chinese(said.hint, values=values)


def test_choices_that_have_no_effect_are_said_in_chinese(tmp_path: Path, in_chinese: None) -> None:
    spec = open_model(copy_model("tiny-qwen3", tmp_path / "model")).spec
    told = set()
    for config in (
        EngineConfig(weights="native", activations="int8", kv="native"),
        EngineConfig(weights="auto", vram_budget=10**9, window=2),
        EngineConfig(weights="q4"),
    ):
        sizes = WeightBytes(native=10**9, q8=5 * 10**8, q4=3 * 10**8)
        _, notices = resolve_config(config, spec, sizes=sizes, available=4 * 10**8, card=None)
        for notice in notices:
            assert_chinese(notice.message)
            assert_chinese(notice.hint)
            told.add(notice.code)
    assert len(told) >= 4
