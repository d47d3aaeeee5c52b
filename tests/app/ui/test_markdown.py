"""What a text says does not depend on how it arrives, nothing in it is hidden, and none is slow to read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import cycle

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.ui import markdown_stream
from app.ui.markdown import (
    BULLET,
    MAX_PARSED,
    MAX_PARSED_LINES,
    TASK_DONE,
    TASK_OPEN,
    Code,
    Formula,
    Heading,
    Leaf,
    Paragraph,
    Rule,
    Span,
    TableRow,
    parse,
)
from app.ui.markdown_stream import MarkdownStream

# Pieces that open, close, indent and interrupt every kind of block, so that documents made of them are nasty.
_PIECES = [
    *(
        "- ",
        "* ",
        "+ ",
        "1. ",
        "2) ",
        "10. ",
        "> ",
        "  ",
        "   ",
        "    ",
        "\t",
        "\n",
        "\n",
        "\n\n",
        "\r\n",
        "\r",
    ),
    *(
        "```",
        "~~~",
        "````",
        "```py\nc\n",
        "```\n",
        "    code\n",
        "# ",
        "---",
        "===",
        "***",
        "-",
        "-\n",
        "+",
        "\n   ",
    ),
    *(
        "|",
        "| a | b |\n",
        "|--|:-:|\n",
        "| c |\n",
        "| d | e | f |\n",
        "a",
        "b c",
        "x\n",
        "**",
        "`",
        "_",
        "~~",
        "<b>",
        "[x] ",
        "- a\n",
    ),
    *(
        "[a](http://b)",
        "  - b\n",
        "1. x\n",
        "5. y\n",
        "\0",
        "&lt;",
        "\\",
        "中文",
        "😀",
        "https://a.b/c",
        "![i](j)",
    ),
    *(
        "$",
        "$$",
        "$$\n",
        "\n$$\n",
        "\\[",
        "\\]\n",
        "\\(x^2\\)",
        "$y$",
        "\\begin{align}",
        "\\end{align}\n",
        "+ c\n",
        "\n=\n",
    ),
]
_documents = st.lists(st.sampled_from(_PIECES), max_size=40).map("".join)
_cuts = st.lists(st.integers(1, 9), min_size=1, max_size=8)


def plain_text(spans: Sequence[Span]) -> str:
    return "".join(span.text for span in spans)


def joined(leaves: Sequence[Leaf]) -> list[Leaf]:
    """The same with the pieces of each code block put together."""
    result: list[Leaf] = []
    for leaf in leaves:
        if isinstance(leaf, Code) and not leaf.first:
            begun = result[-1]
            assert isinstance(begun, Code)
            assert not begun.last
            result[-1] = replace(begun, text=begun.text + leaf.text, last=leaf.last)
        else:
            result.append(leaf)
    return result


def streamed(text: str, cuts: Sequence[int]) -> list[Leaf]:
    """The leaves of a text that comes in pieces of these lengths, over and over."""
    stream = MarkdownStream()
    leaves: list[Leaf] = []
    position = 0
    for length in cycle(cuts):
        if position >= len(text):
            break
        leaves += stream.push(text[position : position + length])
        stream.tail()
        position += length
    return joined([*leaves, *stream.finish()])


def words_of(leaves: Sequence[Leaf]) -> str:
    """What a reader sees, without the marks of lists and quotes."""
    lines = []
    for leaf in leaves:
        if isinstance(leaf, Paragraph | Heading | Formula):
            lines.append(plain_text(leaf.spans))
        elif isinstance(leaf, Code):
            lines.append(leaf.text)
        elif isinstance(leaf, TableRow):
            lines.append(" ".join(plain_text(cell) for cell in leaf.cells))
    return "\n".join(lines)


def _normal(text: str) -> str:
    return text.replace("\r\n", "\n").replace("\r", "\n").replace("\0", "\ufffd")


@settings(max_examples=400, deadline=None)
@given(document=_documents, cuts=_cuts)
def test_a_text_in_pieces_gives_the_leaves_of_the_whole(document: str, cuts: list[int]) -> None:
    expected = parse(_normal(document))
    assert streamed(document, [len(document) or 1]) == expected
    assert streamed(document, cuts) == expected


@settings(max_examples=150, deadline=None)
@given(document=st.lists(st.sampled_from(_PIECES), max_size=120).map("".join), cuts=_cuts)
def test_cutting_long_leaves_does_not_depend_on_the_pieces(document: str, cuts: list[int]) -> None:
    with pytest.MonkeyPatch.context() as patch:  # small bounds, so that small documents meet them
        patch.setattr(markdown_stream, "MAX_PARSED", 60)
        patch.setattr(markdown_stream, "MAX_PARSED_LINES", 9)
        assert streamed(document, cuts) == streamed(document, [len(document) or 1])


@settings(max_examples=150, deadline=None)
@given(document=_documents, cuts=_cuts)
def test_what_is_settled_is_never_taken_back(document: str, cuts: list[int]) -> None:
    """Settled leaves so far, and the tail: together always the leaves of the text so far, up to marks held
    back.
    """
    whole = streamed(document, cuts)
    stream = MarkdownStream()
    settled: list[Leaf] = []
    for char in document:
        settled += stream.push(char)
        so_far = joined(settled)
        open_code = bool(so_far) and isinstance(so_far[-1], Code) and not so_far[-1].last
        final = so_far[:-1] if open_code else so_far
        assert final == whole[: len(final)]


def test_every_state_of_a_long_fence_is_final_line_by_line() -> None:
    stream = MarkdownStream()
    lines = [f"line {number}\n" for number in range(50)]
    settled = list(stream.push("```py\n"))
    for line in lines:
        for char in line:
            settled += stream.push(char)
        (code,) = joined(settled)
        assert isinstance(code, Code)
        assert code.text == "".join(lines[: lines.index(line) + 1])
        assert stream.tail() == ()


def test_a_line_of_an_open_fence_is_shown_before_it_ends() -> None:
    stream = MarkdownStream()
    stream.push("```py\nx = 1\ny =")
    (tail,) = stream.tail()
    assert isinstance(tail, Code)
    assert (tail.text, tail.first, tail.last) == ("y =", False, False)


def test_marks_that_may_become_anything_are_held_back() -> None:
    stream = MarkdownStream()
    stream.push("A paragraph\n-")
    assert stream.tail() == (Paragraph(parse("A paragraph")[0].place, (Span("A paragraph"),)),)
    stream.push("-- no rule")
    assert words_of(stream.tail()) == "A paragraph\n--- no rule"


@pytest.mark.parametrize(
    "text",
    [
        "#include <vector>",
        "<for example>",
        "<script>alert(1)</script>",
        "<img src=file:///etc/passwd>",
        "<!-- a comment -->",
        "<b>bold</b> & </unopened>",
        "std::map<int, std::vector<T>>",
        "<div>\n<p>block</p>\n</div>",
        "<?php echo 1 ?>",
        "<![CDATA[x]]>",
    ],
)
def test_what_looks_like_a_tag_is_shown_as_it_was_written(text: str) -> None:
    assert words_of(parse(text)) == text
    assert words_of(parse(f"> - {text.splitlines()[0]}")) == text.splitlines()[0]


@pytest.mark.parametrize("prefix", ["", "> ", "- "])
def test_cells_that_have_no_column_stand_in_the_last_one(prefix: str) -> None:
    space = prefix.replace("-", " ")
    table = f"{prefix}| a | b |\n{space}|---|---|\n{space}| 1 | 2 | *3* | 4\\|5 |\n{space}| 6 |\n"
    head, row, short = parse(table)
    assert isinstance(row, TableRow)
    assert [plain_text(cell) for cell in row.cells] == ["1", "2 | 3 | 4|5"]
    assert Span("3", italic=True) in row.cells[1]
    assert [plain_text(cell) for cell in short.cells] == ["6", ""]  # type: ignore[union-attr]
    assert streamed(table, [1]) == [head, row, short]


def test_all_words_behind_the_marks_of_code_are_kept() -> None:
    (code,) = parse("``` and here the sentence  goes on\nx\n```\n")
    assert isinstance(code, Code)
    assert code.language == "and here the sentence goes on"


@pytest.mark.parametrize(
    "text", [">a\n    >#\nb\n", ">[\n    >```\n$\n", ">-\n\t>1. ---\nZ\n", "- >a\n      >#\nb\n"]
)
def test_mark_of_a_quote_that_is_pushed_in_means_the_same_when_it_comes_late(text: str) -> None:
    assert streamed(text, [1]) == streamed(text, [len(text)]) == parse(text)


@pytest.mark.parametrize("address", ["http://a.b", "https://a.b/c?d=e"])
def test_links_that_may_be_opened_have_their_address(address: str) -> None:
    (paragraph,) = parse(f"see [here]({address})")
    assert isinstance(paragraph, Paragraph)
    assert paragraph.spans == (Span("see "), Span("here", href=address))


@pytest.mark.parametrize(
    "address",
    ["javascript:alert(1)", "file:///etc/passwd", "data:text/html,x", "relative/page", "vbscript:x"],
)
def test_links_that_may_not_be_opened_show_their_address_instead(address: str) -> None:
    (paragraph,) = parse(f"see [here]({address})")
    assert isinstance(paragraph, Paragraph)
    assert paragraph.spans == (Span(f"see here ({address})"),)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("write to [us](mailto:ada@example.org)", "write to us (ada@example.org)"),
        ("write to [ada@example.org](MAILTO:ada@example.org)", "write to ada@example.org"),
        ("write to <ada@example.org>", "write to ada@example.org"),
    ],
)
def test_mail_addresses_are_shown_and_promise_no_click_that_would_be_refused(text: str, shown: str) -> None:
    (paragraph,) = parse(text)
    assert isinstance(paragraph, Paragraph)
    assert paragraph.spans == (Span(shown),)


def test_an_image_is_its_description_and_its_address() -> None:
    (remote,), (local,) = parse("![a cat](https://a.b/cat.png)"), parse("![a cat](file:///cat.png)")
    assert isinstance(remote, Paragraph)
    assert isinstance(local, Paragraph)
    assert remote.spans == (Span("a cat", href="https://a.b/cat.png"),)
    assert local.spans == (Span("a cat (file:///cat.png)"),)


@pytest.mark.parametrize(
    ("text", "url"),
    [
        ("https://a.b/c.", "https://a.b/c"),
        ("(see https://a.b/c)", "https://a.b/c"),
        ("https://en.wikipedia.org/wiki/C_(x)", "https://en.wikipedia.org/wiki/C_(x)"),
        ("见 https://a.b/c。", "https://a.b/c"),
        ("x https://a.b/c?d=1&e=2, y", "https://a.b/c?d=1&e=2"),
    ],
)
def test_a_bare_address_is_a_link_without_the_punctuation_after_it(text: str, url: str) -> None:
    (paragraph,) = parse(text)
    assert isinstance(paragraph, Paragraph)
    assert [span.href for span in paragraph.spans if span.href] == [url]
    assert plain_text(paragraph.spans) == text


def test_an_address_in_code_is_no_link() -> None:
    (paragraph,) = parse("`https://a.b`")
    assert isinstance(paragraph, Paragraph)
    assert paragraph.spans == (Span("https://a.b", code=True),)


def test_styles_nest() -> None:
    (paragraph,) = parse("a **b *c* `d`** ~~e~~")
    assert isinstance(paragraph, Paragraph)
    assert paragraph.spans == (
        Span("a "),
        Span("b ", bold=True),
        Span("c", bold=True, italic=True),
        Span(" ", bold=True),
        Span("d", bold=True, code=True),
        Span(" "),
        Span("e", strike=True),
    )


def test_a_line_break_is_kept() -> None:
    assert words_of(parse("Roses are red,\nviolets are blue")) == "Roses are red,\nviolets are blue"


def test_places_tell_lists_and_quotes_apart_and_number_items() -> None:
    leaves = parse("3. a\n3. b\n   - c\n\n     d\n\n> e\n> 1. f\n")
    assert [(words_of([leaf]), leaf.place.path, leaf.place.marker) for leaf in leaves] == [
        ("a", "l", "3."),
        ("b", "l", "4."),
        ("c", "ll", BULLET),
        ("d", "ll", ""),
        ("e", "q", ""),
        ("f", "ql", "1."),
    ]


def test_tasks_have_boxes_and_numbered_items_keep_their_brackets() -> None:
    done, todo, numbered = parse("- [x] done\n- [ ] to do\n\n1. [x] y")
    assert (done.place.marker, words_of([done])) == (TASK_DONE, "done")
    assert (todo.place.marker, words_of([todo])) == (TASK_OPEN, "to do")
    assert (numbered.place.marker, words_of([numbered])) == ("1.", "[x] y")


def test_a_table_becomes_rows_with_their_alignment() -> None:
    head, row = parse("| a | b | c |\n|:--|:-:|--:|\n| 1 | **2** |\n")
    assert isinstance(head, TableRow)
    assert isinstance(row, TableRow)
    assert head.header
    assert not row.header
    assert head.aligns == ("left", "center", "right")
    assert [plain_text(cell) for cell in row.cells] == ["1", "2", ""]


def test_code_keeps_tabs_and_loses_only_the_indent_of_its_item() -> None:
    for cuts in ([1], [1000]):
        item, code = streamed("1. a\n   ```sh\n   \tx\n\n     y\n   ```\n", cuts)
        assert isinstance(code, Code)
        assert (code.language, code.text, code.place.path) == ("sh", "\tx\n\n  y\n", "l")
        assert isinstance(item, Paragraph)


def test_numbers_go_on_behind_a_fence_that_grew_in_an_item() -> None:
    text = "1. a\n   ```\n   x\n   ```\n1. b\n   - c\n     ```\n     y\n     ```\n   - d\n1. e\n"
    for cuts in ([1], [7], [1000]):
        markers = [leaf.place.marker for leaf in streamed(text, cuts) if leaf.place.marker]
        assert markers == ["1.", "2.", BULLET, BULLET, "3."]


@pytest.mark.parametrize(
    "text",
    [
        "> " * 3000 + "deep",
        ">" * 5000 + "deep",
        "- " * 20 + "deep",
        "".join("  " * depth + "- item\n" for depth in range(120)) + "deep",
        "".join(" " * (16 * depth) + "- " * 8 + "item\n" for depth in range(40)) + "\ndeep",
        "[" * 6000 + "deep" + "]" * 6000,
        "*" * 6000 + "deep",
    ],
    ids=["quotes", "quotes without spaces", "items on a line", "items on lines", "both", "brackets", "stars"],
)
def test_no_nesting_is_so_deep_that_words_are_lost(text: str) -> None:
    assert words_of(streamed(text, [997])).count("deep") == 1


@pytest.mark.parametrize("length", [MAX_PARSED - 1, MAX_PARSED, MAX_PARSED + 1, 3 * MAX_PARSED])
@pytest.mark.parametrize("unit", ["x", "word ", "词", "line\n"])
def test_long_texts_keep_every_word_at_the_bounds(length: int, unit: str) -> None:
    text = (unit * length)[:length]
    shown = words_of(streamed(text, [509]))
    assert shown.replace("\n", "").replace(" ", "") == text.replace("\n", "").replace(" ", "")


def test_a_long_table_stays_one_table() -> None:
    text = "| a | b |\n|---|---|\n" + "| 1 | 2 |\n" * (3 * MAX_PARSED_LINES)
    rows = streamed(text, [101])
    assert all(isinstance(row, TableRow) for row in rows)
    assert len(rows) == 1 + 3 * MAX_PARSED_LINES
    assert [row.header for row in rows if isinstance(row, TableRow)].count(True) == 1


def test_rules_and_headings_are_told_apart() -> None:
    kinds = [type(leaf) for leaf in parse("# a\n\nb\n---\n\n---\n")]
    assert kinds == [Heading, Heading, Rule]
