"""The text of a file that a person attaches: read bounded, and refused with a sentence where it is none.

Text is UTF-8 or, with a byte order mark, UTF-16. Nothing else is guessed: a wrong guess would hand the model
other words than the person sees. PDF files are read by app/pdf_text.py, in a process of their own.
"""

from __future__ import annotations

import codecs
import stat
import threading
from pathlib import Path

from app.attachments import MAX_ATTACHMENTS, Attachment, attachment_name
from app.pdf_text import MAX_PDF_BYTES, PDF_MARK, PDF_MARK_WITHIN, pdf_text
from engine.errors import Cancelled, EngineError

MAX_TEXT_BYTES = 5_000_000  # some 1.2 million tokens: more than any context holds
_SAMPLE = 64_000  # bytes that are looked at to tell a text in another encoding from what is no text
_UTF32 = (codecs.BOM_UTF32_LE, codecs.BOM_UTF32_BE)
_UTF16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
_TEXT_CONTROLS = frozenset(b"\t\n\r\f\v\b\x1b")  # what texts, logs of terminals among them, do hold


class AttachmentError(EngineError):
    """This file can't be attached."""

    code = "attachment-refused"


def read_attachment(path: Path, cancel: threading.Event | None = None) -> Attachment:
    """Raises AttachmentError, or Cancelled. Takes as long as the disk does, and a PDF its time."""
    name = attachment_name(path.name)
    try:
        data = _read(path, name)
    except OSError as error:
        raise AttachmentError(
            f"“{name}” can't be read: {error.strerror or error}.",
            "Check that it is still there and that you may read it.",
        ) from error
    if cancel is not None and cancel.is_set():
        raise Cancelled
    if _is_pdf(data):
        read = pdf_text(data, name, cancel)
        return Attachment(name, read.text, read.pages)
    text = decoded(data, name)
    if not text.strip():
        raise AttachmentError(f"“{name}” is empty.", "Choose a file with some text in it.")
    return Attachment(name, text)


def decoded(data: bytes, name: str) -> str:
    """The bytes as text with plain line feeds. Raises AttachmentError."""
    if data.startswith(_UTF32):
        raise _other_encoding(name)
    try:
        text = data.decode("utf-16" if data.startswith(_UTF16) else "utf-8-sig")
    except UnicodeDecodeError as error:
        is_text = data.startswith(_UTF16) or _looks_like_text(data[:_SAMPLE])
        raise (_other_encoding(name) if is_text else _no_text(name)) from error
    if "\0" in text:  # valid UTF-8, and the surest sign of something that isn't text
        raise _no_text(name)
    return text.replace("\r\n", "\n").replace("\r", "\n")


def _read(path: Path, name: str) -> bytes:
    """The whole file; a byte more than is allowed is never read."""
    info = path.stat()
    if stat.S_ISDIR(info.st_mode):
        raise AttachmentError(
            f"“{name}” is a folder.", f"Choose the files in it, up to {MAX_ATTACHMENTS} for a message."
        )
    if not stat.S_ISREG(info.st_mode):  # reading a pipe or a device could take for ever
        raise AttachmentError(f"“{name}” is no ordinary file.", "Choose a text file or a PDF.")
    with path.open("rb") as file:
        data = file.read(MAX_TEXT_BYTES + 1)
        limit = MAX_PDF_BYTES if _is_pdf(data) else MAX_TEXT_BYTES
        if len(data) > MAX_TEXT_BYTES and limit > MAX_TEXT_BYTES:
            data += file.read(limit + 1 - len(data))
    if len(data) > limit:
        raise AttachmentError(
            f"“{name}” has more than {limit // 1_000_000} MB, the most that is attached.",
            "Copy the part that matters into a file of its own.",
        )
    return data


def _is_pdf(data: bytes) -> bool:
    return PDF_MARK in data[:PDF_MARK_WITHIN] and not data.startswith(_UTF16)


def _looks_like_text(sample: bytes) -> bool:
    """In some encoding with one byte a character, or more."""
    return not any(byte < 32 and byte not in _TEXT_CONTROLS for byte in sample)


def _other_encoding(name: str) -> AttachmentError:
    return AttachmentError(
        f"“{name}” is neither UTF-8 nor UTF-16 with a byte order mark.",
        "Save it as UTF-8 and attach it again.",
    )


def _no_text(name: str) -> AttachmentError:
    return AttachmentError(
        f"“{name}” holds no text that could be read.", "Attach a text, Markdown, code or PDF file."
    )
