"""Every code that a person can meet stands in docs/troubleshooting.md, and every code there can be met."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CODE = re.compile(r"[a-z]+(-[a-z]+)+|setting|tokenizer|fault|closing")


def codes_in(tree: ast.AST) -> Iterator[str]:
    """Codes of a module: `code = "..."` of a class, `Notice("...")` and its like, `code="..."`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            for statement in node.body:
                match statement:
                    case ast.Assign(targets=[ast.Name(id="code")], value=ast.Constant(value=str(code))):
                        yield code
        elif isinstance(node, ast.Call):
            called = ast.unparse(node.func).rsplit(".", 1)[-1]
            match node.args[:1]:
                case [ast.Constant(value=str(code))] if called in ("Notice", "NoCard", "StoreError"):
                    yield code
            for keyword in node.keywords:
                match keyword:
                    case ast.keyword(arg="code", value=ast.Constant(value=str(code))):
                        yield code


def codes_in_program() -> set[str]:
    found: set[str] = set()
    for folder in ("app", "engine"):
        for path in (ROOT / folder).rglob("*.py"):
            found.update(codes_in(ast.parse(path.read_text(encoding="utf-8"))))
    return found


def codes_in_page() -> list[str]:
    page = (ROOT / "docs" / "troubleshooting.md").read_text(encoding="utf-8")
    first_cells = re.findall(r"^\| `([^`]+)` \|", page, flags=re.MULTILINE)
    return [cell for cell in first_cells if CODE.fullmatch(cell)]


def test_every_code_is_explained_once() -> None:
    page = codes_in_page()
    assert sorted(codes_in_program() - set(page)) == []
    assert sorted(code for code in set(page) if page.count(code) > 1) == []


def test_no_code_is_explained_that_nothing_gives() -> None:
    assert sorted(set(codes_in_page()) - codes_in_program()) == []
