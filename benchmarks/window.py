"""What the window takes: the start, memory, stalls while an answer streams, a long conversation, the panel.

    PYTHONPATH=.:tests python benchmarks/window.py [--repeats 5] [--tokens 10000] [--platform offscreen]

Every part is a process of its own. Without `--platform` the window is opened where the environment says: on
the screen, or that of Xvfb. Times of the window's thread are its processor time, which other programs of the
machine don't add to; the first window is on the clock.

- first window: from the start of the process until the window has been drawn, medians; one start before them
  has brought the files into the system's cache. "waited" is how long of it others had the cores;
- memory: resident, some seconds after the window has come, without a model;
- streaming: an answer of so many tokens, with tables, code and formulas, from an engine that gives 500 a
  second, with the live panel open and everything to show in it. "turn" is the longest that the window's
  thread computed between two turns of its event loop, "stall" the longest that the loop did not come round,
  with what other threads of the program kept it from;
- long conversation: from the click until the end of 2,000 messages has been drawn, and the longest turn while
  they are scrolled through;
- live panel: four times a second all of its figures are new and drawn. The share of a core.

The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fake_engine import EngineScript
    from PySide6.QtWidgets import QApplication

    from app.ui.main_window import MainWindow

_MEASURE = "--measure"  # for the processes that this program starts
_PARTS = ("streaming", "stalls", "conversation", "panel")
_TOKENS_PER_SECOND = 500
_NUM_MESSAGES = 2_000
_SETTLING_SECONDS = 5.0  # until memory is looked at
_PANEL_STEPS = 200
_STEP_SECONDS = 0.25
_ROWS = (
    ("first window", "first_window_seconds", "{:.2f} s", "under 1 s"),
    ("of it, waited for a core", "first_window_waited_seconds", "{:.2f} s", ""),
    ("memory without a model", "resident_bytes", "{:.0f} MB", "under 250 MB"),
    ("streaming: longest turn", "streaming_turn_ms", "{:.0f} ms", "under 50 ms"),
    ("streaming: longest stall", "streaming_stall_ms", "{:.0f} ms", "under 50 ms"),
    ("streaming: share of a core", "streaming_share", "{:.0%}", ""),
    ("2,000 messages open", "opening_ms", "{:.0f} ms", "under 300 ms"),
    ("scrolling: longest turn", "scrolling_turn_ms", "{:.0f} ms", "under 50 ms"),
    ("live panel: share of a core", "panel_share", "{:.2%}", "under 1%"),
)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=5, help="starts after the first")
    parser.add_argument("--tokens", type=int, default=10_000, help="of the answer")
    parser.add_argument("--platform", help="of Qt: offscreen, xcb, wayland")
    parser.add_argument(_MEASURE, choices=_PARTS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.platform:
        os.environ["QT_QPA_PLATFORM"] = options.platform
    if options.measure:
        print(json.dumps(_measure(options.measure, options.tokens)))
        return
    found: dict[str, Any] = {**measure_starts(options.repeats), "resident_bytes": measure_memory()}
    for part in _PARTS:
        found |= _last_line([sys.executable, __file__, _MEASURE, part, "--tokens", str(options.tokens)])
    print(table(found))
    print(json.dumps({"tokens": options.tokens, "repeats": options.repeats, **found}))


def measure_starts(repeats: int) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "app", "--data-dir", folder, "--exit-after-show"]
        starts = [_last_line(command) for _ in range(repeats + 1)][1:]
    return {
        "first_window_seconds": statistics.median(one["seconds_to_first_show"] for one in starts),
        "first_window_waited_seconds": statistics.median(one["seconds_without_a_core"] for one in starts),
    }


def measure_memory() -> int:
    """Bytes that are resident of the program as a person starts it."""
    import psutil

    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log" / "kestrel-chat.log"
        process = subprocess.Popen([sys.executable, "-m", "app", "--data-dir", folder])
        try:
            while not (log.exists() and "window is on the screen" in log.read_text(encoding="utf-8")):
                if process.poll() is not None:
                    raise SystemExit("The program has ended before its window came.")
                time.sleep(0.05)
            time.sleep(_SETTLING_SECONDS)
            return int(psutil.Process(process.pid).memory_info().rss)
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait()


def _last_line(command: list[str]) -> dict[str, Any]:
    """What a process has found, which it prints as JSON."""
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    if run.returncode:
        raise SystemExit(run.stderr)
    found: dict[str, Any] = json.loads(run.stdout.splitlines()[-1])
    return found


def _measure(part: str, num_tokens: int) -> dict[str, float]:
    """In a process of its own."""
    with tempfile.TemporaryDirectory() as folder, _open_window(Path(folder)) as (app, window, script):
        if part == "streaming":
            return measure_streaming(app, window, script, num_tokens)
        if part == "stalls":
            return measure_stalls(app, window, script, num_tokens)
        return measure_conversation(app, window) if part == "conversation" else measure_panel(app, window)


@contextmanager
def _open_window(folder: Path) -> Iterator[tuple[QApplication, MainWindow, EngineScript]]:
    """The whole window on an engine that has a model, as the program opens it, its panel included."""
    from fake_engine import EngineScript, show_everything
    from PySide6.QtWidgets import QApplication

    from app.controller import ChatController, ModelPhase
    from app.garbage import GarbageCollector
    from app.paths import AppPaths
    from app.threads import share_python_fairly
    from app.ui.main_window import MainWindow

    share_python_fairly()
    app = QApplication(["benchmark"])
    script = EngineScript()
    show_everything(script)
    controller = ChatController(AppPaths.under(folder), engine_factory=script.load)
    garbage = GarbageCollector(app)
    window = MainWindow(controller)
    window.resize(1280, 860)
    window.show()
    controller.start(None)
    controller.load_model(folder)
    _run_until(app, lambda: controller.model_state.phase is ModelPhase.READY)
    window.show_chat()
    if not window.panel.isVisible():
        window.actions_.toggle_live.trigger()
    _run_for(app, 0.5)
    yield app, window, script
    window.close()
    garbage.close()


def measure_streaming(
    app: QApplication, window: MainWindow, script: EngineScript, num_tokens: int
) -> dict[str, float]:
    from long_chats import PacedTokens, long_answer
    from stall_meter import TurnMeter

    from app.ui.formulas import formula_store

    script.pieces = list(long_answer(200))
    _ask(app, window)  # what is loaded with the first answer is there
    script.pieces = PacedTokens(long_answer(num_tokens), _TOKENS_PER_SECOND)
    turns = TurnMeter()
    began, computed = time.perf_counter(), time.thread_time()
    _ask(app, window)
    seconds, computed = time.perf_counter() - began, time.thread_time() - computed
    _run_until(app, lambda: not formula_store().busy)
    return {"streaming_turn_ms": turns.stop(), "streaming_share": computed / seconds}


def measure_stalls(
    app: QApplication, window: MainWindow, script: EngineScript, num_tokens: int
) -> dict[str, float]:
    """Apart from the others: it looks at every thread, which takes a tenth of a core by itself."""
    from long_chats import PacedTokens, long_answer
    from stall_meter import StallMeter

    from app.ui.formulas import formula_store

    script.pieces = list(long_answer(200))
    _ask(app, window)
    script.pieces = PacedTokens(long_answer(num_tokens), _TOKENS_PER_SECOND)
    stalls = StallMeter()
    stalls.start()
    _ask(app, window)
    _run_until(app, lambda: not formula_store().busy)
    return {"streaming_stall_ms": stalls.stop()}


def _ask(app: QApplication, window: MainWindow) -> None:
    done: list[object] = []
    connection = window.controller.answer_finished.connect(lambda *_: done.append(1))
    window.chat.send_requested.emit("Say it")
    _run_until(app, lambda: bool(done))
    window.controller.answer_finished.disconnect(connection)


def measure_conversation(app: QApplication, window: MainWindow) -> dict[str, float]:
    import long_chats
    from stall_meter import TurnMeter

    shown = long_chats.conversation(_NUM_MESSAGES)
    transcript = window.chat.transcript
    _run_for(app, 0.5)
    began = time.thread_time()
    window.chat.show_conversation(shown)
    while transcript.view(shown.messages[-1].id) is None or transcript.view(shown.messages[-2].id) is None:
        app.processEvents()
    window.chat.grab()
    opening = time.thread_time() - began
    _run_until(app, lambda: not transcript.work.busy)
    bar = transcript.verticalScrollBar()
    turns = TurnMeter()
    for share in (0.9, 0.5, 0.1, 0.0, 0.7):
        bar.setValue(round(bar.maximum() * share))
        for _ in range(60):
            app.processEvents()
            bar.setValue(bar.value() - 90)
    return {"opening_ms": 1000 * opening, "scrolling_turn_ms": turns.stop()}


def measure_panel(app: QApplication, window: MainWindow) -> dict[str, float]:
    from app.engine_commands import SlotTable
    from engine.generation import PrefillStats

    panel, table = window.panel, window.controller.slots
    panel.begin_answer("chat-1")
    panel.show_prefill(PrefillStats(1010, 10, 20.0))
    _run_for(app, 0.5)
    costs = []
    for number in range(_PANEL_STEPS):
        began = time.thread_time()
        for _ in range(8):  # as often as text comes in, some 30 times a second
            panel.count_tokens(5 + number % 7)
            panel.set_context_used(1000 + number)
        metrics = table.metrics
        memory = replace(metrics.memory, cache_bytes=metrics.memory.cache_bytes + number)
        slots = (replace(table.slots[0], tokens=1234 + number), *table.slots[1:])
        panel.set_slots(SlotTable(slots, 125_000_000 + number, replace(metrics, memory=memory)))
        panel._step()
        app.processEvents()
        costs.append(time.thread_time() - began)
    return {"panel_share": statistics.median(costs) / _STEP_SECONDS}


def _run_until(app: QApplication, is_so: Callable[[], bool]) -> None:
    from PySide6.QtCore import QEventLoop

    flags = QEventLoop.ProcessEventsFlag
    while not is_so():
        app.processEvents(flags.AllEvents | flags.WaitForMoreEvents)


def _run_for(app: QApplication, seconds: float) -> None:
    from PySide6.QtCore import QTimer

    done: list[object] = []
    QTimer.singleShot(round(1000 * seconds), lambda: done.append(1))
    _run_until(app, lambda: bool(done))


def table(found: dict[str, Any]) -> str:
    lines = ["| | | is to be |", "| --- | --- | --- |"]
    for words, name, form, goal in _ROWS:
        value = found[name] / 1e6 if name.endswith("_bytes") else found[name]
        lines.append(f"| {words} | {form.format(value)} | {goal} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
