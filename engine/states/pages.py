"""Who holds which page of a pool: reference counts, and copies where two would write.

The pool itself counts nothing. Several sequences may hold one page as long as none of them writes into it;
`make_writable` sees to that before a step, and is the only way to pages that may be written.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING

from engine.backend import PagePool, Sequence
from engine.kv_geometry import PAGE, KvGeometry, pages_for

if TYPE_CHECKING:
    import torch

_SCALE_BYTES = 4  # of a float32


class PageLedger:
    """The one owner of a pool's pages. Not safe to use from two threads at once."""

    def __init__(self, pool: PagePool) -> None:
        """The pool is empty, and nobody else allocates from it."""
        self.pool = pool
        self._holders: dict[int, int] = {}  # page -> how many sequences hold it

    @property
    def num_pages(self) -> int:
        """Pages that are held by anybody."""
        return len(self._holders)

    def make_writable(self, sequence: Sequence, num_tokens: int) -> bool:
        """Sees to it that the `num_tokens` rows behind the sequence lie in pages that are there and its own.

        Allocates what is missing, and copies the last page if somebody else holds it as well. False: the pool
        is full, and nothing has changed.
        """
        needed = pages_for(sequence.length + num_tokens)
        first = sequence.length // PAGE  # the first page that is written
        shared = [i for i in range(first, min(needed, len(sequence.pages))) if self._is_shared(sequence, i)]
        fresh = self._allocate(len(shared) + max(0, needed - len(sequence.pages)))
        if fresh is None:
            return False
        for index in shared:
            page = fresh.pop()
            if sequence.length > index * PAGE:
                self.pool.copy(sequence.pages[index], page)
            self._release(sequence.pages[index])
            sequence.pages[index] = page
        sequence.pages.extend(fresh)
        return True

    def fork(self, sequence: Sequence, length: int) -> Sequence:
        """A second sequence for the first `length` tokens, on the same pages. Takes no memory: the last page,
        if it is not full, is copied when one of the two is about to write into it.
        """
        assert 0 <= length <= sequence.length
        pages = sequence.pages[: pages_for(length)]
        for page in pages:
            self._holders[page] += 1
        return Sequence(pages, length)

    def truncate(self, sequence: Sequence, length: int) -> None:
        """Forget the tokens from `length` on, and give back the pages that held nothing else."""
        assert 0 <= length <= sequence.length
        keep = pages_for(length)
        for page in sequence.pages[keep:]:
            self._release(page)
        del sequence.pages[keep:]
        sequence.length = length

    def release(self, sequence: Sequence) -> None:
        """Give back every page; the sequence is empty then."""
        self.truncate(sequence, 0)

    def read(self, sequence: Sequence) -> list[torch.Tensor]:
        """Copies of the pages, uint8 (page_bytes,). Rows that count for nothing are zeros: they may be left
        over from other texts, and have no business outside the pool.
        """
        data = [self.pool.read(page) for page in sequence.pages[: pages_for(sequence.length)]]
        if sequence.length % PAGE:
            clear_rows(data[-1], self.pool.geometry, sequence.length % PAGE)
        return data

    def take_out(self, sequence: Sequence) -> list[torch.Tensor]:
        """What `read` gives, each page given back as soon as it is copied, so at most one is there twice. The
        last comes first: when memory for a copy is missing, the sequence is as long as what it still has.
        Raises OutOfMemoryError.
        """
        data = []
        while sequence.length:
            index = pages_for(sequence.length) - 1
            page = self.pool.read(sequence.pages[index])
            if sequence.length % PAGE:
                clear_rows(page, self.pool.geometry, sequence.length % PAGE)
            data.append(page)
            self.truncate(sequence, index * PAGE)
        return data[::-1]

    def load(self, data: Iterable[torch.Tensor], length: int) -> Sequence | None:
        """A new sequence of `length` tokens with the first pages of `data`. None: the pool is full, and
        nothing has changed.
        """
        pages = self._allocate(pages_for(length))
        if pages is None:
            return None
        for page, content in zip(pages, data, strict=False):
            self.pool.write(page, content)
        return Sequence(pages, length)

    def check(self, sequences: Iterable[Sequence]) -> None:
        """For tests: every page is held exactly by `sequences`, and none twice by one of them."""
        held: Counter[int] = Counter()
        for sequence in sequences:
            assert len(set(sequence.pages)) == len(sequence.pages), "a page twice in one sequence"
            assert len(sequence.pages) >= pages_for(sequence.length), "a sequence lacks pages"
            held.update(sequence.pages)
        assert dict(held) == self._holders, "pages are held by nobody, or counted wrongly"

    def _is_shared(self, sequence: Sequence, index: int) -> bool:
        return self._holders[sequence.pages[index]] > 1

    def _allocate(self, count: int) -> list[int] | None:
        """`count` pages with one holder each, or none at all."""
        pages: list[int] = []
        while len(pages) < count:
            page = self.pool.allocate()
            if page is None:
                for taken in pages:
                    self._release(taken)
                return None
            assert page not in self._holders, "the pool gave a page away twice"
            self._holders[page] = 1
            pages.append(page)
        return pages

    def _release(self, page: int) -> None:
        self._holders[page] -= 1
        if not self._holders[page]:
            del self._holders[page]
            self.pool.free(page)


def clear_rows(page: torch.Tensor, geometry: KvGeometry, first: int) -> None:
    """Zeros in the rows from `first` on, in every part of a page (see `KvGeometry`)."""
    code_bytes = 1 if geometry.format == "int8" else 4
    start = 0
    for heads, head_dim in geometry.layers:
        widths = [head_dim * code_bytes] * 2
        if geometry.format == "int8":
            widths += [_SCALE_BYTES] * 2
        for width in widths:
            end = start + heads * PAGE * width
            page[start:end].view(heads, PAGE, width)[:, first:] = 0
            start = end
    assert start == geometry.page_bytes
