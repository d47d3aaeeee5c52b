"""Files become text, or a sentence that says why not."""

from __future__ import annotations

import codecs
import os
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pdf_files import pdf_bytes

from app import file_text
from app.attachments import Attachment
from app.file_text import AttachmentError, decoded, read_attachment
from engine.errors import Cancelled, EngineError

SAMPLE = "Kestrel 红隼 🦅\nsecond line\n"


def made(folder: Path, data: bytes, name: str = "notes.txt") -> Path:
    path = folder / name
    path.write_bytes(data)
    return path


def refusal(path: Path) -> str:
    with pytest.raises(EngineError) as refused:
        read_attachment(path)
    assert refused.value.code == "attachment-refused"
    assert refused.value.hint
    return refused.value.message


@pytest.mark.parametrize(
    "data",
    [
        SAMPLE.encode(),
        SAMPLE.encode("utf-8-sig"),
        codecs.BOM_UTF16_LE + SAMPLE.encode("utf-16-le"),
        codecs.BOM_UTF16_BE + SAMPLE.encode("utf-16-be"),
        SAMPLE.replace("\n", "\r\n").encode(),
        SAMPLE.replace("\n", "\r").encode("utf-16"),
    ],
)
def test_text_is_the_same_in_every_encoding_and_with_every_line_end(tmp_path: Path, data: bytes) -> None:
    assert read_attachment(made(tmp_path, data)) == Attachment("notes.txt", SAMPLE)


@pytest.mark.parametrize(
    "data",
    [
        "Grüße aus Köln".encode("latin-1"),
        "红隼".encode("gb18030"),
        SAMPLE.encode("utf-32"),
        codecs.BOM_UTF16_LE + b"a",  # half a character
        codecs.BOM_UTF16_LE + b"\x00\xd8a\x00",  # half a pair
    ],
)
def test_another_encoding_is_told_and_never_guessed(tmp_path: Path, data: bytes) -> None:
    assert refusal(made(tmp_path, data)) == (
        "“notes.txt” is neither UTF-8 nor UTF-16 with a byte order mark."
    )


@pytest.mark.parametrize(
    "data", [b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR", b"\x7fELF\x02\x01\x01\0", b"text\0and more", bytes(range(256))]
)
def test_what_is_no_text_is_refused(tmp_path: Path, data: bytes) -> None:
    assert refusal(made(tmp_path, data, "picture.png")) == "“picture.png” holds no text that could be read."


@pytest.mark.parametrize("data", [b"", b" \n\t", codecs.BOM_UTF8, codecs.BOM_UTF16_LE])
def test_an_empty_file_is_refused(tmp_path: Path, data: bytes) -> None:
    assert refusal(made(tmp_path, data)) == "“notes.txt” is empty."


def test_a_file_of_the_largest_size_is_read_and_one_byte_more_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_text, "MAX_TEXT_BYTES", 1_000)
    assert len(read_attachment(made(tmp_path, b"a" * 1_000)).text) == 1_000
    assert "the most that is attached" in refusal(made(tmp_path, b"a" * 1_001))


def test_a_folder_a_pipe_and_a_missing_file_are_sentences(tmp_path: Path) -> None:
    assert refusal(tmp_path) == f"“{tmp_path.name}” is a folder."
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    assert refusal(pipe) == "“pipe” is no ordinary file."
    assert "can't be read" in refusal(tmp_path / "gone.txt")


def test_a_file_that_is_given_up_is_not_read_to_its_end(tmp_path: Path) -> None:
    cancel = threading.Event()
    cancel.set()
    with pytest.raises(Cancelled):
        read_attachment(made(tmp_path, SAMPLE.encode()), cancel)


def test_a_pdf_is_known_by_what_it_holds_not_by_its_name(tmp_path: Path) -> None:
    path = made(tmp_path, pdf_bytes(["First page", "Second page"]), "paper.txt")
    assert read_attachment(path) == Attachment("paper.txt", "First page\n\nSecond page", 2)
    assert read_attachment(made(tmp_path, b"no PDF", "a.pdf")).text == "no PDF"


@given(st.binary(max_size=200))
def test_any_bytes_are_text_without_zeros_or_a_sentence(data: bytes) -> None:
    try:
        text = decoded(data, "x")
    except AttachmentError:
        return
    assert "\0" not in text
    assert "\r" not in text
    text.encode("utf-8")
