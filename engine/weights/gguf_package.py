"""The `gguf` package: block sizes and dequantising of every tensor type. Imported only when a GGUF file is
opened.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from engine.errors import UnsupportedModelError
from engine.weights.gguf_header import TypeSizes

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

PLAIN_DTYPES = frozenset({"F32", "F16", "BF16"})  # read as they are

# The package works on 16 rows at a time. Blocks don't depend on rows, so they are regrouped into rows of
# which 16 just fit into the processor's cache: 1.1 to 2 times as fast, depending on the type.
_NUMBERS_PER_ROW = 8192
_ROWS_PER_CALL = 256


def type_sizes() -> TypeSizes:
    """Raises UnsupportedModelError when the package isn't installed."""
    try:
        from gguf.constants import GGML_QUANT_SIZES
    except ImportError as error:
        raise UnsupportedModelError(
            "GGUF files need the Python package gguf, which is not installed.",
            "Install it (pip install gguf), or pick a safetensors folder.",
        ) from error
    return TypeSizes({int(kind): (kind.name, *sizes) for kind, sizes in GGML_QUANT_SIZES.items()})


def readable_dtypes() -> frozenset[str]:
    """Names of the types that can be turned into numbers."""
    from gguf import GGMLQuantizationType, quants

    return PLAIN_DTYPES | {kind.name for kind in GGMLQuantizationType if hasattr(quants, kind.name)}


def dequantize_into(out: npt.NDArray[np.float32], raw: npt.NDArray[np.uint8], dtype: str) -> None:
    """Fills `out` (flat) with the numbers of the blocks in `raw` (flat)."""
    from gguf import GGML_QUANT_SIZES, GGMLQuantizationType
    from gguf.quants import dequantize

    kind = GGMLQuantizationType[dtype]
    block_size, block_bytes = GGML_QUANT_SIZES[kind]
    num_blocks = raw.size // block_bytes
    width = max(1, min(_NUMBERS_PER_ROW // block_size, num_blocks))  # blocks in a row
    step = width * _ROWS_PER_CALL
    whole = num_blocks // width * width
    for start, end in [*((i, min(i + step, whole)) for i in range(0, whole, step)), (whole, num_blocks)]:
        if start < end:
            row_bytes = min(width, end - start) * block_bytes
            rows = raw[start * block_bytes : end * block_bytes].reshape(-1, row_bytes)
            out[start * block_size : end * block_size] = dequantize(rows, kind).reshape(-1)
