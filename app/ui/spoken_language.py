"""Has the window, and Qt's own texts in it, speak the language that is chosen."""

from __future__ import annotations

from PySide6.QtCore import QCoreApplication, QLibraryInfo, QLocale, QTranslator

from app.language import Language, of_system, set_language
from engine.notices import Notice

_of_qt: QTranslator | None = None  # Qt keeps no reference to what is installed


def speak(chosen: Language) -> Notice | None:
    """For all texts that are asked for from now on. Returns what to tell where that can't be done."""
    resolved = of_system(QLocale.system().uiLanguages()) if chosen is Language.SYSTEM else chosen
    problem = None
    try:
        set_language(resolved)
    except (OSError, ValueError) as error:
        problem = Notice(
            "language-unreadable",
            f"The texts in the language {resolved} can't be read ({error}), so the window speaks English.",
            "Install the program again.",
        )
        resolved = Language.ENGLISH
        set_language(resolved)
    _translate_qt(resolved)
    return problem


def _translate_qt(language: Language) -> None:
    """The buttons of its questions, the menus of its text fields, its file dialogs."""
    global _of_qt
    if _of_qt is not None:
        QCoreApplication.removeTranslator(_of_qt)
        _of_qt = None
    if language is Language.ENGLISH:
        return
    translator = QTranslator()
    folder = QLibraryInfo.path(QLibraryInfo.LibraryPath.TranslationsPath)
    if translator.load(f"qtbase_{language.value}", folder):
        QCoreApplication.installTranslator(translator)
        _of_qt = translator
