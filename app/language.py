"""The language of what is shown. No Qt, and nothing that blocks: a catalogue is read when it is chosen.

Texts of the window stand in English in the code, inside `tr`; what the engine says is English wherever it is
made, kept or logged, and goes through `translated` where it is shown.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum

from app.catalogue import Catalogue, read_catalogue


class Language(StrEnum):
    SYSTEM = "system"
    ENGLISH = "en"
    CHINESE = "zh_CN"


OWN_NAMES = {Language.ENGLISH: "English", Language.CHINESE: "简体中文"}
"""How each language calls itself, so that one's own is found whatever the window speaks."""

_shown = Language.ENGLISH
_catalogue: Catalogue | None = None  # None: English, which is what the code holds


def set_language(chosen: Language) -> None:
    """What is asked for from now on is in that language; what is on the screen already doesn't change.

    chosen: not SYSTEM, see `of_system`. Raises what a catalogue that can't be read raises.
    """
    global _shown, _catalogue
    assert chosen is not Language.SYSTEM, "resolved by `of_system`"
    _catalogue = None if chosen is Language.ENGLISH else read_catalogue(chosen.value)
    _shown = chosen


def language() -> Language:
    """The one that is set; never SYSTEM."""
    return _shown


def of_system(ui_languages: Sequence[str]) -> Language:
    """The first of them that there is a catalogue for, English if none.

    ui_languages: as BCP 47 names, the most wanted first ("zh-Hans-CN", "en-GB").
    """
    for name in ui_languages:
        match name.replace("_", "-").split("-")[0].lower():
            case "zh":
                return Language.CHINESE
            case "en":
                return Language.ENGLISH
    return Language.ENGLISH


def mark(text: str) -> str:
    """Marks a literal for the catalogue where it can't be translated yet: a constant, an enum's value."""
    return text


def tr(text: str, /, **values: object) -> str:
    """A text of the window in the language that is set, with the values in its placeholders.

    text: a literal, or one that stands inside `mark`; without values its braces mean nothing.
    """
    if _catalogue is not None:
        text = _catalogue.text(text)
    return text.format(**values) if values else text


def tr_n(one: str, many: str, /, count: int, **values: object) -> str:
    """As `tr`, in the form that belongs to the count, which is itself a value: "{count:,} messages"."""
    text = one if count == 1 else many
    if _catalogue is not None:
        text = _catalogue.counted(one, many, count)
    return text.format(count=count, **values)


def translated(sentence: str) -> str:
    """A sentence that was made in English, with its values in it: of an error, a notice, a refusal.

    One that the catalogue doesn't know stays as it is.
    """
    return sentence if _catalogue is None else _catalogue.sentence(sentence)
