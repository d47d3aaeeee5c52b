"""Pictures of the window for the documentation, made with a real model on whatever display there is.

    python packaging/screenshots.py MODEL [--out docs/images] [--size 1100x740] [--dark]

Writes empty.png, card.png, loading.png, mid-answer.png, versions.png and error.png (with --dark:
empty-dark.png, …). On a machine without a screen, start it under a virtual X server:
`xvfb-run -s "-screen 0 1600x1200x24" python …`.
Nothing of the person's own settings or conversations is read or changed.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from PySide6.QtCore import QEventLoop, QTimer
from PySide6.QtGui import QPixmap
from PySide6.QtWidgets import QApplication

from app.controller import ChatController, ModelPhase, ModelState
from app.paths import AppPaths
from app.settings import Theme as ThemeChoice
from app.ui.main_window import MainWindow

QUESTION = "Explain in a few short points why the sky is blue, then give a one-line Python example."
ENOUGH_CHARACTERS = 260  # of the answer, for the picture in the middle of it
TOKENIZER = {
    "version": "1.0",
    "added_tokens": [],
    "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "use_regex": True},
    "decoder": {"type": "ByteLevel"},
    "model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "c": 2}, "merges": []},
}
TIMEOUT_MS = 300_000
SETTLE_MS = 300  # for hover effects and the last layout pass


class Photographer:
    """Drives the window through its states and takes a picture of each."""

    def __init__(self, window: MainWindow, controller: ChatController, folder: Path, suffix: str) -> None:
        self._window = window
        self._controller = controller
        self._folder = folder
        self._suffix = suffix

    def take(self, name: str) -> None:
        """What the display shows of the window; where the display doesn't say (Wayland), what Qt draws."""
        self._window.repaint()
        QApplication.processEvents()
        picture = self._window.screen().grabWindow(self._window.winId())
        if picture.isNull() or picture.width() < self._window.width():
            picture = self._window.grab()
        self._save(picture, name)

    def run(self, model: Path, broken: Path) -> None:
        self._settle()
        self.take("empty")
        self._window.loader.pick(model)
        self._wait(self._controller.model_inspected)
        self._settle()
        self.take("card")
        self._load()
        self._answer()
        self._versions()
        self._window.show_models()
        self._window.loader.pick(broken)
        self._wait(self._controller.model_inspected)
        self._settle()
        self.take("error")

    def _load(self) -> None:
        taken = False

        def on_state(state: ModelState) -> None:
            nonlocal taken
            fraction = state.progress.fraction if state.progress is not None else None
            if not taken and fraction is not None and fraction >= 0.4:
                taken = True
                self.take("loading")

        self._controller.model_state_changed.connect(on_state)
        self._window.loader.card.load_button.click()
        self._wait(self._controller.model_state_changed, lambda state: state.phase is not ModelPhase.LOADING)
        self._controller.model_state_changed.disconnect(on_state)
        if self._controller.model_state.phase is not ModelPhase.READY:
            raise SystemExit("The model did not load; see the window's own words with `python -m app MODEL`.")

    def _answer(self) -> None:
        num_characters = 0

        def enough(_conversation: str, _message: str, delta) -> bool:
            nonlocal num_characters
            num_characters += len(delta.text)
            return num_characters >= ENOUGH_CHARACTERS

        self._window.chat.send_requested.emit(QUESTION)
        self._wait(self._controller.answer_extended, enough, or_else=self._controller.answer_finished)
        self.take("mid-answer")
        if self._controller.answering:
            self._controller.stop_answer()
            self._wait(self._controller.answer_finished)

    def _versions(self) -> None:
        """A second version of the answer, the panel open, and the mouse over the answer's buttons."""
        answer = self._window.chat.transcript.views[-1]
        self._controller.regenerate_answer(answer.message_id)
        self._wait(self._controller.answering_changed, lambda answering: not answering)
        self._window.actions_.toggle_live.trigger()
        self._window.chat.transcript.views[-1].actions_.reveal(True)
        self._settle()
        self.take("versions")
        self._window.actions_.toggle_live.trigger()

    def _wait(self, signal, wanted: Callable[..., bool] = lambda *_: True, *, or_else=None) -> None:
        """Runs the loop until the signal brings what is wanted, or the other signal comes."""
        loop = QEventLoop()

        def on_signal(*arguments) -> None:
            if wanted(*arguments):
                loop.exit(0)

        def on_other(*_: object) -> None:
            loop.exit(0)

        signal.connect(on_signal)
        if or_else is not None:
            or_else.connect(on_other)
        timer = QTimer()
        timer.setSingleShot(True)
        timer.timeout.connect(lambda: loop.exit(1))
        timer.start(TIMEOUT_MS)
        failed = loop.exec()
        signal.disconnect(on_signal)
        if or_else is not None:
            or_else.disconnect(on_other)
        if failed:
            raise SystemExit(f"Nothing happened within {TIMEOUT_MS // 1000} s.")

    def _settle(self) -> None:
        loop = QEventLoop()
        QTimer.singleShot(SETTLE_MS, loop.quit)
        loop.exec()

    def _save(self, picture: QPixmap, name: str) -> None:
        path = self._folder / f"{name}{self._suffix}.png"
        self._folder.mkdir(parents=True, exist_ok=True)
        if not picture.save(str(path)):
            raise SystemExit(f"{path} can't be written.")
        print(path)


def make_broken_model(folder: Path) -> Path:
    """A model folder whose weights were never downloaded."""
    folder.mkdir(parents=True)
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": 2048,
        "intermediate_size": 8192,
        "num_attention_heads": 32,
        "num_hidden_layers": 16,
        "num_key_value_heads": 8,
        "rms_norm_eps": 1e-5,
        "rope_theta": 500000.0,
        "vocab_size": 128256,
        "max_position_embeddings": 131072,
        "tie_word_embeddings": True,
        "bos_token_id": 1,
        "eos_token_id": 2,
    }
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    (folder / "tokenizer.json").write_text(json.dumps(TOKENIZER), encoding="utf-8")
    names = {f"model.layers.{i}.norm": f"model-{i:05}-of-00002.safetensors" for i in (1, 2)}
    index = {"metadata": {"total_size": 128}, "weight_map": names}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index), encoding="utf-8")
    return folder


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("model", type=Path, metavar="MODEL")
    parser.add_argument("--out", type=Path, default=Path("docs/images"), metavar="FOLDER")
    parser.add_argument("--size", default="1100x740", metavar="WIDTHxHEIGHT")
    parser.add_argument("--dark", action="store_true")
    options = parser.parse_args()
    width, height = (int(part) for part in options.size.split("x"))

    app = QApplication(["Kestrel Chat"])
    app.setApplicationDisplayName("Kestrel Chat")
    with tempfile.TemporaryDirectory() as temporary:
        controller = ChatController(AppPaths.under(Path(temporary) / "program"))
        controller.update_settings(theme=ThemeChoice.DARK if options.dark else ThemeChoice.LIGHT)
        window = MainWindow(controller)
        window.resize(width, height)
        window.show()
        controller.start()
        broken = make_broken_model(Path(temporary) / "Llama-3.2-1B-Instruct")
        try:
            photographer = Photographer(window, controller, options.out, "-dark" if options.dark else "")
            photographer.run(options.model.absolute(), broken)
        finally:
            window.close()


if __name__ == "__main__":
    main()
