"""What is launched by name, and which kernels may begin while the launch before still runs."""

from __future__ import annotations

import ctypes
import re
from typing import Any

import pytest

from engine.cuda.driver import CardInfo
from engine.cuda.kernel_set import OVERLAPPING, THREADS, KernelSet, kernel_sources

WAIT = "wait_for_previous();"


class Arguments(ctypes.Structure):
    _fields_ = (("address", ctypes.c_int64),)


class Compiler:
    notices = ()

    def compile(self, sources: dict[str, str], main: str, *, card: CardInfo) -> bytes:
        return b"code"


class Driver:
    info = CardInfo("Card", (9, 0), 2**30, 132, "1.0")

    def __init__(self) -> None:
        self.launches: list[tuple[object, dict[str, Any]]] = []

    def load(self, code: bytes, names: list[str]) -> dict[str, object]:
        return {name: name for name in names}

    def launch(self, kernel: object, arguments: ctypes.Structure, **options: Any) -> None:
        self.launches.append((kernel, options))


def test_a_launch_is_of_as_many_threads_as_the_kernel_has_and_counted() -> None:
    driver = Driver()
    kernels = KernelSet(driver, Compiler())  # type: ignore[arg-type]
    for name in THREADS:
        kernels.launch(name, Arguments(), grid=(1, 2, 3), shared_bytes=5)
    assert kernels.num_launches == len(THREADS)
    assert driver.launches == [
        (
            name,
            {"grid": (1, 2, 3), "block": block, "shared_bytes": 5, "overlaps": False},
        )
        for name, block in THREADS.items()
    ]


def overlapping(driver: Driver, kernels: KernelSet) -> set[object]:
    """Which kernels may do so now."""
    driver.launches.clear()
    for name in THREADS:
        kernels.launch(name, Arguments(), grid=(1, 1, 1))
    return {name for name, options in driver.launches if options["overlaps"]}


def test_kernels_that_wait_themselves_overlap_where_that_is_allowed() -> None:
    driver = Driver()
    kernels = KernelSet(driver, Compiler())  # type: ignore[arg-type]
    assert overlapping(driver, kernels) == set()
    with kernels.overlapping():
        assert overlapping(driver, kernels) == OVERLAPPING
        with kernels.overlapping(allowed=False):
            assert overlapping(driver, kernels) == set()
        assert overlapping(driver, kernels) == OVERLAPPING
    with pytest.raises(KeyboardInterrupt), kernels.overlapping():
        raise KeyboardInterrupt
    assert overlapping(driver, kernels) == set()


def plain(text: str) -> str:
    """Without comments, and with one line a macro."""
    return re.sub(r"//[^\n]*|/\*.*?\*/", "", text, flags=re.DOTALL).replace("\\\n", " ")


MACRO = re.compile(r"^#define (?!KESTREL_)(\w+)\(([^)]*)\)(.*)\n", re.MULTILINE)


def expanded(text: str, macros: dict[str, tuple[list[str], str]]) -> str:
    """What macros stand for, in place of their uses, also where that uses others."""
    text = MACRO.sub("", text)
    while used := re.search(rf"\b({'|'.join(macros)})\(([^()]*)\)", text):
        parameters, made = macros[used[1]]
        for parameter, given in zip(parameters, used[2].split(","), strict=True):
            made = re.sub(rf"(?:##)?\b{parameter}\b(?:##)?", given.strip(), made)
        text = text[: used.start()] + made + text[used.end() :]
    return text


def all_expanded(texts: list[str]) -> list[str]:
    macros = {
        name: ([each.strip() for each in parameters.split(",")], body)
        for text in texts
        for name, parameters, body in MACRO.findall(text)
    }
    return [expanded(text, macros) for text in texts]


def body_at(text: str, start: int) -> str:
    """From the first brace behind `start` to the one that closes it."""
    opened = text.index("{", start)
    depth = 0
    for position in range(opened, len(text)):
        depth += {"{": 1, "}": -1}.get(text[position], 0)
        if depth == 0:
            return text[opened : position + 1]
    raise AssertionError("a brace is never closed")


def kernels_in(text: str) -> dict[str, str]:
    """Body of each, by name."""
    defined = re.compile(r"KESTREL_KERNEL(?:_SHARING)?\((\w+),[^)]*\)\s*(?=\{)")
    return {found[1]: body_at(text, found.end()) for found in defined.finditer(text)}


def functions_in(text: str) -> dict[str, str]:
    """Body of each that a kernel may call, by name."""
    defined = re.compile(r"KESTREL_DEVICE\s+[\w\s*&:<>]+?\b(\w+)\([^;{}]*\)\s*(?:const\s*)?(?=\{)")
    return {found[1]: body_at(text, found.end()) for found in defined.finditer(text)}


TEXTS = [
    re.sub(r"^#.*\n", "", text, flags=re.MULTILINE)
    for text in all_expanded([plain(text) for text in kernel_sources().values()])
]
KERNELS = {name: body for text in TEXTS for name, body in kernels_in(text).items()}


def waits(name: str) -> bool:
    """In its own body, or in that of a function of its file that it calls, or that calls."""
    [functions] = [functions_in(text) for text in TEXTS if name in kernels_in(text)]
    bodies, found = [KERNELS[name]], set[str]()
    while bodies:
        body = bodies.pop()
        if WAIT in body:
            return True
        called = set(re.findall(r"\w+", body)) & set(functions) - found
        found |= called
        bodies += [functions[each] for each in called]
    return False


def test_every_kernel_is_found_in_the_texts() -> None:
    assert set(KERNELS) == set(THREADS)


@pytest.mark.parametrize("name", sorted(OVERLAPPING))
def test_a_kernel_that_may_begin_early_waits_for_what_was_before(name: str) -> None:
    assert waits(name)


@pytest.mark.parametrize("name", sorted(set(THREADS) - OVERLAPPING))
def test_a_kernel_that_waits_may_begin_early(name: str) -> None:
    assert not waits(name)
