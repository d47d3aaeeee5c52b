"""Texts that a window has to bear: an answer of many tokens with everything that Markdown has, and a
conversation of many messages.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime

from app.conversations import AnswerStats, Conversation, ConversationSummary, Message, MessageStatus

TOKEN_SIZE = 4  # characters
WHEN = datetime(2026, 1, 2, tzinfo=UTC)
STATS = AnswerStats(1200, 1000, 0.5, 99, 9.9, "end", "cpu")
ANSWER = (
    "# Title\n\nSome words with **strength**, `code` and $x^2$ that fill more than a line of the column.\n\n"
    "1. One\n2. Two\n\n```python\ndef f(x):\n    return x  # a comment\n```\n\n"
    "| a | b |\n|---|---|\n| 1 | 2 |\n\n"
    "And some words at the end of it.\n"
)
_PART = """## Part {n}

Some words with **strength**, `code`, a [link](https://example.org/{n}) and $x_{{{n}}}^2 + \\alpha$ that fill
more than a line of the column, and then some more of them.

- [x] done with $\\frac{{{n}}}{{2}}$
- [ ] not done
  1. inner *item*

```{language}
def f{n}(x):
    return [x * {n} for _ in range(10)]  # a comment
```

$$
\\sum_{{i=1}}^{{{n}}} i
=
\\frac{{{n}({n}+1)}}{{2}}
$$

| a | b |
|---|--:|
| $y_{{{n}}}$ | {n} |

> Quoted <b>tag</b> & more
"""
_LANGUAGES = ("python", "javascript", "scala", "julia", "no-such-language")
_LONG_EVERY = 20  # parts: then comes a long piece of code, a long table, and a long paragraph


def long_answer(num_tokens: int) -> list[str]:
    """Its tokens, as they come."""
    text = ""
    number = 0
    while len(text) < num_tokens * TOKEN_SIZE:
        text += _PART.format(n=number, language=_LANGUAGES[number % len(_LANGUAGES)])
        if number % _LONG_EVERY == _LONG_EVERY // 2:
            text += _long_parts()
        number += 1
    return [text[start : start + TOKEN_SIZE] for start in range(0, num_tokens * TOKEN_SIZE, TOKEN_SIZE)]


def _long_parts() -> str:
    code = "".join(f"    value_{n} = compute('{n}', [x for x in range({n})])  # why\n" for n in range(60))
    rows = "".join(f"| {n} | **{n * n}** and $z_{{{n}}}$ | some words |\n" for n in range(30))
    words = "and so it goes on with *words*, and more of them, " * 40
    return f"```python\ndef f():\n{code}```\n\n| n | square | |\n|--:|---|---|\n{rows}\n{words}\n\n"


class PacedTokens:
    """Tokens as a real engine gives them: each takes its time."""

    def __init__(self, tokens: Sequence[str], per_second: float) -> None:
        self._tokens = tokens
        self._per_second = per_second

    def __iter__(self) -> Iterator[str]:
        began = time.perf_counter()
        for number, token in enumerate(self._tokens):
            early = began + number / self._per_second - time.perf_counter()
            if early > 0:
                time.sleep(early)
            yield token


def message(number: int, text: str = "") -> Message:
    """Of a long conversation: a question, if the number is even, or an answer."""
    is_answer = number % 2 == 1
    text = text or (f"{number}: {ANSWER}" if is_answer else f"Question {number}")
    role, stats = ("assistant", STATS) if is_answer else ("user", None)
    return Message(f"m{number}", "c", role, text, "", MessageStatus.COMPLETE, WHEN, stats)


def conversation(count: int) -> Conversation:
    return Conversation(ConversationSummary("c", "C", WHEN, WHEN), tuple(message(n) for n in range(count)))
