"""Pygments' lexers, loaded once each on a thread: the expressions of some languages take a tenth of a second
to compile, for which the window would stand still.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from functools import lru_cache

import shiboken6
from pygments.lexer import Lexer
from pygments.lexers import get_all_lexers, get_lexer_by_name
from PySide6.QtCore import QObject

from app.threads import LoopThread, Mailbox

JOIN_TIMEOUT_MS = 5_000


def lexer_name(language: str) -> str | None:
    """What Pygments calls the language of a code block, "py title=a.py" say; None if it knows none of that
    name. Loads nothing.
    """
    return _names().get(_alias(language))


class LexerStore(QObject):
    """Lives on the GUI thread."""

    def __init__(self, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self._known: dict[str, Lexer] = {}
        self._waiting: dict[str, list[weakref.WeakMethod[Callable[[], None]]]] = {}
        self._mailbox = Mailbox(self)
        self._thread: LoopThread | None = None

    @property
    def busy(self) -> bool:
        """Something that was asked for is not loaded yet."""
        return bool(self._waiting)

    def is_known(self, language: str) -> bool:
        """Whether it is loaded, or there is nothing to load."""
        return _alias(language) in self._known or lexer_name(language) is None

    def lexer(self, language: str) -> Lexer | None:
        """None for a language that isn't loaded, or that there is no lexer of."""
        return self._known.get(_alias(language))

    def want(self, language: str, then: Callable[[], None]) -> None:
        """Have it loaded. `then`, a method of a Qt object, is called once it is, unless that is gone."""
        if self.is_known(language):
            return
        waiting = self._waiting.setdefault(_alias(language), [])
        reference = weakref.WeakMethod(then)
        if reference not in waiting:
            waiting.append(reference)
        if self._thread is None:
            self._begin()

    def load(self, language: str) -> None:
        """At once, for who can wait."""
        if not self.is_known(language):
            self._keep(_loaded([_alias(language)]))

    def shutdown(self) -> bool:
        """Ends the thread; nobody who waits is called any more. False: it did not end in time."""
        self._waiting.clear()
        thread, self._thread = self._thread, None
        return thread is None or thread.join(JOIN_TIMEOUT_MS)

    def _begin(self) -> None:
        aliases = tuple(self._waiting)
        self._thread = LoopThread("lexers", lambda: self._load(aliases))
        self._thread.begin()

    def _load(self, aliases: Iterable[str]) -> None:
        """On the thread, which ends then."""
        found = _loaded(aliases)
        self._mailbox.post(lambda: self._on_loaded(found))

    def _on_loaded(self, found: dict[str, Lexer]) -> None:
        if self._thread is not None:
            self._thread.join(JOIN_TIMEOUT_MS)
            self._thread = None
        self._keep(found)
        if self._waiting:
            self._begin()

    def _keep(self, found: dict[str, Lexer]) -> None:
        self._known.update(found)
        for alias in found:
            for reference in self._waiting.pop(alias, ()):
                method = reference()
                if method is not None and shiboken6.isValid(method.__self__):
                    method()


_store: LexerStore | None = None


def lexer_store() -> LexerStore:
    """The one store of the program; made when it is first asked for."""
    global _store
    if _store is None:
        _store = LexerStore()
    return _store


def end_lexers() -> bool:
    """At the end of the program: ends the thread, if one runs. False: it did not end."""
    return _store is None or _store.shutdown()


def _alias(language: str) -> str:
    return language.strip().partition(" ")[0].lower().strip("{}.")


@lru_cache(maxsize=1)
def _names() -> dict[str, str]:
    """Names of languages, by each of the words that mean them. Plain text has no lexer here."""
    names: dict[str, str] = {}
    for name, aliases, _, _ in get_all_lexers(plugins=False):
        if name != "Text only":
            names |= {alias.lower(): name for alias in aliases if alias.lower() not in names}
    return names


def _loaded(aliases: Iterable[str]) -> dict[str, Lexer]:
    return {alias: get_lexer_by_name(alias, ensurenl=False, stripnl=False) for alias in aliases}
