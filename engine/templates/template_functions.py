"""What a chat template may call: filters, tests, text methods and globals, each with its cost known before it
runs.

Everything here is either harmless by nature (its result is no larger than what it was given) or predicts the
size of its result first. Filters that can't be predicted (`pprint`, `urlize`, `wordwrap`, ...) or that would
make two renderings differ (`random`) are left out: chat templates don't use them.
"""

from __future__ import annotations

import functools
import json
import re
import types
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any, cast

import jinja2
import markupsafe
from jinja2 import filters as jinja_filters
from jinja2.tests import TESTS
from jinja2.utils import Cycler, Joiner, Namespace

from engine.templates.template_budget import Budget, fail_limit

if TYPE_CHECKING:
    from engine.templates.template_sandbox import TemplateEnvironment

MAX_WIDTH = 1000  # of a formatted field, an indent, a JSON indent
MAX_STRIP_CHARS = 256
MAX_REVERSE_SEARCH = 50_000_000  # needle x text: searching from the end takes that many steps at worst
MAX_TIME_FORMAT = 200

_PRINTF = re.compile(r"%(?:\([^)]*\))?[#0\- +]*(\*|\d*)(?:\.(\*|\d*))?")

_PLAIN_FILTERS = (
    "abs", "capitalize", "count", "d", "default", "filesizeformat", "first", "float", "int", "last", "length",
    "lower", "string", "title", "truncate", "upper", "urlencode", "wordcount",
)  # fmt: skip
_ITERATING_FILTERS = (
    "dictsort", "groupby", "items", "list", "map", "max", "min", "reject", "rejectattr", "reverse", "select",
    "selectattr", "slice", "sort", "unique",
)  # fmt: skip


class OneShot:
    """Stands for the generator that a lazy filter returns: true, without a length, and used up by the first
    loop.

    The items are made at once, so that generators can't be stacked on one another.
    """

    def __init__(self, items: list[Any]) -> None:
        self._iterator = iter(items)

    def __iter__(self) -> Iterator[Any]:
        return self._iterator

    def __repr__(self) -> str:
        return "<generator>"


class TemplateNamespace(Namespace):
    """`namespace()` that prints without its content, because it is the one value that can hold itself."""

    def __setitem__(self, name: str, value: Any) -> None:
        if name.startswith("_"):
            raise jinja2.TemplateRuntimeError(f"namespace attribute {name!r} starts with an underscore")
        super().__setitem__(name, value)

    def __repr__(self) -> str:
        return "<Namespace>"


class TemplateRaised(jinja2.TemplateError):
    """`raise_exception(message)` was called: the template refuses the messages in its own words."""


def raise_exception(message: Any = "") -> None:
    raise TemplateRaised(str(message))


def strftime_now(time_format: str) -> str:
    # The C library gives back at most 256 characters for each one of the format.
    if len(time_format) > MAX_TIME_FORMAT:
        fail_limit("formats the time with a text that is too long")
    return datetime.now().strftime(time_format)  # local time, as people mean it


def template_globals() -> dict[str, Any]:
    """Globals besides `range`, which the sandbox brings along with its own bound."""
    return {
        "dict": dict,
        "namespace": TemplateNamespace,
        "cycler": Cycler,
        "joiner": Joiner,
        "raise_exception": raise_exception,
        "strftime_now": strftime_now,
    }


def template_tests(environment: TemplateEnvironment) -> dict[str, Callable[..., Any]]:
    """jinja2's own tests, each of them a step."""

    def stepping(test: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(test)
        def run(*args: Any, **kwargs: Any) -> Any:
            environment.budget.step()
            return test(*args, **kwargs)

        return run

    return {name: stepping(cast(Callable[..., Any], test)) for name, test in TESTS.items()}


def template_filters(environment: TemplateEnvironment) -> dict[str, Callable[..., Any]]:
    """All filters, each of them a step whose result is charged."""
    own = _OwnFilters(environment)
    table: dict[str, Callable[..., Any]] = {
        "batch": own.batch,
        "center": own.center,
        "e": own.escape,
        "escape": own.escape,
        "forceescape": own.escape,
        "format": own.format,
        "indent": own.indent,
        "join": own.join,
        "replace": own.replace,
        "round": own.round,
        "safe": own.safe,
        "sum": own.sum,
        "tojson": own.tojson,
        "trim": own.trim,
    }
    for name in _PLAIN_FILTERS + _ITERATING_FILTERS:
        table[name] = jinja_filters.FILTERS[name]
    return {
        name: _metered(environment, function, iterates=name in _ITERATING_FILTERS)
        for name, function in table.items()
    }


def _metered(
    environment: TemplateEnvironment, function: Callable[..., Any], *, iterates: bool
) -> Callable[..., Any]:
    # jinja2 passes a context or environment first to the functions that are marked so; `wraps` keeps the
    # mark.
    position = 1 if hasattr(function, "jinja_pass_arg") else 0

    @functools.wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        budget = environment.budget
        budget.step()
        if iterates and len(args) > position:
            budget.step(_length(args[position]))
        result = function(*args, **kwargs)
        if isinstance(result, types.GeneratorType):
            items = []
            for item in result:
                budget.step()
                items.append(item)
            budget.admit(items)
            return OneShot(items)
        return budget.admit(result)

    return run


def _length(value: Any) -> int:
    """How many turns a loop over `value` takes; one-shot iterators were paid for when they were made."""
    try:
        return len(value)
    except TypeError:
        return 0


class _OwnFilters:
    """Filters whose jinja2 originals can make a large result from small arguments."""

    def __init__(self, environment: TemplateEnvironment) -> None:
        self._environment = environment

    @property
    def _budget(self) -> Budget:
        return self._environment.budget

    def batch(self, value: Iterable[Any], linecount: int, fill_with: Any = None) -> list[list[Any]]:
        self._budget.step(_length(value))
        if linecount > MAX_WIDTH:
            fail_limit("asks for rows that are too long")
        return list(jinja_filters.do_batch(value, linecount, fill_with))

    def center(self, value: Any, width: int = 80) -> str:
        self._budget.check_size(width)
        return str(value).center(width)

    def escape(self, value: Any) -> str:
        return str(markupsafe.escape(str(value)))

    def safe(self, value: Any) -> str:
        return str(value)

    def format(self, value: Any, *args: Any, **kwargs: Any) -> str:
        if args and kwargs:
            raise jinja2.TemplateRuntimeError("format takes positional or named arguments, not both")
        return percent_format(self._budget, str(value), kwargs or args)

    def indent(self, s: Any, width: int | str = 4, first: bool = False, blank: bool = False) -> str:
        text = str(s)
        margin = width if isinstance(width, int) else len(width)
        if margin > MAX_WIDTH:
            fail_limit("asks for an indent that is too wide")
        self._budget.check_size(len(text) + margin * (len(text.splitlines()) + 1))
        return jinja_filters.do_indent(text, width, first, blank)

    def join(self, value: Iterable[Any], d: Any = "", attribute: str | int | None = None) -> str:
        self._budget.step(_length(value))
        if attribute is not None:
            getter = jinja_filters.make_attrgetter(self._environment, attribute)
            value = map(getter, value)
        texts = []
        for item in value:
            texts.append(text := str(item))
            self._budget.produce(len(text))
        return join_texts(self._budget, str(d), texts)

    def replace(self, s: Any, old: Any, new: Any, count: int | None = None) -> str:
        return replace_text(self._budget, str(s), str(old), str(new), -1 if count is None else count)

    def round(self, value: float, precision: int = 0, method: Any = "common") -> float:
        if abs(precision) > 100:
            fail_limit("rounds to too many digits")
        return jinja_filters.do_round(value, precision, method)

    def sum(self, iterable: Iterable[Any], attribute: str | int | None = None, start: Any = 0) -> Any:
        self._budget.step(_length(iterable))
        if attribute is not None:
            iterable = map(jinja_filters.make_attrgetter(self._environment, attribute), iterable)
        total = start
        for item in iterable:
            total = binary_operation(self._budget, "+", total, item)
        return total

    def tojson(
        self,
        value: Any,
        ensure_ascii: bool = False,
        indent: int | str | None = None,
        separators: tuple[str, str] | None = None,
        sort_keys: bool = False,
    ) -> str:
        """As transformers renders it: no escapes for HTML, letters of all languages as they are."""
        widest = max(map(len, separators)) if separators else 2
        margin = indent if isinstance(indent, int) else len(indent or "")
        if max(margin, widest) > MAX_WIDTH:
            fail_limit("asks for JSON that is too wide")
        if margin or widest > 2:
            self._budget.check_size(self._budget.weigh(value) * (1 + margin + widest))
        return json.dumps(
            value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
        )

    def trim(self, value: Any, chars: str | None = None) -> str:
        check_strip(chars)
        return str(value).strip(chars)


def binary_operation(budget: Budget, operator: str, left: Any, right: Any) -> Any:
    """`left operator right`, with the size of the result known first where it can outgrow both sides."""
    budget.step()
    match operator:
        case "+":
            if isinstance(left, (str, list, tuple)):
                budget.check_size(len(left) + _length(right))
            result = left + right
        case "*":
            result = _multiply(budget, left, right)
        case "**":
            if isinstance(left, int) and isinstance(right, int):
                if left.bit_length() * max(right, 0) > 4096:
                    fail_limit("makes a number that is too large")
            elif not isinstance(left, (int, float)) or not isinstance(right, (int, float)):
                raise TypeError(f"can't raise {type(left).__name__} to the power of {type(right).__name__}")
            result = left**right
        case "%":
            result = percent_format(budget, left, right) if isinstance(left, str) else left % right
        case "-":
            result = left - right
        case "/":
            result = left / right
        case "//":
            result = left // right
        case _:
            raise TypeError(f"unknown operator {operator}")
    return budget.admit(result)


def _multiply(budget: Budget, left: Any, right: Any) -> Any:
    for sequence, count in ((left, right), (right, left)):
        if isinstance(sequence, (str, list, tuple)) and isinstance(count, int):
            budget.check_size(budget.weigh(sequence) * max(count, 0))
    return left * right


def percent_format(budget: Budget, text: str, values: Any) -> str:
    """`text % values`, with bounded widths."""
    conversions = _PRINTF.findall(text)
    for width, precision in conversions:
        if (
            "*" in (width, precision)
            or int(width[:6] or 0) > MAX_WIDTH
            or int(precision[:6] or 0) > MAX_WIDTH
        ):
            fail_limit("formats a value with a width that is too large")
    parts = (
        values.values() if isinstance(values, Mapping) else values if isinstance(values, tuple) else (values,)
    )
    largest = max((budget.weigh(part) for part in parts), default=0)
    if isinstance(values, Mapping):  # "%s" % {...} prints all of it
        largest = max(largest, budget.weigh(values))
    budget.check_size(len(text) + len(conversions) * (largest + 2 * MAX_WIDTH))
    result: str = text % values
    return result


def join_texts(budget: Budget, separator: str, texts: list[str]) -> str:
    budget.check_size(sum(map(len, texts)) + len(separator) * max(len(texts) - 1, 0))
    return separator.join(texts)


def replace_text(budget: Budget, text: str, old: str, new: str, count: int) -> str:
    found = text.count(old)
    if count >= 0:
        found = min(found, count)
    budget.check_size(len(text) + found * max(len(new) - len(old), 0))
    return text.replace(old, new, count)


def check_strip(chars: str | None) -> None:
    """Stripping looks each character of the text up in `chars`, one by one."""
    if chars is not None and len(chars) > MAX_STRIP_CHARS:
        fail_limit("strips too many different characters")


def call_text_method(budget: Budget, text: str, name: str, *args: Any, **kwargs: Any) -> Any:
    """`text.name(*args, **kwargs)`, where `name` is one of those that the sandbox lets through."""
    match name:
        case "center" | "ljust" | "rjust" | "zfill":
            if args and isinstance(args[0], int):
                budget.check_size(args[0])
        case "join" if len(args) == 1 and not kwargs:
            budget.step(_length(args[0]))
            texts = list(args[0])
            if all(isinstance(item, str) for item in texts):
                return join_texts(budget, text, texts)
        case "replace" if len(args) >= 2 and isinstance(args[0], str) and isinstance(args[1], str):
            count = args[2] if len(args) > 2 else kwargs.get("count", -1)
            return replace_text(budget, text, args[0], args[1], count)
        case "strip" | "lstrip" | "rstrip":
            check_strip(args[0] if args else None)
        case "rfind" | "rindex" | "rsplit" | "rpartition":
            needle = args[0] if args else kwargs.get("sep")
            if isinstance(needle, str) and len(needle) * len(text) > MAX_REVERSE_SEARCH:
                fail_limit("searches for a text that is too long")
        case _:
            pass
    return getattr(text, name)(*args, **kwargs)
