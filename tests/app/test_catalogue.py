"""Catalogues are read whole, or refused with the reason; what they hold reaches every text."""

from __future__ import annotations

import os
import re
import time
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from app.catalogue import Catalogue, catalogue_of, read_catalogue
from app.sentence_book import LONGEST

LANGUAGES = Path(__file__).resolve().parents[2] / "resources" / "languages"
HEAD = """msgid ""
msgstr ""
"Content-Type: text/plain; charset=utf-8\\n"
"Plural-Forms: nplurals=3; plural=n==1 ? 0 : n<5 ? 1 : 2;\\n"

"""
WINDOW = f"""{HEAD}
msgid "Loaded {{name}}"
msgstr "已加载 {{name}}"

msgid "Not yet"
msgstr ""

#, fuzzy
msgid "Perhaps"
msgstr "也许"

msgid "{{count}} page"
msgid_plural "{{count}} pages"
msgstr[0] "A {{count}}"
msgstr[1] "B {{count}}"
msgstr[2] "C {{count}}"
"""
SAID = f"""{HEAD}
msgid "{{0}} has no tensor {{1}}."
msgstr "{{0}} 中没有张量 {{1}}。"
"""


def written(folder: Path, *, window: str = WINDOW, said: str = SAID) -> tuple[Path, Path]:
    (folder / "window.po").write_text(window, encoding="utf-8")
    (folder / "sentences.po").write_text(said, encoding="utf-8")
    return folder / "window.po", folder / "sentences.po"


@pytest.fixture
def small(tmp_path: Path) -> Catalogue:
    return catalogue_of(*written(tmp_path))


def test_a_text_is_found_by_its_english(small: Catalogue) -> None:
    assert small.text("Loaded {name}") == "已加载 {name}"


@pytest.mark.parametrize("text", ["Not yet", "Perhaps", "unheard of", ""])
def test_a_text_that_is_not_translated_stays_english(small: Catalogue, text: str) -> None:
    assert small.text(text) == text


@pytest.mark.parametrize(("count", "form"), [(0, "B"), (1, "A"), (4, "B"), (5, "C"), (10**9, "C")])
def test_a_count_chooses_its_form_by_the_rule_of_the_language(
    small: Catalogue, count: int, form: str
) -> None:
    assert small.counted("{count} page", "{count} pages", count) == f"{form} {{count}}"


@pytest.mark.parametrize(("count", "form"), [(0, "many"), (1, "one"), (2, "many")])
def test_a_counted_text_that_is_not_there_is_said_in_english(small: Catalogue, count: int, form: str) -> None:
    assert small.counted("one", "many", count) == form


def test_a_sentence_is_found_by_its_template(small: Catalogue) -> None:
    assert small.sentence("a.gguf has no tensor b.") == "a.gguf 中没有张量 b。"
    assert small.sentence("a.gguf has no tensor b.") is small.sentence("a.gguf has no tensor b.")


def test_a_very_long_sentence_is_not_kept(small: Catalogue) -> None:
    text = "x" * (LONGEST + 1)
    assert small.sentence(text) is text
    assert small._remembered.cache_info().currsize == 0


# What is refused


def test_a_language_that_is_not_there_names_its_file() -> None:
    with pytest.raises(OSError, match=r"xx_YY.window\.po"):
        read_catalogue("xx_YY")


@pytest.mark.parametrize("missing", ["window.po", "sentences.po"])
def test_a_file_that_is_missing_is_named(tmp_path: Path, missing: str) -> None:
    paths = written(tmp_path)
    (tmp_path / missing).unlink()
    with pytest.raises(FileNotFoundError, match=missing):
        catalogue_of(*paths)


@pytest.mark.skipif(os.name == "nt" or os.geteuid() == 0, reason="permissions don't bind the superuser")
def test_a_file_that_may_not_be_read_is_named(tmp_path: Path) -> None:
    paths = written(tmp_path)
    paths[0].chmod(0)
    with pytest.raises(PermissionError, match="window"):
        catalogue_of(*paths)


@pytest.mark.parametrize(
    ("window", "words"),
    [
        ("No catalogue at all.\n", "window.po: Syntax error"),
        (f'{HEAD}msgid "a"\nbogus\n', "window.po: Syntax error"),
        (f'{HEAD}msgstr "b"\nmsgid "c" "d"\n', "window.po: Syntax error"),
        ("", "window.po: the plural forms"),
        ('msgid ""\nmsgstr ""\n"Plural-Forms: nplurals=1; plural=n+(;\\n"\n', "plural"),
        ('msgid ""\nmsgstr ""\n"Plural-Forms: nplurals=1; plural=__import__(1);\\n"\n', "plural"),
        (WINDOW.replace("nplurals=3", "nplurals=2"), "3 forms, not 2"),
    ],
)
def test_a_damaged_file_is_refused_with_the_reason(tmp_path: Path, window: str, words: str) -> None:
    with pytest.raises(ValueError, match=re.escape(words)):
        catalogue_of(*written(tmp_path, window=window))


@pytest.mark.parametrize("wording", ["没有张量 {1}。", "{0} {1} {1}", "{0} {2}", "{0} {1"])
def test_a_sentence_with_other_places_is_refused(tmp_path: Path, wording: str) -> None:
    said = SAID.replace("{0} 中没有张量 {1}。", wording)
    with pytest.raises(ValueError, match=r"other places|brace|field name|expected '}'"):
        catalogue_of(*written(tmp_path, said=said))


def test_bytes_that_are_no_utf_8_are_refused(tmp_path: Path) -> None:
    paths = written(tmp_path)
    paths[1].write_bytes(b"\xff\xfe" + SAID.encode("utf-16-le"))
    with pytest.raises(ValueError, match="utf-8"):
        catalogue_of(*paths)


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    start=st.integers(0, len(WINDOW)),
    length=st.integers(0, 40),
    inserted=st.one_of(
        st.text(max_size=8), st.sampled_from(['"', "\\", "msgid", "\n", "[", "#|", "msgstr[9]"])
    ),
)
def test_a_file_that_was_tampered_with_is_read_or_refused_and_nothing_else(
    tmp_path: Path, start: int, length: int, inserted: str
) -> None:
    window = WINDOW[:start] + inserted + WINDOW[start + length :]
    try:
        catalogue = catalogue_of(*written(tmp_path, window=window))
    except ValueError:  # anything else would end the program
        return
    assert isinstance(catalogue.text("Loaded {name}"), str)
    assert isinstance(catalogue.counted("{count} page", "{count} pages", 3), str)


# Those of the program


@pytest.mark.parametrize("folder", sorted(LANGUAGES.iterdir()), ids=lambda folder: folder.name)
def test_every_language_can_be_read(folder: Path) -> None:
    catalogue = read_catalogue(folder.name)
    assert catalogue.sentence("Close other programs.") != "Close other programs."


def test_chinese_is_read_fast_enough_to_be_read_at_the_start() -> None:
    read_catalogue("zh_CN")  # imports what it needs
    times = []
    for _ in range(5):
        start = time.thread_time()
        read_catalogue("zh_CN")
        times.append(time.thread_time() - start)
    assert min(times) < 0.06
