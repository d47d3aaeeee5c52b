"""PDF files are read within bounds, in another process; what can't be read is a sentence."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from pdf_files import pdf_bytes

from app import pdf_reader, pdf_text
from app.pdf_text import PdfError, PdfText
from engine.errors import Cancelled


def refusal(data: bytes, **options) -> str:
    with pytest.raises(PdfError) as refused:
        pdf_text.pdf_text(data, "paper.pdf", **options)
    assert refused.value.hint
    return refused.value.message


def said_of(data: bytes) -> str:
    """The text, or why there is none."""
    try:
        return pdf_text.pdf_text(data, "paper.pdf").text
    except PdfError as error:
        return error.message


def test_the_pages_come_in_their_order() -> None:
    assert pdf_text.pdf_text(pdf_bytes(["One", "", "Three"]), "paper.pdf") == PdfText("One\n\nThree", 3)


def test_a_password_is_asked_for_in_words() -> None:
    assert refusal(pdf_bytes(["Secret"], password="open sesame")) == "“paper.pdf” is encrypted."


def test_a_file_that_only_forbids_printing_is_read() -> None:
    assert pdf_text.pdf_text(pdf_bytes(["Free"], owner="owner"), "paper.pdf").text == "Free"


@pytest.mark.parametrize(
    "data",
    [b"%PDF-1.7\n", b"%PDF-1.4\ntrailer << /Root 1 0 R >>\nstartxref\n0\n%%EOF", b"%PDF-" + b"<<" * 9_000],
)
def test_a_broken_file_is_a_sentence(data: bytes) -> None:
    assert refusal(data) == "“paper.pdf” is damaged, or no PDF that can be read."


def test_a_file_that_was_cut_off_is_a_sentence_or_its_text() -> None:
    whole = pdf_bytes(["All of it"])
    for length in (20, len(whole) // 2, len(whole) - 30):
        assert said_of(whole[:length]) in ("All of it", "“paper.pdf” is damaged, or no PDF that can be read.")


def test_pages_without_text_are_a_sentence() -> None:
    assert refusal(pdf_bytes(["", ""])).startswith("“paper.pdf” holds no text")


def test_a_file_has_so_many_pages_and_so_much_text_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pdf_reader, "MAX_PAGES", 2)
    monkeypatch.setattr(pdf_reader, "MAX_CHARACTERS", 6)
    assert pdf_reader.text_of(pdf_bytes(["abc", "def"])) == ("abc\n\ndef", 2)
    with pytest.raises(pdf_reader.ProblemError, match="too-long"):
        pdf_reader.text_of(pdf_bytes(["a", "b", "c"]))
    with pytest.raises(pdf_reader.ProblemError, match="too-much"):
        pdf_reader.text_of(pdf_bytes(["abcd", "def"]))


def test_every_problem_of_the_reader_has_a_sentence_of_its_own() -> None:
    sentences = set()
    for problem in ("encrypted", "broken", "no-text", "too-long", "too-much", "no-library"):
        with pytest.raises(PdfError) as refused:
            pdf_text._read_answer(f'{{"problem": "{problem}"}}'.encode(), "paper.pdf")
        assert refused.value.message.endswith(".")
        assert refused.value.hint.endswith(".")
        sentences.add(refused.value.message)
    assert len(sentences) == 6


@pytest.fixture
def endless_reader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reader = tmp_path / "reader.py"
    reader.write_text("import time\nwhile True:\n    time.sleep(60)\n")
    monkeypatch.setattr(pdf_text, "_READER", reader)


@pytest.mark.usefixtures("endless_reader")
def test_a_reader_that_does_not_end_is_ended() -> None:
    assert "took longer than" in refusal(pdf_bytes(["a"]), timeout_seconds=0.2)


@pytest.mark.usefixtures("endless_reader")
def test_giving_a_file_up_ends_its_reader() -> None:
    cancel = threading.Event()
    cancel.set()
    with pytest.raises(Cancelled):
        pdf_text.pdf_text(b"%PDF-" + b"x" * 10_000_000, "paper.pdf", cancel)


def test_a_reader_that_is_killed_is_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reader = tmp_path / "reader.py"
    reader.write_text("import os, signal\nos.kill(os.getpid(), signal.SIGKILL)\n")
    monkeypatch.setattr(pdf_text, "_READER", reader)
    assert refusal(pdf_bytes(["a"])) == "“paper.pdf” is damaged, or no PDF that can be read."
