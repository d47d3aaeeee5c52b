"""Tensors of a GGUF file under the names and in the row order of a Hugging Face checkpoint."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from engine.checkpoints.foreign_files import shown
from engine.errors import ModelFileError
from engine.weights.gguf_blocks import BlockMatrix
from engine.weights.gguf_header import GgufHeader, GgufTensor, read_gguf_header
from engine.weights.gguf_package import PLAIN_DTYPES, dequantize_into, type_sizes
from engine.weights.gguf_strips import STRIP_FORMS, strip_from_blocks
from engine.weights.source import TensorInfo
from engine.weights.strips import Strip
from engine.weights.weight_file import OnBytes, WeightFile, new_buffer, unwatched
from engine.weights.worker_threads import worker_threads

if TYPE_CHECKING:
    import torch

_MODEL_NAMES = {
    "token_embd.weight": "embed_tokens.weight",
    "output_norm.weight": "norm.weight",
    "output.weight": "lm_head.weight",
}
_LAYER_NAMES = {
    "attn_norm.weight": "input_layernorm.weight",
    "attn_q.weight": "self_attn.q_proj.weight",
    "attn_k.weight": "self_attn.k_proj.weight",
    "attn_v.weight": "self_attn.v_proj.weight",
    "attn_q.bias": "self_attn.q_proj.bias",
    "attn_k.bias": "self_attn.k_proj.bias",
    "attn_v.bias": "self_attn.v_proj.bias",
    "attn_q_norm.weight": "self_attn.q_norm.weight",
    "attn_k_norm.weight": "self_attn.k_norm.weight",
    "attn_output.weight": "self_attn.o_proj.weight",
    "attn_output.bias": "self_attn.o_proj.bias",
    "ffn_norm.weight": "post_attention_layernorm.weight",
    "ffn_gate.weight": "mlp.gate_proj.weight",
    "ffn_up.weight": "mlp.up_proj.weight",
    "ffn_down.weight": "mlp.down_proj.weight",
    "ffn_gate.bias": "mlp.gate_proj.bias",
    "ffn_up.bias": "mlp.up_proj.bias",
    "ffn_down.bias": "mlp.down_proj.bias",
    "ffn_gate_inp.weight": "mlp.gate.weight",
    "ffn_gate_exps.weight": "mlp.experts.gate_proj",
    "ffn_up_exps.weight": "mlp.experts.up_proj",
    "ffn_down_exps.weight": "mlp.experts.down_proj",
}
_CHUNK_NUMBERS = 2**19  # that become float32 at a time and thread: 3 ms, and they stay in the cache
_LAYER = re.compile(r"blk\.(0|[1-9][0-9]{0,5})\.(.+)")

FREQUENCY_FACTORS = "rope_freqs.weight"  # a setting in the shape of a tensor; not part of the weights


def canonical_name(name: str) -> str:
    """The engine's name of a GGUF tensor; names without one stay as they are, and are unexpected later."""
    if name in _MODEL_NAMES:
        return _MODEL_NAMES[name]
    match = _LAYER.fullmatch(name)
    if match and match[2] in _LAYER_NAMES:
        return f"layers.{match[1]}.{_LAYER_NAMES[match[2]]}"
    return name


class GgufSource:
    """An open GGUF file. `file_bytes` is its size; `header` holds its settings."""

    def __init__(self, path: Path) -> None:
        sizes = type_sizes()
        self._block_sizes = {dtype: (size, num_bytes) for dtype, size, num_bytes in sizes.by_number.values()}
        self._file = WeightFile(path)
        self._interleaved: Mapping[str, int] = {}
        try:
            self.header: GgufHeader = read_gguf_header(self._file, sizes)
        except BaseException:
            self._file.close()
            raise
        self.file_bytes = self._file.size
        self._tensors: dict[str, GgufTensor] = {
            canonical_name(name): tensor
            for name, tensor in self.header.tensors.items()
            if name != FREQUENCY_FACTORS
        }

    def set_interleaved_heads(self, heads: Mapping[str, int]) -> None:
        """Names of tensors whose rows are stored in pairs for neighbouring-pair rotary, with their head
        counts.

        `read` gives their rows back in rotate-half order.
        """
        self._interleaved = dict(heads)

    def tensors(self) -> Mapping[str, TensorInfo]:
        return {
            name: TensorInfo(
                tensor.shape,
                tensor.dtype,
                tensor.num_bytes,
                tensor.name,
                strip=STRIP_FORMS.get(tensor.dtype) if len(tensor.shape) > 1 else None,
                blocks=len(tensor.shape) == 2 and tensor.dtype not in PLAIN_DTYPES,
            )
            for name, tensor in self._tensors.items()
        }

    def files(self) -> Sequence[WeightFile]:
        return (self._file,)

    def read_raw(self, tensor: GgufTensor) -> bytes:
        """The bytes of a small tensor, as they are in the file."""
        raw = bytearray(tensor.num_bytes)
        self._file.read_into(memoryview(raw), tensor.start)
        return bytes(raw)

    def read(self, name: str, on_bytes: OnBytes = unwatched) -> torch.Tensor:
        import torch

        tensor = self._tensors[name]
        if tensor.dtype in PLAIN_DTYPES:
            raw = new_buffer(tensor.num_bytes, name)
            self._file.read_tensor_bytes(raw, tensor.start, on_bytes)
            dtypes = {"BF16": torch.bfloat16, "F16": torch.float16, "F32": torch.float32}
            values = raw.view(dtypes[tensor.dtype])
        else:
            values = new_buffer(4 * tensor.num_elements, name).view(torch.float32)
            self._dequantise(tensor, values, on_bytes)
        values = values.view(tensor.shape)
        heads = self._interleaved.get(name)
        return values if heads is None else _rotate_half_rows(values, heads)

    def read_strip(self, name: str, on_bytes: OnBytes = unwatched) -> Strip | None:
        """The tensor as a strip, where its type is one that loses nothing by it. A stack (E, N, K) comes as
        E * N rows.
        """
        tensor = self._tensors[name]
        if tensor.dtype not in STRIP_FORMS or len(tensor.shape) < 2:
            return None
        try:
            strip = self._converted(tensor, on_bytes)
        except ModelFileError as error:
            raise ModelFileError(f"{shown(tensor.name)}: {error.message}", error.hint) from error
        heads = self._interleaved.get(name)
        if strip is None or heads is None:
            return strip
        codes, scales = (_rotate_half_rows(part, heads) for part in (strip.codes, strip.scales))
        return Strip(strip.bits, strip.group, codes, scales)

    def read_blocks(self, name: str, on_bytes: OnBytes = unwatched) -> BlockMatrix:
        tensor = self._tensors[name]
        rows, columns = tensor.shape
        raw = new_buffer(tensor.num_bytes, name)
        self._file.read_tensor_bytes(raw, tensor.start, on_bytes)
        raw = raw.view(rows, -1)
        heads = self._interleaved.get(name)
        return BlockMatrix(raw if heads is None else _rotate_half_rows(raw, heads), tensor.dtype, columns)

    def close(self) -> None:
        self._file.close()

    def _converted(self, tensor: GgufTensor, on_bytes: OnBytes) -> Strip | None:
        """`strip_from_blocks`, some rows at a time: beside the strip only these are in memory."""
        import torch

        rows, columns = math.prod(tensor.shape[:-1]), tensor.shape[-1]
        form = STRIP_FORMS[tensor.dtype]
        codes = new_buffer(rows * columns * form.bits // 8, tensor.name).view(rows, -1)
        codes = codes.view(torch.int8) if form.bits == 8 else codes
        scales = new_buffer(4 * rows * columns // form.group, tensor.name).view(torch.float32).view(rows, -1)
        row_bytes = tensor.num_bytes // rows
        step = max(1, _CHUNK_NUMBERS // columns)
        for start in range(0, rows, step):
            stop = min(start + step, rows)
            raw = new_buffer((stop - start) * row_bytes, tensor.name)
            self._file.read_tensor_bytes(raw, tensor.start + start * row_bytes, on_bytes)
            part = strip_from_blocks(raw, tensor.dtype, rows=stop - start, columns=columns)
            if part is None:
                return None
            codes[start:stop].copy_(part.codes)
            scales[start:stop].copy_(part.scales)
        return Strip(form.bits, form.group, codes, scales)

    def _dequantise(self, tensor: GgufTensor, values: torch.Tensor, on_bytes: OnBytes) -> None:
        """Fills `values` (flat), by as many threads as torch would use."""
        import torch

        block_size, block_bytes = self._block_sizes[tensor.dtype]
        step = max(1, _CHUNK_NUMBERS // block_size)
        starts = range(0, tensor.num_elements // block_size, step)
        out = values.numpy()

        def convert(start: int) -> int:
            raw = new_buffer(min(step * block_bytes, tensor.num_bytes - start * block_bytes), tensor.name)
            self._file.read_tensor_bytes(raw, tensor.start + start * block_bytes)
            numbers = out[start * block_size : (start + step) * block_size]
            dequantize_into(numbers, raw.numpy(), tensor.dtype)
            return raw.nbytes

        with worker_threads(min(torch.get_num_threads(), len(starts)), "dequantise") as pool:
            for num_bytes in pool.map(convert, starts):
                on_bytes(num_bytes)


def _rotate_half_rows(values: torch.Tensor, heads: int) -> torch.Tensor:
    """Rows 0, 1, 2, 3, … of each head were features 0, D/2, 1, D/2 + 1, …: puts them back."""
    pairs = values.view(heads, -1, 2, *values.shape[1:])  # (heads, D / 2, 2, …)
    return pairs.transpose(1, 2).reshape(values.shape)
