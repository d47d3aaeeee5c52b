"""Imports go one way, `app/ui` -> `app` -> `engine`, and the window starts without torch (docs/architecture.md)."""

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
RECORDS = {
    "engine.config",
    "engine.errors",
    "engine.generation",
    "engine.inspection",
    "engine.notices",
    "engine.progress",
    "engine.version",
}
# Modules that take torch with them; others import it, or these, inside the functions that need it.
TORCH_MODULES = ("engine.cpu", "engine.states")


@dataclass(frozen=True)
class Import:
    """One imported module, by its full name, and where. `lazy`: inside a function; `typing`: only for the checker."""

    importer: str
    imported: str
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


def imports_of(path: Path) -> Iterator[Import]:
    """Every import of a file. `from a import b` counts as a.b where that is a module of ours, else as a."""
    importer = module_name(path)

    def walk(node: ast.AST, *, lazy: bool, typing: bool) -> Iterator[Import]:
        for child in ast.iter_child_nodes(node):
            inside = lazy or isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
            checked = typing or (isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test))
            if isinstance(child, ast.Import):
                for alias in child.names:
                    yield Import(importer, alias.name, child.lineno, lazy, typing)
            elif isinstance(child, ast.ImportFrom):
                assert child.level == 0, f"{importer}:{child.lineno} is a relative import"
                assert child.module is not None
                for alias in child.names:
                    full = f"{child.module}.{alias.name}"
                    yield Import(
                        importer, full if is_module(full) else child.module, child.lineno, lazy, typing
                    )
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
    assert offences(each for each in from_ui if each.imported not in RECORDS) == []


def test_widgets_import_no_thread_and_no_store() -> None:
    wrong = (each for each in IMPORTS if within(each.importer, "app.ui"))
    assert offences(each for each in wrong if within(each.imported, "app.worker", "sqlite3", "torch")) == []


def test_torch_is_imported_at_the_top_only_where_it_is_the_subject() -> None:
    early = (each for each in IMPORTS if not each.lazy and not each.typing)
    wrong = (each for each in early if within(each.imported, "torch", *TORCH_MODULES))
    assert offences(each for each in wrong if not within(each.importer, *TORCH_MODULES)) == []


def test_no_module_imports_itself_in_a_circle() -> None:
    """Top-level imports of our own modules form no circle: each file can be read after what it stands on."""
    edges: dict[str, set[str]] = {}
    for each in IMPORTS:
        if not each.lazy and not each.typing and within(each.imported, "app", "engine"):
            edges.setdefault(each.importer, set()).add(each.imported)
    done: set[str] = set()

    def visit(module: str, trail: tuple[str, ...]) -> None:
        assert module not in trail, " -> ".join((*trail[trail.index(module) :], module))
        if module not in done:
            for imported in sorted(edges.get(module, ())):
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
