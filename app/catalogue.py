"""The texts of one language: `resources/languages/<name>/*.po`, the format that translators' tools read.

`window.po` holds the texts of the window, by their English. `sentences.po` holds what the engine and the rest
of the program say, by templates with numbered places: "{0} has no tensor {1}."
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from gettext import c2py
from importlib.resources import as_file, files
from pathlib import Path

from app.sentence_book import SentenceBook


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
        self.sentence = lru_cache(maxsize=500)(self._book.translated)

    def text(self, english: str) -> str:
        return self._texts.get(english, english)

    def counted(self, one: str, many: str, count: int) -> str:
        forms = self._counted.get(one)
        if forms is None:
            return one if count == 1 else many
        return forms[self._form_of(count)]


def read_catalogue(name: str) -> Catalogue:
    """name: of the folder, such as "zh_CN". Raises OSError, or ValueError when a file isn't a catalogue."""
    with as_file(files("resources") / "languages" / name) as folder:
        return catalogue_of(folder / "window.po", folder / "sentences.po")


def catalogue_of(window: Path, sentences: Path) -> Catalogue:
    import polib  # only who reads another language than English needs it

    texts: dict[str, str] = {}
    counted: dict[str, list[str]] = {}
    known = polib.pofile(str(window), encoding="utf-8")
    for entry in known.translated_entries():
        if entry.msgid_plural:
            counted[entry.msgid] = [entry.msgstr_plural[form] for form in sorted(entry.msgstr_plural)]
        else:
            texts[entry.msgid] = entry.msgstr
    rule = known.metadata["Plural-Forms"].partition("plural=")[2].rstrip("; ")
    said = {
        entry.msgid: entry.msgstr
        for entry in polib.pofile(str(sentences), encoding="utf-8").translated_entries()
    }
    return Catalogue(texts, counted, said, form_of=c2py(rule))
