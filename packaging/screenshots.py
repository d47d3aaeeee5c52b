"""Pictures of the window in all its states, made with a real model on whatever display there is.

    python packaging/screenshots.py MODEL [--out FOLDER] [--size 1180x780] [--themes light dark]
        [--languages en zh_CN] [--scenes NAME …] [--text 100]
    python packaging/screenshots.py MODEL --readme

Writes FOLDER/<scene>-<theme>-<language>.png for each scene of `screenshot_scenes.py`; with --readme those
that README.md shows, where it looks for them. On a machine without a screen, start it under a virtual X
server: `xvfb-run -s "-screen 0 1600x1200x24" python …`. Nothing of the person's own settings or
conversations is read or changed.
"""

from __future__ import annotations

import argparse
import re
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from PySide6.QtCore import QEventLoop, QTimer
from PySide6.QtWidgets import QApplication

from app.controller import ChatController
from app.language import Language
from app.paths import AppPaths
from app.settings import TEXT_SIZES
from app.settings import Theme as ThemeChoice
from app.ui.main_window import MainWindow
from app.ui.window_keeper import WindowKeeper
from png_file import write_png
from screenshot_scenes import SCENES, SETTLE_MS, make_broken_model
from screenshot_texts import CHINESE, ENGLISH, Texts

ROOT = Path(__file__).resolve().parents[1]
IMAGES = ROOT / "docs" / "images"
README_SIZE = "1280x880"
TIMEOUT_MS = 300_000


@dataclass
class Stage:
    """One program, run through its scenes. broken: a model folder whose weights were never downloaded."""

    keeper: WindowKeeper
    controller: ChatController
    model: Path
    broken: Path
    folder: Path  # for files that are attached and imported
    texts: Texts
    save: Callable[[str], None]

    @property
    def window(self) -> MainWindow:
        return self.keeper.window

    def wait(
        self, signal, wanted: Callable[..., bool] = lambda *_: True, *, begin=None, or_else=None
    ) -> None:
        """Does `begin`, then runs the loop until the signal brings what is wanted or the other one comes."""
        loop = QEventLoop()

        def on_signal(*arguments) -> None:
            if wanted(*arguments):
                loop.exit(0)

        def on_other(*_: object) -> None:
            loop.exit(0)

        signal.connect(on_signal)
        if or_else is not None:
            or_else.connect(on_other)
        timer = QTimer(singleShot=True)
        timer.timeout.connect(lambda: loop.exit(1))
        timer.start(TIMEOUT_MS)
        if begin is not None:
            QTimer.singleShot(0, begin)
        failed = loop.exec()
        signal.disconnect(on_signal)
        if or_else is not None:
            or_else.disconnect(on_other)
        if failed:
            raise SystemExit(f"Nothing happened within {TIMEOUT_MS // 1000} s.")

    def settle(self) -> None:
        loop = QEventLoop()
        QTimer.singleShot(SETTLE_MS, loop.quit)
        loop.exec()

    def take(self, name: str) -> None:
        self.settle()
        self.save(name)


class Photographer:
    """Takes what the display shows where the window is, with the dialogs over it; where the display doesn't
    say (Wayland), what Qt draws of the window alone.
    """

    def __init__(self, folder: Path, suffix: str) -> None:
        self._folder = folder
        self._suffix = suffix
        folder.mkdir(parents=True, exist_ok=True)

    def save(self, window: MainWindow, name: str) -> None:
        QApplication.processEvents()
        frame = window.geometry()
        picture = window.screen().grabWindow(0, frame.x(), frame.y(), frame.width(), frame.height())
        if picture.isNull():
            picture = window.grab()
        path = self._folder / f"{name}-{self._suffix}.png"
        write_png(picture.toImage(), path)
        print(path, flush=True)


def photograph(options: argparse.Namespace, theme: str, language: str) -> None:
    """Begins as somebody's first start, and goes through all scenes in their order."""
    photographer = Photographer(options.out, f"{theme}-{language}")
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        controller = ChatController(AppPaths.under(folder / "program"))
        controller.update_settings(
            theme=ThemeChoice(theme), language=Language(language), text_percent=options.text
        )
        keeper = WindowKeeper(controller)
        width, height = (int(part) for part in options.size.split("x"))
        keeper.window.resize(width, height)
        keeper.show()

        def save(name: str) -> None:
            if wanted(name, theme, language, options):
                photographer.save(keeper.window, name)

        stage = Stage(
            keeper,
            controller,
            model=options.model.absolute(),
            broken=make_broken_model(folder / "Llama-3.2-1B-Instruct"),
            folder=folder,
            texts=CHINESE if language == Language.CHINESE else ENGLISH,
            save=save,
        )
        try:
            stage.wait(controller.conversation_opened, begin=controller.start)
            for scene in SCENES:
                scene(stage)
        finally:
            keeper.close()


def wanted(scene: str, theme: str, language: str, options: argparse.Namespace) -> bool:
    if options.readme:
        return f"{scene}-{theme}-{language}" in shown_in_readme()
    return not options.scenes or scene in options.scenes


def shown_in_readme() -> set[str]:
    """The names of its pictures."""
    return set(re.findall(r"\(docs/images/([^)]+)\.png\)", (ROOT / "README.md").read_text("utf-8")))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("model", type=Path, metavar="MODEL")
    parser.add_argument("--out", type=Path, default=IMAGES, metavar="FOLDER")
    parser.add_argument("--size", default="1180x780", metavar="WIDTHxHEIGHT")
    parser.add_argument("--themes", nargs="+", default=["light", "dark"], choices=["light", "dark"])
    parser.add_argument("--languages", nargs="+", default=["en", "zh_CN"], choices=["en", "zh_CN"])
    parser.add_argument("--scenes", nargs="+", default=[], metavar="NAME", help="only these are written")
    parser.add_argument("--text", type=int, default=100, choices=TEXT_SIZES, help="size of text, in percent")
    parser.add_argument("--readme", action="store_true", help="those that README.md shows, and no other")
    options = parser.parse_args()
    if options.readme:
        options.out, options.size = IMAGES, README_SIZE
    app = QApplication(["Kestrel Chat"])
    app.setApplicationDisplayName("Kestrel Chat")
    for language in options.languages:
        for theme in options.themes:
            if not options.readme or any(name.endswith(f"-{theme}-{language}") for name in shown_in_readme()):
                photograph(options, theme, language)


if __name__ == "__main__":
    main()
