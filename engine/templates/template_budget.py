"""What one rendering of a chat template may cost, and the account that is kept of it.

A template comes from a model folder and is untrusted. Nothing inside a process can interrupt a single long
call into C code, so the rule is: every value stays small, every operation is announced before it runs, and no
operation on small values takes long. Lists and dictionaries may share parts, so their weight counts every
part as often as it is reached: printing or comparing a value never costs more than its weight says.
"""

from __future__ import annotations

import time
from collections.abc import ItemsView, KeysView, ValuesView
from typing import Any, NoReturn, TypeVar

from engine.errors import ChatTemplateError

T = TypeVar("T")

MAX_SECONDS = 1.5
MAX_STEPS = 1_000_000  # loop turns, calls, filters, comparisons, outputs
MAX_DEPTH = 40  # macros and recursive loops inside each other
MAX_NESTING = 40  # lists and dictionaries inside each other
MAX_INTEGER_BITS = 4096
BASE_VALUE_CHARS = 2_000_000  # one value, on top of a multiple of what the messages hold
BASE_TOTAL_CHARS = 16_000_000  # everything a rendering makes, kept or not
ITEM_CHARS = 20  # printing or comparing an element of a list costs as much as so many characters
CONTAINER_CHARS = 100  # making a list or dictionary needs as much memory as so many characters,
POINTER_CHARS = 2  # and so many more for each element

CONTAINERS = (list, tuple, dict, set, frozenset, ItemsView, KeysView, ValuesView)


class TemplateLimitError(ChatTemplateError):
    """The template asked for more than a rendering may cost. Other messages would not help."""

    code = "chat-template-limit"


def fail_limit(what: str) -> NoReturn:
    raise TemplateLimitError(
        f"The model's chat template was stopped because it {what}.",
        "Replace the template, or get the model from its original publisher.",
    )


class Budget:
    """The account of one prompt: several renderings of it (rewritten messages) may share one.

    Attributes:
        max_value: the largest weight of one value, in characters.
    """

    def __init__(self, *, input_chars: int = 0, seconds: float = MAX_SECONDS, steps: int = MAX_STEPS) -> None:
        self.max_value = BASE_VALUE_CHARS + 8 * input_chars
        self._chars_left = BASE_TOTAL_CHARS + 64 * input_chars
        self._steps_left = steps
        self._deadline = time.monotonic() + seconds
        self._seconds = seconds
        self._depth = 0
        # Weight and nesting of each container made so far. The container is kept so that its id stays its
        # own; what that holds on to is bounded by the characters that its making was charged.
        self._known: dict[int, tuple[Any, int, int]] = {}

    def step(self, count: int = 1) -> None:
        """Account for `count` steps; raises when they, or the time, are used up."""
        self._steps_left -= count
        if self._steps_left < 0:
            fail_limit("needs too many steps")
        if time.monotonic() > self._deadline:
            fail_limit(f"ran for more than {self._seconds:g} seconds")

    def produce(self, chars: int) -> None:
        """Account for `chars` characters that are about to exist, or do since just now."""
        if chars > self.max_value:
            fail_limit("makes a text or list that is too large")
        self._chars_left -= chars
        if self._chars_left < 0:
            fail_limit("makes too much text")

    def check_size(self, chars: int) -> None:
        """Refuse a value of this weight before it is made. The value itself is charged by `admit`."""
        if chars > self.max_value:
            fail_limit("makes a text or list that is too large")

    def enter(self) -> None:
        """A macro or recursive loop begins; every `enter` that returns needs a `leave`."""
        if self._depth >= MAX_DEPTH:
            fail_limit("calls itself too deeply")
        self._depth += 1

    def leave(self) -> None:
        self._depth -= 1

    def admit(self, value: T) -> T:
        """Charge a value that an operation made, and return it."""
        if isinstance(value, str):
            self.produce(len(value))
        elif isinstance(value, int):
            if value.bit_length() > MAX_INTEGER_BITS:
                fail_limit("makes a number that is too large")
        elif isinstance(value, CONTAINERS) and id(value) not in self._known:
            self.weigh(value)
            self.produce(CONTAINER_CHARS + POINTER_CHARS * len(value))
        return value

    def weigh(self, value: Any) -> int:
        """The weight of a value in characters: of a text its length, of a container all that can be reached
        in it.
        """
        return self._measure(value, 0)[0]

    def _measure(self, value: Any, depth: int) -> tuple[int, int]:
        if isinstance(value, str):
            return len(value), 0
        if not isinstance(value, CONTAINERS):
            return ITEM_CHARS, 0
        known = self._known.get(id(value))
        if known is not None:
            return known[1], known[2]
        if depth > MAX_NESTING:
            fail_limit("nests lists too deeply")
        self.step(1 + len(value) // 8)  # a look-up in C: cheaper than a step of the template
        weight, nesting = ITEM_CHARS, 0
        parts = [*value.keys(), *value.values()] if isinstance(value, dict) else value
        for part in parts:
            part_weight, part_nesting = self._measure(part, depth + 1)
            weight += ITEM_CHARS + part_weight
            nesting = max(nesting, part_nesting)
        self.check_size(weight)
        if nesting >= MAX_NESTING:
            fail_limit("nests lists too deeply")
        self._known[id(value)] = (value, weight, nesting + 1)
        return weight, nesting + 1
