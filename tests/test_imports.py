"""Imports go one way, `app/ui` -> `app` -> `engine`, and the window starts without torch."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
FILES = sorted(path for folder in ("app", "engine") for path in (ROOT / folder).rglob("*.py"))

# What widgets may know of the engine: records, which hold no behaviour and need no torch.
RECORDS = (
    "engine.config",
    "engine.errors",
    "engine.generation",
    "engine.load_plan",
    "engine.metrics",
    "engine.model_summary",
    "engine.notices",
    "engine.progress",
    "engine.version",
    "engine.wording",
)
RECORDS_ELSEWHERE = {("engine.inspection", "ModelReport")}
# Modules that take torch with them; others import it, or these, inside the functions that need it.
TORCH_PACKAGES = ("engine.bench", "engine.cpu", "engine.cuda", "engine.states")


@dataclass(frozen=True)
class Import:
    """One imported module and where. `lazy`: inside a function; `typing`: for the type checker only."""

    importer: str
    imported: str
    name: str  # what is taken out of it, "" for the module itself
    line: int
    lazy: bool
    typing: bool

    def __str__(self) -> str:
        return f"{self.importer}:{self.line} imports {self.imported}"


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def is_module(name: str) -> bool:
    path = ROOT.joinpath(*name.split("."))
    return path.with_suffix(".py").exists() or (path / "__init__.py").exists()


def names_in(node: ast.AST) -> Iterator[tuple[str, str]]:
    """(module, name taken out of it) of an import statement. `from a import b` may mean the module a.b."""
    if isinstance(node, ast.Import):
        yield from ((alias.name, "") for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        assert node.level == 0, f"line {node.lineno}: relative imports hide where they lead"
        assert node.module is not None
        for alias in node.names:
            full = f"{node.module}.{alias.name}"
            yield (full, "") if is_module(full) else (node.module, alias.name)


def imports_of(path: Path) -> Iterator[Import]:
    """Every import of a file, wherever it stands."""
    importer = module_name(path)

    def walk(node: ast.AST, *, lazy: bool, typing: bool) -> Iterator[Import]:
        for child in ast.iter_child_nodes(node):
            inside = lazy or isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
            checked = typing or (isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test))
            for imported, name in names_in(child):
                yield Import(importer, imported, name, getattr(child, "lineno", 0), lazy, typing)
            yield from walk(child, lazy=inside, typing=checked)

    yield from walk(ast.parse(path.read_text(encoding="utf-8")), lazy=False, typing=False)


IMPORTS = [found for path in FILES for found in imports_of(path)]


def within(name: str, *packages: str) -> bool:
    return any(name == package or name.startswith(package + ".") for package in packages)


def offences(found: Iterator[Import]) -> list[str]:
    return [str(each) for each in found]


def test_the_walk_sees_what_it_should() -> None:
    """The rules below would pass on an empty list."""
    assert any(each.importer == "app.worker" and each.imported == "PySide6.QtCore" for each in IMPORTS)
    assert any(within(each.imported, "torch") and each.lazy for each in IMPORTS)
    assert any(within(each.imported, "torch") and not each.lazy and not each.typing for each in IMPORTS)


def test_engine_knows_no_window() -> None:
    wrong = (each for each in IMPORTS if within(each.importer, "engine"))
    assert offences(each for each in wrong if within(each.imported, "app", "PySide6", "shiboken6")) == []


def test_program_outside_ui_imports_no_widgets() -> None:
    outside = (
        each for each in IMPORTS if within(each.importer, "app") and not within(each.importer, "app.ui")
    )
    entry = "app.__main__"  # it builds the window
    wrong = (each for each in outside if within(each.imported, "app.ui", "PySide6.QtWidgets"))
    assert offences(each for each in wrong if each.importer != entry) == []


def test_widgets_know_only_the_records_of_the_engine() -> None:
    from_ui = (
        each for each in IMPORTS if within(each.importer, "app.ui") and within(each.imported, "engine")
    )
    others = (each for each in from_ui if not within(each.imported, *RECORDS))
    assert offences(each for each in others if (each.imported, each.name) not in RECORDS_ELSEWHERE) == []


def test_widgets_hold_no_thread_of_the_engine_and_no_database() -> None:
    from_ui = [each for each in IMPORTS if within(each.importer, "app.ui")]
    assert offences(each for each in from_ui if within(each.imported, "sqlite3", "torch")) == []
    from_worker = (each for each in from_ui if within(each.imported, "app.worker"))
    assert offences(each for each in from_worker if each.name != "AnswerDelta") == []


def top_level_imports() -> dict[str, set[str]]:
    """What is imported with each of our modules, in one step. A module takes its packages with it."""
    edges: dict[str, set[str]] = {}
    for each in IMPORTS:
        if not each.lazy and not each.typing:
            parts = each.imported.split(".")
            edges.setdefault(each.importer, set()).update(
                ".".join(parts[: count + 1]) for count in range(len(parts))
            )
    return edges


def test_torch_comes_only_with_the_modules_whose_subject_it_is() -> None:
    edges = top_level_imports()
    with_torch = {module for module, imported in edges.items() if "torch" in imported}
    while True:
        more = {module for module, imported in edges.items() if imported & with_torch} - with_torch
        if not more:
            break
        with_torch |= more
    assert with_torch
    assert sorted(module for module in with_torch if not within(module, *TORCH_PACKAGES)) == []


def test_no_module_stands_on_itself() -> None:
    """Top-level imports of our own modules form no circle: each file can be read after what it stands on."""
    edges = top_level_imports()
    done: set[str] = set()

    def visit(module: str, trail: tuple[str, ...]) -> None:
        assert module not in trail, " -> ".join((*trail[trail.index(module) :], module))
        if module not in done:
            for imported in sorted(edges.get(module, set()) & edges.keys()):
                if not within(module, imported):  # a package that it lies in
                    visit(imported, (*trail, module))
            done.add(module)

    for module in sorted(edges):
        visit(module, ())


@pytest.mark.parametrize(
    "module", ["app.ui.main_window", "app.controller", "engine.inspection", "engine.engine"]
)
def test_start_of_the_window_leaves_torch_alone(module: str) -> None:
    code = (
        f"import sys, {module}; print([name for name in ('torch', 'gguf', 'numpy') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[]"
