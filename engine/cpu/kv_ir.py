"""Kernels over pages of keys and values as LLVM IR. What the bytes of a page mean stands in
`engine/kv_geometry.py`; a layer of it is 2 G heads, those of K and then those of V.

Every number has one way of being computed, whatever the number of threads, pages or rows: a page's share of
the attention is summed from its first token on, and the pages' shares are joined from the first page on.
"""

from __future__ import annotations

from engine.cpu.kv_attention_ir import JOIN_TEXT, attend_text
from engine.cpu.kv_rows_ir import APPEND_TEXT, WIDEN_TEXT
from engine.cpu.vector_ir import COMMON, share
from engine.kv_geometry import KvFormat


def kernel_text(kv_format: KvFormat) -> str:
    """The module with all of `kernels(kv_format)` and, of each, the share of a team's thread."""
    texts = attend_text(kv_format) + JOIN_TEXT
    if kv_format == "int8":
        texts += APPEND_TEXT + WIDEN_TEXT
    return COMMON + texts + "".join(share(name) for name in kernels(kv_format))


def kernels(kv_format: KvFormat) -> tuple[str, ...]:
    """Rows of float32 are appended and read by torch, which does nothing but copy."""
    return ("attend", "join", *(("append", "widen") if kv_format == "int8" else ()))
