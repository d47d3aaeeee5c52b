"""Threads for one piece of work that is cut into many small ones."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager


@contextmanager
def worker_threads(count: int, name: str) -> Iterator[ThreadPoolExecutor]:
    """A pool for as long as it is entered. What is raised within leaves out everything that has not begun, so
    that it comes out after one small piece; an executor by itself would finish all of them first.
    """
    with ThreadPoolExecutor(count, name) as pool:
        try:
            yield pool
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
