"""What the catalogues are made from, and that they hold all of it."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable
from pathlib import Path

import polib
import pytest

import translations

LANGUAGES = sorted(path for path in translations.LANGUAGES.iterdir() if path.is_dir())

MakeTree = Callable[..., Path]


@pytest.fixture
def make_tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MakeTree:
    """`make_tree({"app/ui/a.py": "…"})` gives a root with those files, and a language without texts. What the
    system and Python say is left out.
    """

    def make(files: dict[str, str]) -> Path:
        for name, source in files.items():
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_text(source, encoding="utf-8")
        monkeypatch.setattr(translations, "LANGUAGES", tmp_path / "languages")
        monkeypatch.setattr(translations, "_OF_SYSTEM", ())
        monkeypatch.setattr(translations, "_OF_JSON", ())
        (tmp_path / "languages" / "zh_CN").mkdir(parents=True, exist_ok=True)
        return tmp_path

    return make


def texts(found: list[translations.Found]) -> list[str]:
    return [one.text for one in found]


def fill(root: Path, name: str, wordings: dict[str, str]) -> None:
    path = root / "languages" / "zh_CN" / name
    catalogue = polib.pofile(str(path), encoding="utf-8")
    for entry in catalogue:
        if entry.msgid_plural and entry.msgid in wordings:
            entry.msgstr_plural = {0: wordings[entry.msgid]}
        elif entry.msgid in wordings:
            entry.msgstr = wordings[entry.msgid]
    catalogue.save(str(path))


def entries(root: Path, name: str) -> dict[str, polib.POEntry]:
    path = root / "languages" / "zh_CN" / name
    return {entry.msgid: entry for entry in polib.pofile(str(path), encoding="utf-8")}


def problems(root: Path) -> list[str]:
    return translations.problems(root / "languages" / "zh_CN", root)


# The catalogues as they are


@pytest.mark.parametrize("folder", LANGUAGES, ids=lambda folder: folder.name)
def test_every_text_in_the_code_has_a_translation_with_the_same_places(folder: Path) -> None:
    assert translations.problems(folder) == []


def test_what_the_system_says_of_files_is_among_the_sentences() -> None:
    assert os.strerror(errno.ENOSPC) in texts(translations.sentences())


@pytest.mark.parametrize(
    "text",
    ['{"a" 1}', "[1 2]", "{1: 2}", "", "1 2", "[1,]", '{"a": 1,}', r'"\x"', r'"\uXYZW"', '"\t"', '"a'],
)
def test_what_python_says_of_a_json_text_is_among_the_sentences(text: str) -> None:
    with pytest.raises(json.JSONDecodeError) as refused:
        json.loads(text)
    words = [found.replace("{{", "{").replace("}}", "}") for found in texts(translations.sentences())]
    assert any(refused.value.msg.startswith(found) for found in words if len(found) > 8), refused.value.msg


def test_there_is_chinese() -> None:
    assert "zh_CN" in [folder.name for folder in LANGUAGES]


@pytest.mark.parametrize("folder", LANGUAGES, ids=lambda folder: folder.name)
def test_the_catalogues_are_as_the_tool_writes_them(folder: Path, tmp_path: Path) -> None:
    for name, found in (
        (translations.WINDOW, translations.window_texts()),
        (translations.SENTENCES, translations.sentences()),
    ):
        copy = tmp_path / name
        copy.write_bytes((folder / name).read_bytes())
        translations._update_file(copy, found, language=folder.name)
        assert copy.read_text(encoding="utf-8") == (folder / name).read_text(encoding="utf-8")


def test_no_prose_of_the_window_is_left_unwrapped() -> None:
    assert translations.unwrapped() == []


# What is found


def test_the_literals_of_the_window_are_found_where_they_are_marked(make_tree: MakeTree) -> None:
    source = """
A = mark("Today")
tr("Loaded {name}", name=name)
tr("One" if lucky else "Other")
tr_n("{count} page", "{count} pages", n)
tr(A)
print("not this")
"""
    root = make_tree({"app/ui/a.py": source})
    found = translations.window_texts(root)
    assert sorted(texts(found)) == ["Loaded {name}", "One", "Other", "Today", "{count} page"]
    assert [one.many for one in found if one.many] == ["{count} pages"]
    assert {one.place for one in found} == {"app/ui/a.py"}


@pytest.mark.parametrize(
    "source",
    [
        'tr(f"Loaded {name}")',
        'tr("Loaded " + name)',
        "mark(name)",
        'tr_n(one, "many", 3)',
        'tr_n("one", f"{n} many", 3)',
    ],
)
def test_what_no_literal_can_be_found_of_is_refused_with_its_line(make_tree: MakeTree, source: str) -> None:
    root = make_tree({"app/ui/a.py": f"\n\n{source}\n"})
    with pytest.raises(ValueError, match=r"app/ui/a\.py:3: \w+ takes "):
        translations.window_texts(root)


def test_the_values_of_a_sentence_become_numbered_places_with_what_they_are(make_tree: MakeTree) -> None:
    root = make_tree({"engine/a.py": 'raise ModelFileError(f"{shown(a)} has no tensor {b:,} of {{c}}.")\n'})
    (one,) = translations.sentences(root)
    assert one.text == "{0} has no tensor {1} of {{c}}."
    assert one.notes == "{0} = shown(a); {1} = b"


@pytest.mark.parametrize(
    "source",
    [
        '"""What a module is about."""',
        'assert ok, "only we can break this"',
        'raise AssertionError("never to be seen by anybody")',
        'raise ValueError("the caller made a mistake")',
        'log.warning("%s could not be done", name)',
        'report(error, logged="an unexpected fault")',
        'report(error, logged=words or "an unexpected fault")',
        'parser.add_argument("--seed", help="of the random numbers")',
        'value = cast("int | None", value)',
        'if kind == "list of numbers": pass',
        'HINTS = {"timed out": 1, "busy or away": 2}',
        'db.execute("SELECT id FROM messages WHERE id = ?")',
        'more = f"{query} AND m.sequence = ?"',
        'both = f"{hint} {other}"',
        'prompt = f"File {name}:\\n{fence}\\n{text}"',
        'tr("A text of the window")',
        'name = "Kestrel Chat"',
        'word = "prompt"',
        'time.strftime("%d of %m")',
        'pattern = r"a\\d+ of them"',
    ],
)
def test_what_nobody_is_told_is_left_out(make_tree: MakeTree, source: str) -> None:
    root = make_tree({"engine/a.py": f"{source}\n"})
    assert texts(translations.sentences(root)) == []


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ('what = phrase("prompt")', "prompt"),
        ('what = phrase(f"{n:,} bits")', "{0} bits"),
        ('run(load, doing="loading")', "loading"),
        ('raise StoreError("code", f"{begun}: {why}")', "{0}: {1}"),
        ('Notice("code", "The disk is full.")', "The disk is full."),
        ('reason = "permission denied"', "permission denied"),
        ('REASONS = {ENOENT: "does not exist"}', "does not exist"),
    ],
)
def test_what_people_are_told_is_found(make_tree: MakeTree, source: str, text: str) -> None:
    root = make_tree({"engine/a.py": f"{source}\n"})
    assert texts(translations.sentences(root)) == [text]


def test_a_value_error_of_the_program_above_the_engine_is_told(make_tree: MakeTree) -> None:
    root = make_tree({"app/presets.py": 'raise ValueError("A preset needs a name.")\n'})
    assert texts(translations.sentences(root)) == ["A preset needs a name."]


def test_files_whose_words_are_read_in_a_terminal_are_left_out(make_tree: MakeTree) -> None:
    source = 'print("The model is not there.")\n'
    root = make_tree(dict.fromkeys(("engine/commands/a.py", "engine/doctor.py", "app/__main__.py"), source))
    assert translations.sentences(root) == []


@pytest.mark.parametrize(
    ("source", "is_wrapped"),
    [
        ('label.setText("The model is loaded.")', False),
        ('label.setText(f"{name} is loaded.")', False),
        ('label.setText(tr("The model is loaded."))', True),
        ('Notice("code", "The model is loaded.")', True),
        ('WORDS = {"a": phrase("4-bit weights")}', True),
        ('label.setObjectName("title")', True),
    ],
)
def test_prose_of_the_window_outside_of_tr_is_told(
    make_tree: MakeTree, source: str, is_wrapped: bool
) -> None:
    root = make_tree({"app/ui/a.py": f"{source}\n"})
    assert (translations.unwrapped(root) == []) == is_wrapped


# Keeping in step


def test_a_new_text_comes_in_untranslated_and_one_that_is_gone_goes(make_tree: MakeTree) -> None:
    root = make_tree({"app/ui/a.py": 'tr("Old")\ntr("Stays")\ntr_n("{count} page", "{count} pages", n)\n'})
    translations.update(root)
    fill(root, "window.po", {"Old": "旧", "Stays": "留下", "{count} page": "{count} 页"})
    make_tree({"app/ui/a.py": 'tr("New")\ntr("Stays")\ntr_n("{count} page", "{count} pages", n)\n'})
    translations.update(root)
    now = entries(root, "window.po")
    assert sorted(now) == ["New", "Stays", "{count} page"]
    assert now["Stays"].msgstr == "留下"
    assert now["{count} page"].msgstr_plural == {0: "{count} 页"}
    assert now["New"].msgstr == ""


def test_a_translation_that_is_complete_has_no_problems(make_tree: MakeTree) -> None:
    root = make_tree(
        {"app/ui/a.py": 'tr("Loaded {name}", name=n)\n', "engine/a.py": 'raise E(f"{a} is not {b} now.")\n'}
    )
    translations.update(root)
    assert len(problems(root)) == 2
    fill(root, "window.po", {"Loaded {name}": "已加载 {name}"})
    fill(root, "sentences.po", {"{0} is not {1} now.": "现在 {1} 不是 {0}。"})
    assert problems(root) == []


@pytest.mark.parametrize("wording", ["已加载", "已加载 {nom}", "已加载 {name:,}", "已加载 {name} {name}"])
def test_other_places_than_the_english_are_told(make_tree: MakeTree, wording: str) -> None:
    root = make_tree({"app/ui/a.py": 'tr("Loaded {name}", name=n)\n'})
    translations.update(root)
    fill(root, "window.po", {"Loaded {name}": wording})
    (line,) = problems(root)
    assert "other places" in line
    assert repr(wording) in line


def test_a_plural_has_the_places_of_its_english_too(make_tree: MakeTree) -> None:
    root = make_tree({"app/ui/a.py": 'tr_n("One page", "{count:,} pages", n)\n'})
    translations.update(root)
    fill(root, "window.po", {"One page": "{count} 页"})
    assert len(problems(root)) == 1
    fill(root, "window.po", {"One page": "{count:,} 页"})
    assert problems(root) == []


def test_a_text_that_the_code_lost_is_told_until_the_catalogue_is_updated(make_tree: MakeTree) -> None:
    root = make_tree({"app/ui/a.py": 'tr("Old")\n'})
    translations.update(root)
    fill(root, "window.po", {"Old": "旧"})
    make_tree({"app/ui/a.py": "pass\n"})
    assert problems(root) == ["window.po: 'Old' is in the code no more"]
    translations.update(root)
    assert problems(root) == []


def test_a_text_can_not_be_plain_here_and_counted_there(make_tree: MakeTree) -> None:
    root = make_tree({"app/ui/a.py": 'tr("page")\n', "app/ui/b.py": 'tr_n("page", "pages", n)\n'})
    translations.update(root)
    assert any("another plural" in line for line in problems(root))
