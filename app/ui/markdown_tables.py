"""Tables in which no cell is hidden.

markdown-it, as GitHub does, leaves out the cells of a row that its head has no column for. Models write such
rows; here those cells stand in the last column, with the marks between them that were written.
"""

from __future__ import annotations

from markdown_it import MarkdownIt
from markdown_it.rules_block import StateBlock, table
from markdown_it.rules_block.table import escapedSplit, getLine
from markdown_it.token import Token


def show_all_cells(parser: MarkdownIt) -> None:
    """Have `parser` read tables so."""
    parser.block.ruler.at("table", _table, {"alt": ["paragraph", "reference"]})


def _table(state: StateBlock, start_line: int, end_line: int, silent: bool) -> bool:
    first = len(state.tokens)
    if not table(state, start_line, end_line, silent):
        return False
    for index in range(first, len(state.tokens)):
        token = state.tokens[index]
        if token.type == "tr_open" and token.map is not None:
            _complete(_cells(state.tokens, index), _written(getLine(state, token.map[0])))
    return True


def _cells(tokens: list[Token], row: int) -> list[Token]:
    """The contents of a row's cells."""
    cells = []
    for token in tokens[row + 1 :]:
        if token.type == "tr_close":
            break
        if token.type == "inline":
            cells.append(token)
    return cells


def _written(line: str) -> list[str]:
    """All cells of a row as they stand in its line."""
    cells = [cell.strip() for cell in escapedSplit(line.strip())]
    if cells and not cells[0]:
        del cells[0]
    if cells and not cells[-1]:
        del cells[-1]
    return cells


def _complete(cells: list[Token], written: list[str]) -> None:
    if cells and len(written) > len(cells):
        cells[-1].content = " | ".join(written[len(cells) - 1 :])
