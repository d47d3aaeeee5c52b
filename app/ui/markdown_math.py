r"""Formulas in Markdown: $…$, $$…$$, \(…\), \[…\] and environments as \begin{align}.

Where a dollar begins a formula and where it is money is told as pandoc does, and then some: what is between
two dollars holds no line feed and no further dollar, begins and ends without a space, and is no sentence.
A formula that fills lines of its own is a block, as code between fences is, so that a line of it that begins
with "+" or "=" makes no list and no heading of it. It ends at its mark; a blank line before that means that
it was none. One that has no end yet is shown as it grows.
"""

from __future__ import annotations

import re

from markdown_it import MarkdownIt
from markdown_it.rules_block import StateBlock
from markdown_it.rules_inline import StateInline

MAX_INLINE = 1_000  # characters
_ENVIRONMENTS = "align|alignat|aligned|displaymath|eqnarray|equation|flalign|gather|math|multline"
_OPENER = re.compile(rf"\$\$|\\\[|\\begin\{{(?P<name>(?:{_ENVIRONMENTS})\*?)\}}")
_CLOSERS = {"$$": "$$", r"\[": r"\]"}
_AFTER = re.compile(r"[ \t]*[.,;:。，；：]?[ \t]*")  # what may stand behind a formula on its last line
_CODE_INDENT = 4  # columns

_WORDED = re.compile(
    r"\\(?:text|textbf|textit|textrm|mbox|operatorname\*?|mathrm|mathbf|mathit|mathsf)\s*\{[^{}]*\}"
)
_COMMAND = re.compile(r"\\[A-Za-z]+\*?|\\.")
_SENTENCE = re.compile(r"(?<![A-Za-z_^{])[A-Za-z]{2,}[,.;:]? +(?:[a-z] +)?[A-Za-z]{2,}")
_WORD_AFTER_NUMBER = re.compile(r"^\d[\d.,]*\s*(?:[A-Za-z]{3,}|[,;] *[A-Za-z]{2,}|[/ -]+[A-Za-z]{2,})")
_IDEOGRAPH = re.compile(r"[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af\uff0c\u3002\u3001]")
_MARKED = re.compile(r"[\\^_=+<>{}/*|\-−]|^\s*[A-Za-z]\s*$")


def read_formulas(parser: MarkdownIt, *, growing: bool) -> None:
    """Have `parser` read formulas. With `growing`, a block that has no end at the end of the text may get it
    still; else it is text.
    """

    def block(state: StateBlock, start_line: int, end_line: int, silent: bool) -> bool:
        return _block(state, start_line, end_line, silent=silent, growing=growing)

    interrupts = {"alt": ["paragraph", "reference", "blockquote", "list"]}
    parser.block.ruler.before("fence", "math_block", block, interrupts)
    parser.inline.ruler.before("escape", "math_inline", _inline)


def is_prose(tex: str) -> bool:
    """Whether what stands between two marks reads as a sentence, or as a sum of money."""
    bare = _COMMAND.sub(" ", _WORDED.sub(" ", tex))
    return bool(_SENTENCE.search(bare) or _WORD_AFTER_NUMBER.match(tex) or _IDEOGRAPH.search(bare))


def _block(state: StateBlock, start_line: int, end_line: int, *, silent: bool, growing: bool) -> bool:
    if state.sCount[start_line] - state.blkIndent >= _CODE_INDENT:
        return False
    start = state.bMarks[start_line] + state.tShift[start_line]
    opener = _OPENER.match(state.src, start, state.eMarks[start_line])
    if opener is None:
        return False
    name = opener["name"]
    closer = rf"\end{{{name}}}" if name else _CLOSERS[opener[0]]
    lines: list[str] = []
    position = opener.end()
    line = start_line
    closed = False
    while True:
        end = state.eMarks[line]
        found = state.src.find(closer, position, end)
        if found >= 0:
            if not _AFTER.fullmatch(state.src, found + len(closer), end):
                return False  # words follow: it is in a sentence
            lines.append(state.src[position:found])
            closed = True
            break
        lines.append(state.src[position:end])
        line += 1
        if line >= end_line:
            growing = growing and line >= len(state.bMarks) - 1  # a quote may end before the text does
            break
        if state.isEmpty(line) or state.sCount[line] < state.blkIndent:
            return False
        position = state.bMarks[line] + state.tShift[line]
    tex = "\n".join(lines)
    if not closed and not growing:
        return False
    if closed and (not tex.strip() or is_prose(tex)):
        return False
    if silent:
        return True
    next_line = min(line + 1, end_line)
    token = state.push("math_block", "math", 0)
    token.block = True
    token.content = f"{opener[0]}{tex}{closer}" if name else tex
    token.info = state.getLines(start_line, next_line, state.blkIndent, False)
    token.map = [start_line, next_line]
    token.meta = {"closed": closed}
    state.line = next_line
    return True


def _inline(state: StateInline, silent: bool) -> bool:
    source, start = state.src, state.pos
    char = source[start]
    if char == "$":
        found = _dollars(source, start)
    elif char == "\\":
        found = _brackets(source, start)
    else:
        return False
    if found is None:
        return False
    opener, end = found
    if not silent:
        token = state.push("math_inline", "math", 0)
        token.content = source[start + len(opener) : end - len(opener)]
        token.markup = opener
        token.meta = {"written": source[start:end]}
    state.pos = end
    return True


def _dollars(source: str, start: int) -> tuple[str, int] | None:
    """The opening mark and where the formula ends, if one begins here."""
    if source.startswith("$$", start):
        end = source.find("$$", start + 2, start + MAX_INLINE)
        tex = source[start + 2 : end]
        return ("$$", end + 2) if end > 0 and tex.strip() and "$" not in tex and not is_prose(tex) else None
    if start and (source[start - 1].isalnum() or source[start - 1] in "$\\"):
        return None
    end = start + 1
    while True:
        end = source.find("$", end, start + MAX_INLINE)
        if end < 0:
            return None
        if source[end - 1] != "\\":
            break
        end += 1
    tex = source[start + 1 : end]
    after = source[end + 1 : end + 2]
    if not tex or tex[0].isspace() or tex[-1].isspace() or "\n" in tex or "`" in tex:
        return None
    return ("$", end + 1) if not after.isalnum() and after != "$" and not is_prose(tex) else None


def _brackets(source: str, start: int) -> tuple[str, int] | None:
    opener = source[start : start + 2]
    closer = {"\\(": "\\)", "\\[": "\\]"}.get(opener)
    if closer is None:
        return None
    end = source.find(closer, start + 2, start + MAX_INLINE)
    tex = source[start + 2 : end]
    if end < 0 or not _MARKED.search(tex) or is_prose(tex):
        return None  # "\[1\]" and "\(note\)" are brackets that were kept from being a link
    return opener, end + 2
