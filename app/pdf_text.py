"""The text of a PDF file, taken out by pypdf in a process of its own.

A PDF is a program of sorts: some unpack to gigabytes, some keep a reader busy for ever, and pure Python holds
the lock that the window needs. A process can be bounded in memory and ended at any time, and what goes wrong
in it goes wrong there. Its half of this file is app/pdf_reader.py.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from app.pdf_reader import MAX_PAGES
from engine.errors import Cancelled, EngineError

PDF_MARK = b"%PDF-"
PDF_MARK_WITHIN = 1024  # bytes: readers look for it there, since some files begin with other things
MAX_PDF_BYTES = 50_000_000
TIMEOUT_SECONDS = 60.0
_POLL_SECONDS = 0.05  # until a cancel is seen
_READER = Path(__file__).with_name("pdf_reader.py")


class PdfError(EngineError):
    """The text of this PDF can't be had."""

    code = "attachment-refused"


@dataclass(frozen=True)
class PdfText:
    text: str
    pages: int


def pdf_text(
    data: bytes,
    name: str,
    cancel: threading.Event | None = None,
    *,
    timeout_seconds: float = TIMEOUT_SECONDS,
) -> PdfText:
    """The text of all pages, one below the other. Raises PdfError with a sentence, or Cancelled."""
    process = _start(name)
    output: list[bytes] = []
    talk = threading.Thread(target=lambda: output.append(_talk(process, data)), daemon=True)
    talk.start()
    deadline = time.monotonic() + timeout_seconds
    try:
        while talk.is_alive():
            talk.join(_POLL_SECONDS)
            if cancel is not None and cancel.is_set():
                raise Cancelled
            if time.monotonic() > deadline:
                raise PdfError(
                    f"Reading “{name}” took longer than {timeout_seconds:.0f} seconds.",
                    "Copy the text that matters out of it, or attach fewer of its pages.",
                )
    finally:
        process.kill()
        talk.join()  # its pipes are closed now
        process.wait()
    return _read_answer(output[0] if output else b"", name)


def _start(name: str) -> subprocess.Popen[bytes]:
    """-P: modules beside the reader's file don't stand in for those of the library."""
    flags = getattr(subprocess, "CREATE_NO_WINDOW", 0)
    try:
        return subprocess.Popen(
            [sys.executable, "-P", str(_READER)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "PYTHONIOENCODING": "utf-8"},
            creationflags=flags,
        )
    except OSError as error:
        raise PdfError(
            f"“{name}” can't be read, because no process could be started: {error.strerror or error}.",
            "Close other programs and try again.",
        ) from error


def _talk(process: subprocess.Popen[bytes], data: bytes) -> bytes:
    """Hands the file in and takes the answer. A reader that ends early leaves what it said."""
    try:
        answer, _ = process.communicate(data)
    except (OSError, ValueError):  # it was ended meanwhile, and its pipes with it
        return b""
    return answer


def _read_answer(answer: bytes, name: str) -> PdfText:
    try:
        said: Any = json.loads(answer)
    except ValueError:  # it was ended by the system: out of memory, or worse
        said = {}
    if isinstance(said, dict) and isinstance(said.get("text"), str) and isinstance(said.get("pages"), int):
        return PdfText(said["text"], said["pages"])
    problem = said.get("problem") if isinstance(said, dict) else None
    raise PdfError(*_told(str(problem), name))


def _told(problem: str, name: str) -> tuple[str, str]:
    """What the reader's word for a problem means, and what can be done about it."""
    match problem:
        case "encrypted":
            return f"“{name}” is encrypted.", "Save a copy of it without a password and attach that."
        case "no-text":
            return (
                f"“{name}” holds no text; its pages are pictures, perhaps.",
                "Have a program for text recognition read it first.",
            )
        case "too-long":
            return (
                f"“{name}” has more than {MAX_PAGES:,} pages, the most that are read.",
                "Print the pages that matter into a PDF of their own.",
            )
        case "too-much":
            return (
                f"“{name}” holds more text than is attached.",
                "Print the pages that matter into a PDF of their own.",
            )
        case "no-library":
            return (
                "PDF files can't be read, because the library pypdf is not installed.",
                "Install it, or copy the text out of the file.",
            )
    return (
        f"“{name}” is damaged, or no PDF that can be read.",
        "Open it in a PDF reader and save or print it into a new PDF.",
    )
