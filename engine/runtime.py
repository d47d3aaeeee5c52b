"""Brings torch into the process without holding up other threads, and sets how many it computes with."""

from __future__ import annotations

import ctypes
import gc
import importlib
import importlib.util
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

# In the order in which they need each other; the first two are small, the third is some 400 MB.
_LIBRARIES = (
    "libtorch_global_deps.so",
    "libc10.so",
    "libtorch_cpu.so",
    "libtorch.so",
    "libtorch_python.so",
)

_OTHERS = ("numpy", "tokenizers")  # what else brings a library, and is needed before torch is

_preloading: list[threading.Thread] = []  # one at most


def begin_runtime() -> None:
    """Have the system bring torch's libraries in while this thread does other things. `prepare_runtime` has
    to follow.
    """
    if "torch" not in sys.modules and not _preloading:
        _limit_spinning()
        _import_others()
        thread = threading.Thread(target=_preload_libraries, name="preload")
        _preloading.append(thread)
        thread.start()


def await_libraries() -> None:
    """Return when what `begin_runtime` has begun is done. The system loads one library at a time, and Python
    waits for its turn with the interpreter's lock held: who is going to load one waits here before.
    """
    for thread in _preloading:
        thread.join()


def prepare_runtime(threads: int) -> None:
    """Import torch if need be and have it use `threads` threads (a setting of the whole process)."""
    begin_runtime()
    await_libraries()
    with _no_collections():
        import torch

    if torch.get_num_threads() != threads:
        torch.set_num_threads(threads)


@contextmanager
def _no_collections() -> Iterator[None]:
    """As long as it is entered, no cyclic garbage is looked for. An import makes a great many objects that
    stay, and going through them over and over is a quarter of its time (0.2 s with torch).
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def default_threads() -> int:
    """One thread for each core that this process may use; a second one only gets in the way of products. No
    more than OMP_NUM_THREADS, with which a person leaves cores to other programs.
    """
    cores = psutil.cpu_count(logical=False) or os.cpu_count() or 1
    if hasattr(os, "sched_getaffinity"):
        cores = min(cores, len(os.sched_getaffinity(0)))
    most = os.environ.get("OMP_NUM_THREADS", "").split(",")[0].strip()  # the rest are for nested regions
    if most.isdecimal() and int(most) > 0:
        cores = min(cores, int(most))
    return max(1, cores)


def release_memory() -> None:
    """Give freed memory back to the system; otherwise the C library keeps pieces of up to 32 MiB."""
    if sys.platform.startswith("linux"):
        try:
            ctypes.CDLL(None).malloc_trim(0)
        except (AttributeError, OSError):
            return  # a C library other than glibc: it has its own ways


def _limit_spinning() -> None:
    """Have OpenMP's threads sleep soon when they wait for each other, unless the person has set how they
    wait.

    By default they spin for a good millisecond, on cores that others could use: one busy program beside this
    one (or its own window) and every step waits for whole time slices. Measured on two cores with a 135M
    model: alone 20 ms a token either way (21 with this), beside other work 50 ms instead of 150 and more. A
    thousand turns, some 20 microseconds, still cover the pauses between two products of a step.
    """
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", "1000")  # read once, by GNU's OpenMP when it is loaded


def _import_others() -> None:
    """As long as torch's libraries come in, who imports a library waits with the interpreter's lock held, up
    to 0.2 s. So the others come first (0.05 s); whoever needs them reports what is missing.
    """
    for name in _OTHERS:
        with suppress(ImportError):
            importlib.import_module(name)


def _preload_libraries() -> None:
    """Have the system load torch's libraries while Python goes on.

    `import torch` loads them with the interpreter's lock held, and every other thread (the window's too)
    stands still for up to half a second. The same work done by calling dlopen as a foreign function releases
    the lock; the import then finds them loaded. It only ever saves time: whatever goes wrong here is left to
    the import to report.
    """
    if not sys.platform.startswith("linux"):
        return
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        return
    try:
        dlopen = ctypes.CDLL(None).dlopen
    except (AttributeError, OSError):
        return  # a C library that keeps dlopen elsewhere
    dlopen.restype = ctypes.c_void_p
    dlopen.argtypes = [ctypes.c_char_p, ctypes.c_int]
    folder = Path(spec.origin).parent / "lib"
    for name in _LIBRARIES:
        # A library that is missing gives a null pointer, which is no concern of ours here.
        dlopen(os.fsencode(folder / name), os.RTLD_NOW | os.RTLD_LOCAL)
