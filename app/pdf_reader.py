"""Reads a PDF from standard input and writes its text to standard output, as one line of JSON:
{"text": …, "pages": …} or {"problem": …}. Run by app/pdf_text.py as a program; imports nothing of the
project, so that it starts quickly.
"""

from __future__ import annotations

import io
import json
import sys

MAX_PAGES = 1_000
MAX_CHARACTERS = 5_000_000  # of text
MEMORY_BYTES = 2 << 30  # that the reader may take; files that unpack to more end it


class ProblemError(Exception):
    """Its only argument is a name that app/pdf_text.py has a sentence for."""


def text_of(data: bytes) -> tuple[str, int]:
    """Text and number of pages. Raises ProblemError, and whatever pypdf raises for a broken file."""
    try:
        from pypdf import PasswordType, PdfReader
    except ImportError as error:
        raise ProblemError("no-library") from error
    reader = PdfReader(io.BytesIO(data))
    # Many files are encrypted with no password at all, only to forbid printing.
    if reader.is_encrypted and reader.decrypt("") is PasswordType.NOT_DECRYPTED:
        raise ProblemError("encrypted")
    if len(reader.pages) > MAX_PAGES:
        raise ProblemError("too-long")
    texts: list[str] = []
    num_characters = 0
    for page in reader.pages:
        text = page.extract_text().replace("\0", "").strip()
        num_characters += len(text)
        if num_characters > MAX_CHARACTERS:
            raise ProblemError("too-much")
        texts.append(text)
    if not num_characters:
        raise ProblemError("no-text")
    joined = "\n\n".join(text for text in texts if text)
    return joined.encode("utf-16", "surrogatepass").decode("utf-16", "replace"), len(texts)


def _limit_memory() -> None:
    try:
        import resource
    except ImportError:  # Windows has no such limit; there the time alone is bounded
        return
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))


def main() -> None:
    _limit_memory()
    try:
        text, pages = text_of(sys.stdin.buffer.read())
        answer: dict[str, str | int] = {"text": text, "pages": pages}
    except ProblemError as problem:
        answer = {"problem": str(problem)}
    except Exception as error:  # noqa: BLE001  (a broken file makes pypdf raise nearly anything; it is told)
        needs_library = type(error).__name__ == "DependencyError"  # for strong encryption
        answer = {"problem": "encrypted" if needs_library else "broken"}
    sys.stdout.write(json.dumps(answer))


if __name__ == "__main__":
    main()
