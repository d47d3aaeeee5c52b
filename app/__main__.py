"""`python -m app [MODEL]`: opens the window.

What is imported at the top is what the first window needs; torch comes in later, on the engine's thread.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from engine.version import VERSION

if TYPE_CHECKING:
    from PySide6.QtWidgets import QApplication

    from app.ui.main_window import MainWindow

NAME = "Kestrel Chat"
DESKTOP_FILE = "kestrel-chat"  # without ".desktop"; how Linux desktops find the window's icon


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the program and returns its exit code."""
    options = _parse(arguments)

    from PySide6.QtGui import QGuiApplication
    from PySide6.QtWidgets import QApplication

    QGuiApplication.setDesktopFileName(DESKTOP_FILE)
    app = QApplication([NAME])
    app.setApplicationName(DESKTOP_FILE)
    app.setApplicationDisplayName(NAME)
    app.setApplicationVersion(VERSION)
    return _run(app, options)


def _run(app: QApplication, options: argparse.Namespace) -> int:
    from PySide6.QtCore import QTimer

    from app.controller import ChatController
    from app.fault_reporter import FaultReporter, start_log, watch_for_crashes
    from app.garbage import GarbageCollector
    from app.paths import AppPaths
    from app.threads import share_python_fairly
    from app.ui.icons import app_icon
    from app.ui.window_keeper import WindowKeeper
    from app.wake_up import WakeUp

    share_python_fairly()
    paths = AppPaths.under(options.data_dir) if options.data_dir else AppPaths.default()
    log_problem = start_log(paths.log_file)
    crash_file = watch_for_crashes(paths.log_folder / "crash.log")
    logging.getLogger(__name__).info("%s %s", NAME, VERSION)
    wake_up = WakeUp()
    wake_up.listen_to_signals()
    faults = FaultReporter(wake_up, log_file=paths.log_file)
    faults.install()

    app.setWindowIcon(app_icon())
    controller = ChatController(paths)
    garbage = GarbageCollector(app)
    controller.model_state_changed.connect(garbage.watch)
    keeper = WindowKeeper(controller)
    faults.reported.connect(keeper.show_fault)
    wake_up.end_asked.connect(keeper.close)
    keeper.first_shown.connect(lambda: logging.getLogger(__name__).info("the window is on the screen"))
    if log_problem is not None:
        keeper.window.show_notice(log_problem)
    if options.exit_after_show:
        keeper.first_shown.connect(lambda: QTimer.singleShot(0, lambda: _report_start(keeper.window)))
    else:
        # Only once the window has been drawn, so that nothing competes with that.
        keeper.first_shown.connect(lambda: QTimer.singleShot(0, lambda: controller.start(options.model)))
    keeper.show()
    code = app.exec()

    garbage.close()
    faults.uninstall()
    wake_up.close()
    logging.shutdown()
    if not keeper.closed_cleanly:
        os._exit(code)  # a thread still runs, and Qt aborts when one is destroyed
    if crash_file is not None:
        import faulthandler

        faulthandler.disable()
        crash_file.close()
    return code


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m app", description="Chat with a language model that runs on this computer."
    )
    parser.add_argument(
        "model", nargs="?", type=Path, metavar="MODEL", help="a model folder or GGUF file to load at once"
    )
    parser.add_argument("--version", action="version", version=f"{NAME} {VERSION}")
    parser.add_argument(
        "--data-dir", type=Path, metavar="FOLDER", help="keep conversations, settings and log in this folder"
    )
    parser.add_argument("--exit-after-show", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.model is not None:
        options.model = options.model.absolute()  # the list of recent models outlives this working directory
    return options


def _report_start(window: MainWindow) -> None:
    """For the benchmark of the start: prints one JSON line and ends."""
    import psutil

    figures = {
        "seconds_to_first_show": round(seconds_since_process_start(), 3),
        "seconds_without_a_core": round(seconds_without_a_core(), 3),
        "resident_bytes": psutil.Process().memory_info().rss,
        "torch_imported": "torch" in sys.modules,
    }
    print(json.dumps(figures), flush=True)
    window.close()


def seconds_since_process_start() -> float:
    """Seconds since the system started this process, the interpreter's own start included."""
    stat = Path("/proc/self/stat")
    if stat.exists():
        # psutil adds the boot time, which Linux gives in whole seconds; both clocks here count from boot.
        fields = stat.read_text().rpartition(")")[2].split()
        started = int(fields[19]) / os.sysconf("SC_CLK_TCK")
        return time.clock_gettime(time.CLOCK_BOOTTIME) - started
    import psutil

    return time.time() - psutil.Process().create_time()


def seconds_without_a_core() -> float:
    """For how long this thread could have gone on so far, but others had the cores. 0 where
    the system doesn't tell.
    """
    statistics = Path("/proc/thread-self/schedstat")
    return int(statistics.read_text().split()[1]) / 1e9 if statistics.exists() else 0.0


if __name__ == "__main__":
    sys.exit(main())
