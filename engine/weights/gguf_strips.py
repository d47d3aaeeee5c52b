"""Q8_0 and Q4_0 blocks of a GGUF file as strips, every number kept bit for bit.

Both types have a float16 scale for every 32 inputs, so only the layout differs. A block of Q8_0 is the
scale and 32 int8 codes (34 bytes). One of Q4_0 is the scale and 16 bytes (18 bytes): byte i holds codes i
and i + 16, low nibble first, each plus 8. That is the order of a strip, with the sign bit turned over.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from engine.errors import ModelFileError
from engine.weights.source import StoredStrip
from engine.weights.strips import BLOCK, Strip

if TYPE_CHECKING:
    import torch

# GGUF types that are strips in all but layout.
STRIP_FORMS: Mapping[str, StoredStrip] = {"Q8_0": StoredStrip(8), "Q4_0": StoredStrip(4)}

_SCALE_BYTES = 2
_SIGN_BITS = 0x88  # of both nibbles: stored + 8 and two's complement differ in nothing else


def strip_from_blocks(raw: torch.Tensor, dtype: str, *, rows: int, columns: int) -> Strip | None:
    """The strip (G = 32) that `raw`, uint8, holds: the blocks of a matrix (rows, columns), row after row.

    None for Q8_0 blocks with a code of -128, which a strip can't hold; the type allows it, but no known
    writer makes it. Such a matrix is dequantised and quantised anew. Raises ModelFileError for scales that
    are no numbers; the caller names the tensor. Rows that a file keeps in another order are put right
    before, as rows of bytes.
    """
    import torch

    assert dtype in STRIP_FORMS
    code_bytes = BLOCK if dtype == "Q8_0" else BLOCK // 2
    blocks = raw.view(rows, columns // BLOCK, _SCALE_BYTES + code_bytes)
    scales = blocks[:, :, :_SCALE_BYTES].contiguous().view(torch.float16).float().squeeze(2)
    if not bool(scales.isfinite().all()):
        raise ModelFileError("The scales of its quantised blocks are not all finite numbers.")
    codes = blocks[:, :, _SCALE_BYTES:].clone(memory_format=torch.contiguous_format).flatten(1)
    if dtype == "Q4_0":
        return Strip(4, 32, codes.bitwise_xor_(_SIGN_BITS), scales)
    signed = codes.view(torch.int8)
    return None if int(signed.min()) == -128 else Strip(8, 32, signed, scales)
