"""Renders an untrusted chat template: what transformers renders, inside bounds of time, memory and reach.

Syntax and globals are those of transformers' chat templates: blocks are trimmed, `break` and `continue` work,
`tojson` leaves HTML alone, `raise_exception` and `strftime_now` exist, `{% generation %}` marks the
assistant's part.

Three things keep a template in its place. It reaches only attributes on a list (`_ATTRIBUTES`), never the
inside of Python. It can't load files (`include`, `import` and `extends` are refused when it is compiled). And
whatever it does is charged to a `Budget`: jinja2 hands over calls, attributes and operators by itself; loops,
literals, comparisons, slices and `~` are given to it by a pass over the syntax tree (`_Meter`).
"""

from __future__ import annotations

import string
import threading
import types
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NoReturn, cast

import jinja2
from jinja2 import nodes
from jinja2.compiler import CodeGenerator, Frame
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Context, LoopContext, Macro
from jinja2.sandbox import ImmutableSandboxedEnvironment, SandboxedFormatter
from jinja2.utils import Cycler
from jinja2.visitor import NodeTransformer

from engine.errors import ChatTemplateError
from engine.templates.template_budget import CONTAINERS, Budget, TemplateLimitError, fail_limit
from engine.templates.template_functions import (
    MAX_WIDTH,
    TemplateNamespace,
    TemplateRaised,
    binary_operation,
    call_text_method,
    template_filters,
    template_globals,
    template_tests,
)

MAX_SOURCE_CHARS = 100_000  # the largest published ones have about 30,000
MAX_SOURCE_NODES = 20_000  # of the syntax tree; compiling takes about 40 µs for each
MAX_REASON_CHARS = 300
_STEERING = frozenset({"Cc", "Cf", "Zl", "Zp"})  # Unicode categories: control, format, separators

_TEXT_METHODS = frozenset({
    "capitalize", "casefold", "center", "count", "endswith", "find", "format", "index", "isalnum", "isalpha",
    "isascii", "isdecimal", "isdigit", "islower", "isnumeric", "isspace", "istitle", "isupper", "join",
    "ljust", "lower", "lstrip", "partition", "removeprefix", "removesuffix", "replace", "rfind", "rindex",
    "rjust", "rpartition", "rsplit", "rstrip", "split", "splitlines", "startswith", "strip", "swapcase",
    "title", "upper", "zfill",
})  # fmt: skip
_LOOP_ATTRIBUTES = frozenset({
    "index", "index0", "revindex", "revindex0", "first", "last", "length", "depth", "depth0", "previtem",
    "nextitem", "changed", "cycle",
})  # fmt: skip
_ATTRIBUTES: tuple[tuple[type, frozenset[str]], ...] = (
    (str, _TEXT_METHODS),
    (dict, frozenset({"get", "items", "keys", "values", "copy"})),
    (list, frozenset({"count", "index", "copy"})),
    (tuple, frozenset({"count", "index", "grouper", "list"})),  # the last two: what `groupby` yields
    (LoopContext, _LOOP_ATTRIBUTES),
    (Cycler, frozenset({"next", "reset", "current"})),
    (Macro, frozenset({"name", "arguments", "caller"})),
)


_TAGS: dict[type[nodes.Node], str] = {
    nodes.Include: "include",
    nodes.Import: "import",
    nodes.FromImport: "from",
    nodes.Extends: "extends",
}


class MeteredLoop:
    """What a `for` runs over: each turn is charged `weight` steps. Has a length when the iterable has one."""

    def __init__(self, iterable: Iterable[Any], budget: Budget, weight: int) -> None:
        self._iterable = iterable
        self._budget = budget
        self._weight = weight

    def __len__(self) -> int:
        return len(self._iterable)  # type: ignore[arg-type]  # a TypeError is the answer that loop.length expects

    def __iter__(self) -> Iterator[Any]:
        for item in self._iterable:
            self._budget.step(self._weight)
            yield item


class _GenerationTag(Extension):
    """`{% generation %}…{% endgeneration %}` marks what the assistant said, for training: here it is only a
    scope.
    """

    tags = {"generation"}  # noqa: RUF012  (jinja2 declares it as an instance variable)

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=line)


class _Meter(NodeTransformer):
    """Hands to the environment what jinja2 would run without asking, and refuses what reaches for other
    files.
    """

    def _guard(self, name: str, *args: nodes.Expr, line: int) -> nodes.Call:
        target = nodes.EnvironmentAttribute(name, lineno=line)
        return nodes.Call(target, list(args), [], None, None, lineno=line)

    def visit_For(self, node: nodes.For) -> nodes.Node:
        self.generic_visit(node)
        weight = 1 + sum(1 for part in node.body for _ in part.find_all(nodes.Output))
        source = cast(nodes.Expr, node.iter)
        node.iter = self._guard("meter_loop", source, nodes.Const(weight), line=node.lineno)
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:
        self.generic_visit(node)
        return self._guard("concat_values", *node.nodes, line=node.lineno)

    def visit_Compare(self, node: nodes.Compare) -> nodes.Node:
        self.generic_visit(node)
        node.expr = self._guard("meter_value", node.expr, line=node.lineno)
        return node

    def visit_Getitem(self, node: nodes.Getitem) -> nodes.Node:
        self.generic_visit(node)
        if isinstance(node.arg, nodes.Slice):
            return self._guard("admit_value", node, line=node.lineno)
        return node

    def visit_List(self, node: nodes.List) -> nodes.Node:
        self.generic_visit(node)
        return self._guard("admit_value", node, line=node.lineno)

    def visit_Dict(self, node: nodes.Dict) -> nodes.Node:
        self.generic_visit(node)
        return self._guard("admit_value", node, line=node.lineno)

    def visit_Tuple(self, node: nodes.Tuple) -> nodes.Node:
        self.generic_visit(node)
        if node.ctx != "load":
            return node
        return self._guard("admit_value", node, line=node.lineno)

    def _refuse(self, node: nodes.Node) -> NoReturn:
        name = _TAGS.get(type(node), "autoescape")
        raise jinja2.TemplateSyntaxError(f"a chat template can't use {name!r}", node.lineno)

    # The visitor finds methods by the names of nodes.
    visit_Include = visit_Import = visit_FromImport = visit_Extends = _refuse  # noqa: N815
    visit_EvalContextModifier = visit_ScopedEvalContextModifier = _refuse  # noqa: N815


class _Generator(CodeGenerator):
    """Calls of the environment's own guards are written straight; all others pass the sandbox as usual."""

    def visit_Call(self, node: nodes.Call, frame: Frame, forward_caller: bool = False) -> None:
        if not isinstance(node.node, nodes.EnvironmentAttribute):
            super().visit_Call(node, frame, forward_caller=forward_caller)
            return
        self.visit(node.node, frame)
        self.write("(")
        for arg in node.args:
            self.visit(arg, frame)
            self.write(", ")
        self.write(")")


class _TextFormatter(SandboxedFormatter):
    """`"{:>8}".format(...)` with bounded widths and a charge for each field."""

    def __init__(self, environment: TemplateEnvironment) -> None:
        super().__init__(environment)
        self._environment = environment

    def format_field(self, value: Any, format_spec: str) -> str:
        digits = "".join(char if char in string.digits else " " for char in format_spec).split()
        if any(int(number[:6]) > MAX_WIDTH for number in digits):
            fail_limit("formats a value with a width that is too large")
        text = cast(str, super().format_field(value, format_spec))
        return self._environment.budget.admit(text)


class TemplateEnvironment(ImmutableSandboxedEnvironment):
    """One environment a template. `budget` is the account of the rendering that runs now."""

    code_generator_class = _Generator
    intercepted_binops = frozenset({"+", "-", "*", "/", "//", "%", "**"})

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=[_GenerationTag, loopcontrols],
            optimized=False,  # nothing of the template runs while it is compiled
            finalize=_finalize,
            cache_size=0,
        )
        self.budget = Budget(seconds=0, steps=0)
        self.filters.clear()
        self.filters.update(template_filters(self))
        self.tests.clear()
        self.tests.update(template_tests(self))
        bounded_range = self.globals["range"]
        self.globals.clear()
        self.globals.update(template_globals(), range=bounded_range)

    # The guards that `_Meter` and the generated code call.

    def meter_loop(self, iterable: Any, weight: int) -> MeteredLoop:
        return MeteredLoop(iterable, self.budget, weight)

    def meter_value(self, value: Any) -> Any:
        self.budget.step()
        return value

    def admit_value(self, value: Any) -> Any:
        self.budget.step()
        return self.budget.admit(value)

    def concat_values(self, *values: Any) -> str:
        """`a ~ b ~ c`"""
        texts = []
        for value in values:
            texts.append(text := str(value))
            self.budget.produce(len(text))
        return self.concat(texts)

    def concat(self, parts: Iterable[str]) -> str:
        """Joins what a macro or a `set` block put out."""
        self.budget.step()
        parts = list(parts)
        self.budget.produce(sum(map(len, parts)))
        return "".join(parts)

    # jinja2's own hooks.

    def call(self, context: Context, obj: Any, /, *args: Any, **kwargs: Any) -> Any:
        self.budget.step()
        if isinstance(obj, types.BuiltinMethodType) and isinstance(obj.__self__, str):
            for name in ("_loop_vars", "_block_vars"):  # jinja2's own, for functions that take a context
                kwargs.pop(name, None)
            return self.budget.admit(
                call_text_method(self.budget, obj.__self__, obj.__name__, *args, **kwargs)
            )
        if isinstance(obj, LoopContext) and args:
            args = (self.meter_loop(args[0], 1), *args[1:])
        # A macro makes lists of them (`varargs`, `kwargs`) that are never seen here.
        if any(isinstance(arg, CONTAINERS) for arg in (*args, *kwargs.values())):
            self.budget.admit((*args, *kwargs.values()))
        self.budget.enter()
        try:
            return self.budget.admit(super().call(context, obj, *args, **kwargs))
        finally:
            self.budget.leave()

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        return binary_operation(self.budget, operator, left, right)

    def getattr(self, obj: Any, attribute: str) -> Any:
        self.budget.step()
        return super().getattr(obj, attribute)

    def getitem(self, obj: Any, argument: Any) -> Any:
        """Filters call it too, for each part of an `attribute` of each item."""
        self.budget.step()
        return super().getitem(obj, argument)

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        if attr.startswith("_"):
            return False
        if isinstance(obj, TemplateNamespace):
            return True
        return any(isinstance(obj, kind) and attr in names for kind, names in _ATTRIBUTES)

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        """Replaces jinja2's wrapper of `str.format` by one that counts."""
        if not isinstance(value, types.BuiltinMethodType) or not isinstance(value.__self__, str):
            return None
        if value.__name__ != "format":
            return None
        text = value.__self__

        def format_text(*args: Any, **kwargs: Any) -> str:
            return _TextFormatter(self).vformat(text, args, kwargs)

        return format_text

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        tree = super()._parse(source, name, filename)
        if sum(1 for _ in tree.find_all(nodes.Node)) > MAX_SOURCE_NODES:
            raise jinja2.TemplateSyntaxError("the template is too complex", 1)
        return cast(nodes.Template, _Meter().visit(tree))


@jinja2.pass_context  # a finalizer that wants the context is never run by the compiler
def _finalize(context: Context, value: Any) -> str:
    budget = cast(TemplateEnvironment, context.environment).budget
    budget.step()
    text = value if type(value) is str else str(value)
    budget.produce(len(text))
    return text


class SandboxedTemplate:
    """A compiled template. Renders on any thread, one rendering at a time.

    Raises ChatTemplateError when the source can't be compiled.
    """

    def __init__(self, source: str) -> None:
        if len(source) > MAX_SOURCE_CHARS:
            raise ChatTemplateError(
                f"The model's chat template is {len(source):,} characters long; "
                f"at most {MAX_SOURCE_CHARS:,} are read."
            )
        self._environment = TemplateEnvironment()
        self._lock = threading.Lock()
        try:
            self._template = self._environment.from_string(source)
        except jinja2.TemplateSyntaxError as error:
            words = _one_line(error.message or "syntax error").rstrip(".")
            reason = f"line {error.lineno}: {words}"
            raise ChatTemplateError(f"The model's chat template can't be read: {reason}.") from error
        except Exception as error:  # whatever foreign source makes the compiler raise is reported
            raise ChatTemplateError(
                f"The model's chat template can't be read: {_one_line(str(error) or type(error).__name__)}."
            ) from error

    def render(self, variables: Mapping[str, Any], budget: Budget) -> str:
        """The text of the template over plain data (str, int, bool, None, list, dict).

        Raises TemplateLimitError when the budget is used up, else ChatTemplateError with the template's own
        words.
        """
        with self._lock:
            self._environment.budget = budget
            parts: list[str] = []
            try:
                for part in self._template.generate(dict(variables)):
                    budget.produce(len(part))
                    parts.append(part)
            except TemplateLimitError:
                raise
            except TemplateRaised as error:
                raise ChatTemplateError(_refusal(_one_line(error.message or ""))) from error
            except RecursionError:
                fail_limit("calls itself too deeply")
            except MemoryError:
                fail_limit("needs too much memory")
            except Exception as error:  # a template can raise anything, and all of it is reported
                words = _one_line(str(error)) or type(error).__name__
                raise ChatTemplateError(f"The model's chat template failed: {words}") from error
            return "".join(parts)


def _refusal(words: str) -> str:
    """words: the template's own; "" where it says none."""
    if not words:
        return "The model's chat template refuses these messages: it gives no reason."
    sentence = f"The model's chat template refuses these messages: {words}"
    return sentence if words.endswith((".", "!", "?")) else sentence + "."


def _one_line(text: str) -> str:
    """Foreign words for a person to read: no line breaks, no characters that steer a terminal."""
    start = text[: 4 * MAX_REASON_CHARS]
    line = " ".join("".join(" " if unicodedata.category(c) in _STEERING else c for c in start).split())
    return line if len(line) <= MAX_REASON_CHARS else line[:MAX_REASON_CHARS] + "…"
