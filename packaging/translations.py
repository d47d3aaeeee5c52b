"""Keeps the catalogues of `resources/languages` in step with the code.

    python packaging/translations.py update    # new texts come in untranslated, texts that are gone go
    python packaging/translations.py check     # says what lacks a translation; 1 if anything does

Texts of the window are the literals inside `tr`, `tr_n` and `mark`. Sentences are what errors, notices and
the words that these are made of hold, with numbered places where values go: "{0} has no tensor {1}."
"""

from __future__ import annotations

import argparse
import ast
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from string import Formatter

import polib

ROOT = Path(__file__).resolve().parents[1]
LANGUAGES = ROOT / "resources" / "languages"
WINDOW, SENTENCES = "window.po", "sentences.po"
_PLURALS = {"zh_CN": "nplurals=1; plural=0;"}

_PHRASE = "phrase"  # the call that marks a part of sentences
_WORDING = "engine/wording.py"  # parts of sentences: "{0} tokens"
# What these say is read in a terminal, or by nobody.
_NOT_SHOWN = re.compile(
    r"engine/(commands|bench)/|engine/(__main__|selftest|code_cache|doctor|numerics)\.py"
    r"|engine/cpu/(.*_ir|compiler)\.py"
    r"|app/(__main__|catalogue|notice_report|conversation_schema)\.py"
)
# What the system says of files, in the places of sentences: Python passes it on in English.
_OF_SYSTEM = (
    "Cannot allocate memory",
    "Device or resource busy",
    "Directory not empty",
    "Disk quota exceeded",
    "File exists",
    "File name too long",
    "File too large",
    "Input/output error",
    "Is a directory",
    "No space left on device",
    "No such device",
    "No such file or directory",
    "Not a directory",
    "Operation not permitted",
    "Permission denied",
    "Read-only file system",
    "Stale file handle",
    "Too many levels of symbolic links",
    "Too many open files",
    "Transport endpoint is not connected",
)
# And Python's own words about a JSON text, of all its versions.
_OF_JSON = (
    "Expecting ',' delimiter",
    "Expecting ':' delimiter",
    "Expecting property name enclosed in double quotes",
    "Expecting value",
    "Extra data",
    "Illegal trailing comma before end of array",
    "Illegal trailing comma before end of object",
    "Invalid \\escape",
    "Invalid \\uXXXX escape",
    "Invalid control character at",
    "Unterminated string starting at",
)
_RECORDS = re.compile(r"(Error|Notice|Refusal)$")
_UNSAID_CALLS = {
    "setStyleSheet",
    "AssertionError",
    "add_argument",
    "ArgumentParser",
    "compile",
    "getLogger",
    "log",
    "cast",
    "strftime",
}
_ONLY_PLACES = re.compile(r"(\{\d+\}| )*")
_CODE = re.compile(
    r"\\|%\(|\{%|#define|#include|^\s*(SELECT|INSERT|UPDATE|DELETE|CREATE|DROP|ALTER|WITH|PRAGMA)\b"
    r"|\b(SELECT|FROM|WHERE|UNION|AND|ORDER BY)\b|\? |^\s*id, |\bq\w+gradient\(|\b(Mono|SC|YaHei UI)$"
)


@dataclass(frozen=True)
class Found:
    """A text in the code. many: its other form, where it comes with a count. notes: what stands in its
    places.
    """

    text: str
    place: str  # "app/ui/banner.py"; without the line, which changes with everything above it
    many: str = ""
    notes: str = ""
    is_said: bool = True  # stands where something is said: in an error, a notice, a `phrase`


def window_texts(root: Path = ROOT) -> list[Found]:
    """The literals of `tr`, `tr_n` and `mark`. Raises ValueError where one of them holds no literal that can
    be found.
    """
    return [found for path in _sources(root, "app") for found in _window_texts_of(path, root)]


def sentences(root: Path = ROOT) -> list[Found]:
    return [
        *(Found(text, "errno") for text in _OF_SYSTEM),
        *(Found(text, "json") for text in _OF_JSON),
        *(
            found
            for part in ("engine", "app")
            for path in _sources(root, part)
            if not _NOT_SHOWN.search(path.relative_to(root).as_posix())
            for found in _sentences_of(path, root)
        ),
    ]


def unwrapped(root: Path = ROOT) -> list[Found]:
    """Prose of the window that stands neither in `tr` or `mark`, nor in a record that is translated where it
    is shown, nor in `phrase`.
    """
    return [
        found
        for path in _sources(root, "app")
        if path.is_relative_to(root / "app" / "ui")
        for found in _sentences_of(path, root)
        if not found.is_said
    ]


def update(root: Path = ROOT) -> None:
    for folder in sorted(path for path in LANGUAGES.iterdir() if path.is_dir() and path.name in _PLURALS):
        for name, found in ((WINDOW, window_texts(root)), (SENTENCES, sentences(root))):
            _update_file(folder / name, found, language=folder.name)


def problems(folder: Path, root: Path = ROOT) -> list[str]:
    """One line for each text that lacks its translation, or has other places than its English."""
    lines = []
    for name, found in ((WINDOW, window_texts(root)), (SENTENCES, sentences(root))):
        catalogue = polib.pofile(str(folder / name), encoding="utf-8")
        entries = {entry.msgid: entry for entry in catalogue}
        for one in found:
            entry = entries.get(one.text)
            if entry is None or not entry.translated():
                lines.append(f"{one.place}: no translation of {one.text!r}")
        gone = entries.keys() - {one.text for one in found}
        lines += [f"{name}: {text!r} is in the code no more" for text in sorted(gone)]
        lines += [line for entry in catalogue for line in _wrong_places(name, entry)]
        lines += _two_plurals(found)
    return list(dict.fromkeys(lines))


def _two_plurals(found: list[Found]) -> Iterator[str]:
    """A catalogue knows a text alone, or with one plural."""
    plurals: dict[str, str] = {}
    for one in found:
        if plurals.setdefault(one.text, one.many) != one.many:
            yield f"{one.place}: {one.text!r} stands elsewhere with another plural, or with none"


def _wrong_places(name: str, entry: polib.POEntry) -> Iterator[str]:
    wanted = _places(entry.msgid_plural or entry.msgid)
    for wording in [entry.msgstr, *entry.msgstr_plural.values()]:
        if wording and _places(wording) != wanted:
            yield f"{name}: other places in {wording!r} than in {entry.msgid!r}"


def _places(text: str) -> list[str]:
    try:
        return sorted(f"{name}:{form}" for _, name, form, _ in Formatter().parse(text) if name is not None)
    except ValueError:  # lone braces: a text that is never formatted
        return []


def _sources(root: Path, part: str) -> list[Path]:
    return sorted(path for path in (root / part).rglob("*.py") if "__pycache__" not in path.parts)


def _window_texts_of(path: Path, root: Path) -> Iterator[Found]:
    place = path.relative_to(root).as_posix()
    if place == "app/language.py":
        return
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Name)):
            continue
        if node.func.id in ("tr", "mark") and node.args:
            for literal in _literals(node.args[0], place, node.lineno, name=node.func.id):
                yield Found(literal, place)
        elif node.func.id == "tr_n":
            one, many = (_one_literal(argument, place, node.lineno) for argument in node.args[:2])
            yield Found(one, place, many=many)


def _literals(node: ast.expr, place: str, line: int, *, name: str) -> Iterator[str]:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.value
    elif isinstance(node, ast.IfExp):
        yield from _literals(node.body, place, line, name=name)
        yield from _literals(node.orelse, place, line, name=name)
    elif name == "mark" or isinstance(node, ast.JoinedStr | ast.BinOp):
        raise ValueError(f"{place}:{line}: {name} takes a literal.")


def _one_literal(node: ast.expr, place: str, line: int) -> str:
    if not (isinstance(node, ast.Constant) and isinstance(node.value, str)):
        raise ValueError(f"{place}:{line}: tr_n takes two literals.")
    return node.value


def _sentences_of(path: Path, root: Path) -> Iterator[Found]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    parents = {child: node for node in ast.walk(tree) for child in ast.iter_child_nodes(node)}
    place = path.relative_to(root).as_posix()
    for node in ast.walk(tree):
        template = _template(node)
        if template is None or isinstance(parents.get(node), ast.Expr | ast.JoinedStr | ast.FormattedValue):
            continue
        text, notes = template
        calls = _calls_around(node, parents)
        in_record = any(map(_RECORDS.search, calls))
        is_marked = _PHRASE in calls or _is_doing(node, parents)
        if not _is_code(node, text, calls, parents, place=place) and (
            _is_prose(text, place=place) or is_marked or (notes and " " in text and in_record)
        ):
            yield Found(text, place, notes=notes, is_said=in_record or is_marked)


def _is_code(
    node: ast.AST, text: str, calls: set[str], parents: dict[ast.AST, ast.AST], *, place: str
) -> bool:
    """Whether nobody is told the text as it stands there, or another catalogue has it."""
    around = parents.get(node)
    return (
        bool(calls & (_UNSAID_CALLS | {"tr", "tr_n", "mark", "assert"}))
        or (place.startswith("engine/") and "ValueError" in calls)  # people are told EngineErrors there
        or (isinstance(around, ast.Dict) and node in around.keys)
        or isinstance(around, ast.Compare)
        or _is_unseen(node, parents)
        or text.count("\n") > 1
        or _CODE.search(text) is not None
        or _ONLY_PLACES.fullmatch(text) is not None
    )


def _is_prose(text: str, *, place: str) -> bool:
    words = re.sub(r"\{\d+\}", "", text)
    if place == _WORDING and words != text:
        return re.search("[a-z]{3}", words) is not None
    return " " in words.strip() and re.search(r"\b[a-z]", words) is not None  # a name has capitals


def _is_unseen(node: ast.AST, parents: dict[ast.AST, ast.AST]) -> bool:
    """Of what a log is told by way of a function, logged=… or "unexpected fault", and of the words by which a
    search finds a setting.
    """
    around = parents.get(node)
    if isinstance(around, ast.BoolOp):
        around = parents.get(around)
    return isinstance(around, ast.keyword) and around.arg in ("logged", "words")


def _is_doing(node: ast.AST, parents: dict[ast.AST, ast.AST]) -> bool:
    """Of what a failure is told by: doing="loading"."""
    around = parents.get(node)
    return isinstance(around, ast.keyword) and around.arg == "doing"


def _template(node: ast.AST) -> tuple[str, str] | None:
    """The text with numbered places, and what stands in them; None where it isn't a text."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value.replace("{", "{{").replace("}", "}}"), ""
    if not isinstance(node, ast.JoinedStr):
        return None
    text, notes = "", []
    for value in node.values:
        if isinstance(value, ast.Constant):
            text += str(value.value).replace("{", "{{").replace("}", "}}")
        else:
            assert isinstance(value, ast.FormattedValue)
            text += f"{{{len(notes)}}}"
            notes.append(f"{{{len(notes)}}} = {ast.unparse(value.value)}")
    return text, "; ".join(notes)


def _calls_around(node: ast.AST, parents: dict[ast.AST, ast.AST]) -> set[str]:
    """The names of the calls that the text is an argument of, up to its statement."""
    names = set()
    while (parent := parents.get(node)) is not None and not isinstance(parent, ast.Module):
        if isinstance(parent, ast.Call) and node is not parent.func:
            names.add(_called(parent.func))
        if isinstance(parent, ast.Assert):
            names.add("assert")
        if isinstance(parent, ast.stmt):
            break
        node = parent
    return names


def _called(function: ast.expr) -> str:
    """The name of a function or a method; "log" for whatever a log is told."""
    if isinstance(function, ast.Name):
        return function.id
    if isinstance(function, ast.Attribute):
        owner = function.value
        return "log" if isinstance(owner, ast.Name) and owner.id == "log" else function.attr
    return ""


def _update_file(path: Path, found: list[Found], *, language: str) -> None:
    old = {entry.msgid: entry for entry in polib.pofile(str(path), encoding="utf-8")} if path.exists() else {}
    new: dict[str, polib.POEntry] = {}
    for one in found:
        entry = new.get(one.text)
        if entry is None:
            entry = new[one.text] = polib.POEntry(msgid=one.text, comment=one.notes)
            if one.many:
                entry.msgid_plural = one.many
                entry.msgstr_plural = {0: ""}
            _take_over(entry, old.get(one.text))
        if (one.place, "") not in entry.occurrences:
            entry.occurrences.append((one.place, ""))
    catalogue = polib.POFile(wrapwidth=110)
    catalogue.metadata = {
        "Language": language,
        "Content-Type": "text/plain; charset=utf-8",
        "Content-Transfer-Encoding": "8bit",
        "Plural-Forms": _PLURALS[language],
    }
    catalogue.extend(sorted(new.values(), key=lambda entry: (entry.occurrences[0][0], entry.msgid)))
    catalogue.save(str(path))


def _take_over(entry: polib.POEntry, old: polib.POEntry | None) -> None:
    if old is None or bool(old.msgid_plural) != bool(entry.msgid_plural):
        return
    entry.msgstr, entry.msgstr_plural = old.msgstr, old.msgstr_plural


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("what", choices=("update", "check"))
    if parser.parse_args().what == "update":
        update()
        return 0
    lines = [line for folder in sorted(LANGUAGES.iterdir()) if folder.is_dir() for line in problems(folder)]
    print(*lines, sep="\n")
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main())
