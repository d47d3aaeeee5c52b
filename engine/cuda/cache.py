"""The card's name for `engine.paged_cache.PagedCache`."""

from __future__ import annotations

from engine.paged_cache import PagedCache

CudaCache = PagedCache
