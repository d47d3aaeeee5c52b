"""The texts of one language: `resources/languages/<name>/*.po`, the format that translators' tools read.

`window.po` holds the texts of the window, by their English. `sentences.po` holds what the engine and the rest
of the program say, by templates with numbered places: "{0} has no tensor {1}."
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache
from gettext import c2py
from importlib.resources import as_file, files
from pathlib import Path
from typing import TYPE_CHECKING

from app.sentence_book import LONGEST, SentenceBook, split_places

if TYPE_CHECKING:
    from polib import POFile

_PLURAL_FORMS = re.compile(r"\s*nplurals=(?P<number>\d{1,2})\s*;\s*plural=(?P<rule>[^;]+);?\s*")


class Catalogue:
    """Asked by `app.language` alone. What it doesn't hold comes back in English."""

    def __init__(
        self,
        texts: dict[str, str],
        counted: dict[str, list[str]],
        sentences: dict[str, str],
        *,
        form_of: Callable[[int], int],
    ) -> None:
        self._texts = texts
        self._counted = counted
        self._form_of = form_of
        self._book = SentenceBook(sentences)
        self._remembered = lru_cache(maxsize=500)(self._book.translated)

    def text(self, english: str) -> str:
        return self._texts.get(english, english)

    def counted(self, one: str, many: str, count: int) -> str:
        forms = self._counted.get(one)
        if forms is None:
            return one if count == 1 else many
        return forms[self._form_of(count)]

    def sentence(self, english: str) -> str:
        return english if len(english) > LONGEST else self._remembered(english)


def read_catalogue(name: str) -> Catalogue:
    """name: of the folder, such as "zh_CN". Raises OSError, or ValueError when a file isn't a catalogue."""
    with as_file(files("resources") / "languages" / name) as folder:
        return catalogue_of(folder / "window.po", folder / "sentences.po")


def catalogue_of(window: Path, sentences: Path) -> Catalogue:
    """Raises as `read_catalogue`."""
    texts: dict[str, str] = {}
    counted: dict[str, list[str]] = {}
    known = _entries(window)
    for entry in known.translated_entries():
        if entry.msgid_plural:
            counted[entry.msgid] = [entry.msgstr_plural[form] for form in sorted(entry.msgstr_plural)]
        else:
            texts[entry.msgid] = entry.msgstr
    said = {}
    for entry in _entries(sentences).translated_entries():
        if sorted(split_places(entry.msgid)[1]) != sorted(split_places(entry.msgstr)[1]):
            raise ValueError(f"{sentences.name}: {entry.msgstr!r} has other places than {entry.msgid!r}")
        said[entry.msgid] = entry.msgstr
    return Catalogue(texts, counted, said, form_of=_rule(known, counted, window.name))


def _entries(path: Path) -> POFile:
    import polib  # only who reads another language than English needs it

    text = path.read_text(encoding="utf-8")  # of a name that isn't there, polib reads the name
    try:
        return polib.pofile(f"{text}\n")
    except OSError as error:
        raise ValueError(f"{path.name}: {error}") from error


def _rule(known: POFile, counted: dict[str, list[str]], name: str) -> Callable[[int], int]:
    """Which form of a text belongs to a count. Raises ValueError where a text lacks one."""
    stated = known.metadata.get("Plural-Forms", "")
    match = _PLURAL_FORMS.fullmatch(stated)
    if match is None:
        raise ValueError(f"{name}: the plural forms {stated!r} are not as gettext has them")
    for one, forms in counted.items():
        if len(forms) != int(match["number"]):
            raise ValueError(f"{name}: {one!r} has {len(forms)} forms, not {match['number']}")
    form_of: Callable[[int], int] = c2py(match["rule"])
    return form_of
