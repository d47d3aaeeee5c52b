"""Formulas are drawn wherever an answer has one, money is none, and nothing a model writes stops that."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PySide6.QtCore import QObject, QRectF, Qt
from PySide6.QtGui import QColor, QGuiApplication, QImage, QPainter, QTextCursor

from app.settings import Theme
from app.ui.formula_object import OBJECT
from app.ui.formula_typesetter import MAX_CHARACTERS, MAX_EM, typeset
from app.ui.formulas import FormulaKey, FormulaStore, formula_store
from app.ui.markdown import Formula, Leaf, Paragraph, Span, TableRow, parse
from app.ui.prose_view import ProseView
from app.ui.sliced_work import SlicedWork
from app.ui.table_view import TableView
from app.ui.theme import current_theme, theme_manager

READABLE = [
    r"E = mc^2",
    r"\frac{a}{b}",
    r"\sum_{i=1}^n i = \frac{n(n+1)}{2}",
    r"\int_0^\infty e^{-x^2}\,dx = \frac{\sqrt{\pi}}{2}",
    r"\begin{pmatrix} a & b \\ c & d \end{pmatrix}",
    r"f(x) = \begin{cases} 1 & x > 0 \\ 0 & \text{otherwise} \end{cases}",
    r"\begin{aligned} a &= b \\ &= c \end{aligned}",
    r"\lim_{x \to 0} \frac{\sin x}{x} = 1",
    r"\left( \frac{a}{b} \right)^2",
    r"x \in \mathbb{R}^n",
    r"\nabla \times \mathbf{E} = -\frac{\partial \mathbf{B}}{\partial t}",
    r"\sqrt[3]{x}",
    r"\hat{\theta} = \operatorname{softmax}(x)_i",
    r"\argmax_x f(x)",
    r"a \equiv b \pmod{n}",
    r"\binom{n}{k}",
    r"\|x\|_2 \leq \epsilon",
    r"\boxed{42}",
    r"a = b \tag{1}",
    r"\bm{x}^\top A \, \mathcal{L}",
]
DELIMITERS = [("$", "$"), ("$$", "$$"), (r"\(", r"\)"), (r"\[", r"\]")]
UNREADABLE = [
    r"\frac{a",
    r"\foo{x}",
    "^",
    "&",
    r"x_{",
    r"\def\x{\x\x}\x",
    r"\input{/etc/passwd}",
    r"\includegraphics{/etc/passwd}",
    r"\text{<img src='file:///etc/passwd'/>}",
]


def formulas_of(leaves: Sequence[Leaf]) -> list[str]:
    found: list[str] = []
    for leaf in leaves:
        cells = leaf.cells if isinstance(leaf, TableRow) else (getattr(leaf, "spans", ()),)
        found += [span.tex for spans in cells for span in spans if span.tex]
    return found


@pytest.fixture
def show(qtbot, new_body, work: SlicedWork):
    def show(text: str):
        body = new_body()
        body.append(text)
        body.finish()
        work.run_to_end()
        qtbot.waitUntil(lambda: not formula_store().busy)
        body.resize(700, body.arrange(700))
        return body

    return show


# What is a formula


@pytest.mark.parametrize(("opener", "closer"), DELIMITERS)
@pytest.mark.parametrize("tex", READABLE)
def test_a_formula_in_a_sentence_is_told_by_any_of_its_marks(tex: str, opener: str, closer: str) -> None:
    assert formulas_of(parse(f"Thus {opener}{tex}{closer} holds.")) == [tex]


@pytest.mark.parametrize(("opener", "closer"), DELIMITERS[1::2])
@pytest.mark.parametrize("above", ["", "We have:\n", "- an item\n\n  ", "> "])
def test_a_formula_on_lines_of_its_own_is_a_block(above: str, opener: str, closer: str) -> None:
    last = parse(f"{above}{opener}x{closer}.")[-1]
    assert isinstance(last, Formula)
    assert last.tex == "x"


def test_lines_of_a_block_make_no_list_and_no_heading_of_it() -> None:
    (formula,) = parse("$$\na\n=\nb\n+ c\n- d\n> e\n# f\n$$")
    assert isinstance(formula, Formula)
    assert formula.tex.split() == ["a", "=", "b", "+", "c", "-", "d", ">", "e", "#", "f"]


def test_an_environment_needs_no_other_marks() -> None:
    (formula,) = parse("\\begin{align}\na &= b \\\\\nc &= d\n\\end{align}")
    assert isinstance(formula, Formula)
    assert typeset(formula.tex, display=True) is not None


@pytest.mark.parametrize(
    "text",
    [
        "It costs $5 and $10.",
        "Between 5$ and 10$, or US$5 and US$6.",
        "He paid $5, or 5$ more.",
        "$5 per month or 60$ a year",
        "Set $HOME and $PATH, or $HOME/bin:$PATH.",
        "A$AP, Ke$ha and A$AP",
        "$100-$200",
        "它的价格是$5，他付了10$。",
        r"\$x\$",
        "`$x$`",
        "$ x $",
        "$$",
        "$$ $$",
        r"See \[1\] and \(note\).",
        r"\[not a link\]",
        "a $x",
        "\\[ x\n\nblank \\]",
    ],
)
def test_money_and_other_dollars_stay_text(text: str) -> None:
    assert formulas_of(parse(text)) == []


def test_a_formula_after_money_is_one() -> None:
    assert formulas_of(parse("For $5 you get $x_1$ and $y$.")) == ["x_1", "y"]


def test_marks_of_emphasis_in_a_formula_are_part_of_it() -> None:
    assert formulas_of(parse("$a_1 * b_1 * c_2$")) == ["a_1 * b_1 * c_2"]


def test_what_surrounds_a_formula_keeps_its_style() -> None:
    (paragraph,) = parse("**bold $x$**$y$$z$")
    assert isinstance(paragraph, Paragraph)
    assert paragraph.spans[1] == Span("$x$", bold=True, tex="x")
    assert "".join(span.text for span in paragraph.spans) == "bold $x$$y$$z$"


# What it looks like


@pytest.mark.parametrize("display", [False, True])
@pytest.mark.parametrize("tex", READABLE)
def test_what_models_write_is_read(tex: str, display: bool) -> None:
    drawing = typeset(tex, display=display)
    assert drawing is not None
    assert 0 < drawing.width < MAX_EM
    assert drawing.ascent > 0


@pytest.mark.parametrize(
    "tex",
    [
        *UNREADABLE,
        "",
        " ",
        "x" * (MAX_CHARACTERS + 1),
        r"\frac{1}{1+" * 30 + "x" + "}" * 30,
        r"\begin{cases}" * 9 + "x" + r"\end{cases}" * 9,
        "{" * 900,
        r"\left(" * 300,
        "x^" * 400,
        r"\quad",
        r"\text{\ud800}",
    ],
)
def test_what_cannot_be_read_or_would_take_too_long_is_refused(tex: str) -> None:
    assert typeset(tex, display=True) is None


@settings(max_examples=200, deadline=None)
@given(
    tex=st.lists(
        st.sampled_from(
            [*r"{}^_&\ ax1+<'", r"\frac", r"\left(", r"\right)", r"\sqrt", r"\text{", r"\\", r"\begin{cases}"]
        ),
        max_size=14,
    ).map("".join)
)
def test_nothing_that_is_written_raises(tex: str) -> None:
    drawing = typeset(tex, display=False)
    assert drawing is None or 0 < drawing.width <= MAX_EM


@pytest.mark.parametrize(
    ("tex", "texts"),
    [
        (r"v = \text{速度 v} + 1", ["速度"]),
        (r"\text{ 速 a 度 }", ["速", "度"]),
        (r"\frac{\text{路程}}{\text{时间 } t}", ["路程", "时间"]),
        (r"x_{\text{最大}}^{\text{上}}", ["最大", "上"]),
        (r"\begin{cases} 1 & \text{如果 } x > 0 \\ 0 & \text{否则} \end{cases}", ["如果", "否则"]),
        (r"\text{アイ}\text{ a}", ["アイ"]),
        (r"\text{한국어}", ["한국어"]),
        (r"面积 = 3", ["面", "积"]),
    ],
)
def test_scripts_that_the_font_lacks_have_a_place_in_the_drawing(tex: str, texts: list[str]) -> None:
    drawing = typeset(tex, display=True)
    assert drawing is not None
    assert [place.text for place in drawing.texts] == texts
    for place in drawing.texts:
        assert place.width == pytest.approx(len(place.text) * place.height, rel=1e-3)
        assert -1e-6 <= place.left <= place.left + place.width <= drawing.width + 1e-3
        assert -1e-6 <= place.top <= place.top + place.height <= drawing.ascent + drawing.descent + 1e-3
    assert "#f0" not in drawing.svg, "the boxes themselves are not seen"


def test_a_script_that_is_not_full_width_is_still_shown_as_it_was_written() -> None:
    assert typeset(r"\text{ไทย}", display=True) is None


def test_chinese_in_a_formula_is_painted_in_the_colour_of_the_text(qapp) -> None:
    key = FormulaKey(r"\text{速度}", display=False)
    store = FormulaStore()
    store._known[key] = drawing = typeset(key.tex, display=False)
    assert drawing is not None
    picture = QImage(80, 40, QImage.Format.Format_ARGB32)
    picture.fill(Qt.GlobalColor.white)
    painter = QPainter(picture)
    store.paint(painter, key, QRectF(0, 0, 80, 40), QColor("#c00000"))
    painter.end()
    inked = [
        (x, y) for x in range(80) for y in range(40)
        if picture.pixelColor(x, y).red() > picture.pixelColor(x, y).green() + 60
    ]  # fmt: skip
    assert any(x < 40 for x, _ in inked)
    assert any(x >= 40 for x, _ in inked)


def test_a_drawing_holds_outlines_and_nothing_that_is_loaded() -> None:
    for tex in READABLE:
        drawing = typeset(tex, display=True)
        assert drawing is not None
        for part in ("<image", "<text", "<script", "url(", "file:", 'href="http'):
            assert part not in drawing.svg


# On the screen


def test_formulas_are_drawn_in_prose_and_tables(show) -> None:
    body = show("In $x^2$ prose\n\n$$\ny^2\n$$\n\n| a |\n|---|\n| $z$ |\n")
    prose, table = body.pieces
    assert isinstance(prose, ProseView)
    assert isinstance(table, TableView)
    assert prose.toPlainText() == f"In {OBJECT} prose\n{OBJECT}"
    assert OBJECT in table.toPlainText()


@pytest.mark.parametrize("tex", UNREADABLE)
def test_a_formula_that_cannot_be_read_is_shown_as_it_was_written(show, tex: str) -> None:
    body = show(f"Before ${tex}$ after\n\n$$ {tex} $$\n")
    assert body.pieces[0].toPlainText() == f"Before ${tex}$ after\n$$ {tex} $$"


def test_it_is_text_from_the_start_once_that_is_known(show, new_body) -> None:
    show(r"$\foo$")
    body = new_body()
    body.append(r"$\foo$ and")
    assert body.pieces[0].toPlainText() == r"$\foo$ and"


def test_an_answer_goes_on_behind_a_formula_that_turned_out_unreadable(qtbot, new_body) -> None:
    body = new_body()
    body.append("First $\\unknowncommand$\n\nSecond")
    qtbot.waitUntil(lambda: not formula_store().busy)
    body.append(" line\n\nThird")
    body.finish()
    assert body.pieces[0].toPlainText() == "First $\\unknowncommand$\nSecond line\nThird"


def test_a_copy_has_formulas_as_they_were_written(show) -> None:
    text = "😀 In $x^2$ prose\n\n$$y^2$$\n\n- item \\(z\\)"
    body = show(text)
    (prose,) = body.pieces
    prose.selectAll()
    assert prose.selected_text() == "😀 In $x^2$ prose\n$$y^2$$\n• item \\(z\\)"
    prose.copy()
    assert QGuiApplication.clipboard().text() == prose.selected_text()
    cursor = QTextCursor(prose.document())
    cursor.setPosition(prose.toPlainText().index(OBJECT) + 2)
    cursor.setPosition(prose.toPlainText().index(OBJECT) + 1, QTextCursor.MoveMode.KeepAnchor)
    prose.setTextCursor(cursor)
    assert prose.selected_text() == "$x^2$"


def test_a_formula_makes_its_line_as_high_as_it_is(show) -> None:
    low = show("a $x$ b").arrange(700)
    high = show(r"a $\dfrac{\dfrac{1}{2}}{\dfrac{3}{4}}$ b").arrange(700)
    assert high > low * 1.8
    assert low <= show("a x b").arrange(700) + 2


def test_a_formula_that_is_wider_than_the_column_is_made_smaller(show) -> None:
    body = show("$$" + "+".join(f"x_{n}" for n in range(60)) + "$$")
    for width in (700, 400):
        body.resize(width, body.arrange(width))
        assert body.pieces[0].document().size().width() <= width


def test_a_character_that_stands_for_drawings_cannot_be_forged(show) -> None:
    body = show(f"a {OBJECT} b")
    assert OBJECT not in body.pieces[0].toPlainText()


@pytest.mark.parametrize("choice", [Theme.LIGHT, Theme.DARK])
def test_formulas_have_the_colour_of_the_text(show, qapp, choice: Theme) -> None:
    theme_manager().apply(choice)
    try:
        body = show(r"$$\blacksquare\blacksquare$$")
        image = body.grab().toImage()
        ink = QColor(current_theme().text)
        assert _has(image, ink)
    finally:
        theme_manager().apply(Theme.SYSTEM)


def _has(image: QImage, color: QColor) -> bool:
    return any(image.pixelColor(x, y) == color for x in range(image.width()) for y in range(image.height()))


def test_each_formula_is_typeset_once(qtbot, show, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    monkeypatch.setattr("app.ui.formulas.typeset", lambda tex, *, display: asked.append(tex))
    show("$once_1$ and $once_1$ and $once_2$\n\n$once_1$")
    show("$once_1$")
    assert sorted(asked) == ["once_1", "once_2"]


def test_a_method_whose_object_is_no_more_is_not_told_and_others_are(qtbot) -> None:
    class Waiting(QObject):
        told = False

        def tell(self, _keys: Sequence[FormulaKey]) -> None:
            self.told = True

    key = FormulaKey("gone_{43}", display=False)
    gone, stays = Waiting(), Waiting()
    formula_store().want(key, gone.tell)
    formula_store().want(key, stays.tell)
    del gone
    qtbot.waitUntil(lambda: stays.told)


def test_a_view_that_is_gone_is_not_told(qtbot, new_body) -> None:
    body = new_body()
    body.append("$gone_{42}$")
    body.set_text("nothing")
    qtbot.waitUntil(lambda: formula_store().is_known(FormulaKey("gone_{42}", display=False)))
    assert body.pieces[0].toPlainText() == "nothing"
