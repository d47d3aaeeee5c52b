"""Loads the model of a command, so that an interrupt ends it at any time."""

from __future__ import annotations

import argparse
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from engine.checkpoints.model_folder import open_model
from engine.commands.options import engine_config
from engine.engine import Engine
from engine.errors import Cancelled


def load_engine(options: argparse.Namespace) -> Engine:
    """Raises EngineError, and KeyboardInterrupt once the load has come to a place where it can stop."""
    with interrupt_as_event() as interrupted:
        try:
            engine = Engine.load(open_model(options.path), engine_config(options), cancel=interrupted)
        except Cancelled as error:
            raise KeyboardInterrupt from error
    if interrupted.is_set():
        raise KeyboardInterrupt
    return engine


@contextmanager
def interrupt_as_event() -> Iterator[threading.Event]:
    """Within it, the first Ctrl+C sets the event; a second one is a KeyboardInterrupt wherever it comes.

    An exception in the middle of `import torch` is often lost there, or comes out as another one. Handlers
    that aren't Python's own (none at all under nohup) are left as they are, and so are other threads.
    """
    event = threading.Event()

    def note(_: int, __: FrameType | None) -> None:
        if event.is_set():
            raise KeyboardInterrupt
        event.set()

    is_ours = (
        threading.current_thread() is threading.main_thread()
        and signal.getsignal(signal.SIGINT) is signal.default_int_handler
    )
    if not is_ours:
        yield event
        return
    signal.signal(signal.SIGINT, note)
    try:
        yield event
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
