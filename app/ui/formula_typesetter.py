"""LaTeX formulas as outlines: what a formula looks like, with no word yet on its colour or size.

ziamath lays formulas out; it is asked only for what it can do well and soon. Its time doubles with every row
in a row, so what that comes to is counted first, and a formula that would take too long is refused, as is one
with commands or characters that it doesn't know: it would show something else than what was meant. Chinese,
Japanese and Korean, which its font lacks, get a place in the drawing: whoever paints it writes them there.
Nothing here knows Qt, and everything may run on any thread, one at a time.
"""

from __future__ import annotations

import logging
import math
import re
import xml.etree.ElementTree as ET
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ziafont import Font

EM = 48.0  # units of a drawing in one em of its font
_ROW_SPACING = "0.5em"
_SPACE_EM = 0.75  # what the library takes for an em of space is a third more than one of its letters
ABOVE = 0.88  # of a full-width character, above the baseline
_FULL_WIDTH = re.compile(
    "([\u1100-\u115f\u2e80-\u303e\u3041-\u33ff\u3400-\u4dbf\u4e00-\u9fff\ua960-\ua97c\uac00-\ud7a3"
    "\uf900-\ufaff\ufe30-\ufe4f\uff01-\uff60\uffe0-\uffe6\U00020000-\U0003fffd]+)"
)
_VIEW = re.compile(r'viewBox="([-\d.e]+) ([-\d.e]+) ')
_BOX = re.compile(
    r'<rect x="([-\d.e]+)" y="([-\d.e]+)" width="([-\d.e]+)" height="([-\d.e]+)" fill="#f0([0-9a-f]{4})" />'
)
INK = "#010203"  # stands in a drawing where the colour of the text belongs
MAX_CHARACTERS = 2_000
MAX_DEPTH = 40  # braces in braces; what reads them calls itself
MAX_COST = 2_500  # see _cost; about a fifth of a second on a slow machine
MAX_EM = 400  # wide or high; what is larger is a mistake, or meant to do harm

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class PlacedText:
    """Full-width characters, to be written into a box: from the drawing's left and top, in em."""

    text: str
    left: float
    top: float
    width: float
    height: float

    @property
    def baseline(self) -> float:
        return self.top + ABOVE * self.height


@dataclass(frozen=True, slots=True)
class Drawing:
    """A formula as SVG. Lengths are in em of the formula's font; `ascent` and `descent` are above and below
    the baseline, and the drawing is exactly so large. texts: what isn't in the SVG.
    """

    svg: str
    width: float
    ascent: float
    descent: float
    texts: tuple[PlacedText, ...] = ()


def typeset(tex: str, *, display: bool) -> Drawing | None:
    """What a formula looks like; None for one that can't be read. `display`: on a line of its own."""
    if len(tex) > MAX_CHARACTERS or _depth(tex) > MAX_DEPTH or not tex.strip():
        return None
    try:
        return _typeset(_known_forms(tex), display=display)
    except Exception as error:  # noqa: BLE001  (two libraries read what a model wrote, and raise whatever comes)
        log.debug("no formula: %r: %r", tex, error)
        return None


def _typeset(tex: str, *, display: bool) -> Drawing | None:
    from ziamath import Math, config
    from ziamath.escapes import unescape
    from ziamath.tex import tex2mml

    config.svg2 = False  # whole outlines: Qt's reader knows no symbols of other sizes
    mathml = ET.fromstring(unescape(tex2mml(tex, inline=not display)))
    _unwrap(mathml)
    _improve(mathml)
    texts: list[str] = []
    _leave_places(mathml, texts)
    if _cost(mathml) > MAX_COST or not _known(mathml):
        return None
    mathml.set("mathcolor", INK)
    drawn = Math(mathml, size=EM, margin=0.0)
    box = drawn.node.bbox
    width, ascent, descent = box.xmax - box.xmin, box.ymax, -box.ymin
    if not all(math.isfinite(length) for length in (width, ascent, descent)):
        return None
    if not (0 < width <= MAX_EM * EM and 0 < ascent + descent <= MAX_EM * EM):
        return None
    svg, places = _take_places(drawn.svg(), texts)
    return Drawing(svg, width / EM, ascent / EM, descent / EM, places)


def _depth(tex: str) -> int:
    depth = deepest = 0
    for char in tex:
        depth += (char == "{") - (char == "}")
        deepest = max(deepest, depth)
    return deepest + tex.count(r"\left") + tex.count(r"\begin")


# What the library has no word for, in words that it has; and what says nothing where a formula stands alone.
_FORMS = (
    (re.compile(r"\\(?:label|ref)\{[^{}]*\}|\\(?:nonumber|notag|limits)(?![A-Za-z])"), ""),
    (re.compile(r"\\tag\*?\{([^{}]*)\}"), r"\\qquad (\\text{\1})"),
    (re.compile(r"\\(arg)(max|min)(?![A-Za-z])"), r"\\operatorname*{\1\2}"),
    (re.compile(r"\\(?:bm|pmb)(?![A-Za-z])"), r"\\boldsymbol"),
    (re.compile(r"\\(?:mathds|mathbbm)(?![A-Za-z])"), r"\\mathbb"),
    (re.compile(r"\\(?:textnormal|textrm|mbox|hbox)(?![A-Za-z])"), r"\\text"),
    (re.compile(r"\\(begin|end)\{(?:split|eqnarray\*?|alignat\*?|flalign\*?|gathered|gather\*?|multline\*?)\}"),
     r"\\\1{align*}"),
    (re.compile(r"\\(begin|end)\{(?:equation|displaymath|math)\*?\}"), ""),
    (re.compile(r"\\(begin|end)\{d?cases\*?\}"), r"\\\1{cases}"),
    (re.compile(r"\\middle(?![A-Za-z])"), ""),
)  # fmt: skip


def _known_forms(tex: str) -> str:
    for pattern, form in _FORMS:
        tex = pattern.sub(form, tex)
    return tex.strip()


def _unwrap(element: ET.Element) -> None:
    """Takes the rows away that hold one thing only: each of them doubles the time."""
    for index, child in enumerate(element):
        _unwrap(child)
        while child.tag.endswith("mrow") and len(child) == 1 and not child.attrib and element.tag != "math":
            child = child[0]
        element[index] = child


def _improve(mathml: ET.Element) -> None:
    """Names of functions in upright letters, and room between the lines of a table."""
    for element in mathml.iter():
        name = element.tag.rpartition("}")[2]
        if name == "mi" and len(element.text or "") > 1:
            element.attrib.setdefault("mathvariant", "normal")
        elif name == "mtable":
            element.set("rowspacing", _ROW_SPACING)  # what the converter says lets lines touch


def _leave_places(element: ET.Element, texts: list[str]) -> None:
    """Puts an empty box in the place of each run of characters that the font lacks; the colour of its ground
    says which of `texts` it is for.
    """
    for index, child in enumerate(element):
        _leave_places(child, texts)
        parts = _FULL_WIDTH.split(child.text or "") if len(child) == 0 else []
        if len(parts) < 2:
            continue
        space, _, _ = child.tag.rpartition("}")
        prefix = f"{space}}}" if space else ""
        row = ET.Element(f"{prefix}mrow")
        for number, part in enumerate(parts):
            if number % 2:
                row.extend(_place(part, len(texts), prefix))
                texts.append(part)
            elif part:
                ET.SubElement(row, child.tag, child.attrib).text = part
        element[index] = row


def _place(text: str, number: int, prefix: str) -> tuple[ET.Element, ET.Element]:
    """The box, and one of no size behind it: a character without an outline that follows, such as a space,
    has the library colour what it drew last.
    """
    width, above, below = len(text) * _SPACE_EM, ABOVE * _SPACE_EM, (1 - ABOVE) * _SPACE_EM
    space = f"{prefix}mspace"
    size = {"width": f"{width:.4f}em", "height": f"{above:.4f}em", "depth": f"{below:.4f}em"}
    box = ET.Element(space, {**size, "mathbackground": f"#f0{number:04x}"})
    return box, ET.Element(space, {"width": "0", "mathbackground": INK})


def _take_places(svg: str, texts: list[str]) -> tuple[str, tuple[PlacedText, ...]]:
    """The drawing without these boxes, and where they stood."""
    if not texts:
        return svg, ()
    view = _VIEW.search(svg)
    assert view is not None
    left, top = float(view[1]), float(view[2])
    places = [
        PlacedText(texts[int(box[5], 16)], *(length / EM for length in (
            float(box[1]) - left, float(box[2]) - top, float(box[3]), float(box[4])
        )))
        for box in _BOX.finditer(svg)
    ]  # fmt: skip
    return _BOX.sub("", svg), tuple(places)


def _cost(element: ET.Element, weight: int = 1) -> int:
    """How often elements are laid out: a row looks at what it holds twice, a table's cell more often."""
    local = element.tag.rpartition("}")[2]
    weight *= {"mrow": 2, "math": 2, "mtable": 2, "mfenced": 2}.get(local, 1)
    if weight > MAX_COST:
        return weight
    letters = max(1, len(element.text or "") // 2)
    return letters * weight + sum(_cost(child, weight) for child in element)


def _known(mathml: ET.Element) -> bool:
    """Whether nothing in it is a command that was left as it stood, or a character without an outline."""
    font = _font()
    for text in mathml.itertext():
        if len(text) > 1 and "\\" in text:
            return False
        if any(
            not char.isspace() and ord(char) > 0x7E and not _invisible(char) and not font.glyphindex(char)
            for char in text
        ):
            return False
    return True


def _invisible(char: str) -> bool:
    return 0x2000 <= ord(char) <= 0x200D or 0x2060 <= ord(char) <= 0x2064


@lru_cache(maxsize=1)
def _font() -> Font:
    from ziamath.zmath import loadedfonts

    return loadedfonts["default"]
