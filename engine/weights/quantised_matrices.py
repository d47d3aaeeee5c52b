"""Which tensors of a folder make up one quantised matrix, and how it is read, as a strip or as float32.

Found by the names and types in the headers; every shape is checked there, before a byte of a weight is read.
Names are canonical. `reader` gives a tensor by its name.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol, cast

from engine.checkpoints.foreign_files import shown
from engine.errors import EngineError, ModelFileError, UnsupportedModelError
from engine.weights.source import StoredStrip, TensorInfo
from engine.weights.strips import BLOCK, Bits, fits

if TYPE_CHECKING:
    import torch

    from engine.weights.strips import Strip

Reader = Callable[[str], "torch.Tensor"]
Infos = Mapping[str, TensorInfo]

FLOATS8 = frozenset({"F8_E4M3", "F8_E5M2", "F8_E4M3FNUZ", "F8_E5M2FNUZ"})
MATRIX_DTYPES = frozenset({"INT4", "INT8", "FP8"})
"""What `TensorInfo.dtype` is for a matrix that was quantised by others."""

_SCALE_TYPES = frozenset({"F32", "F16", "BF16", "F8_E8M0"})
_AGAIN = "Download the model again."


class QuantisedMatrix(Protocol):
    """`info` is the matrix as the model has it: shape (N, K), or (E, N, K) for a stack, the size of all its
    tensors, and the form of its strip where it can be held as one. `parts` are its tensors.
    """

    @property
    def info(self) -> TensorInfo: ...

    @property
    def parts(self) -> tuple[str, ...]: ...

    @property
    def bytes_read_before(self) -> int:
        """Of `info.num_bytes`, what reading it doesn't read again."""

    def read_strip(self, reader: Reader) -> Strip | None: ...

    def read_values(self, reader: Reader) -> torch.Tensor: ...


@dataclass(frozen=True)
class IntegerMatrix:
    """Codes, scales, zero points or "", and groups by input or "". `layout` is that of the codes."""

    info: TensorInfo
    layout: Literal["gptq", "gptq_v2", "awq", "packed", "int8"]
    bits: Bits
    codes: str
    scales: str
    zeros: str
    order: str
    shape: str = ""  # the tensor that says `info.shape`
    bytes_read_before: int = 0

    @property
    def parts(self) -> tuple[str, ...]:
        named = (self.codes, self.scales, self.zeros, self.order, self.shape)
        return tuple(name for name in named if name)

    def read_strip(self, reader: Reader) -> Strip | None:
        from engine.weights.ready_quantised import awq_strip, gptq_strip, int8_strip, packed_strip

        if self.info.strip is None:
            return None
        codes, scales, zeros, order = self._read(reader)
        match self.layout:
            case "gptq" | "gptq_v2":
                assert zeros is not None
                less = self.layout == "gptq"
                return gptq_strip(codes, zeros, scales, order, bits=self.bits, zeros_less_one=less)
            case "awq":
                return awq_strip(codes, zeros, scales)
            case "packed":
                return packed_strip(codes, scales, zeros, order, bits=self.bits, columns=self.info.shape[1])
            case "int8":
                return int8_strip(codes, scales, zeros)

    def read_values(self, reader: Reader) -> torch.Tensor:
        from engine.weights.ready_values import awq_values, gptq_values, int8_values, packed_values

        codes, scales, zeros, order = self._read(reader)
        match self.layout:
            case "gptq" | "gptq_v2":
                assert zeros is not None
                less = self.layout == "gptq"
                return gptq_values(codes, zeros, scales, order, bits=self.bits, zeros_less_one=less)
            case "awq":
                return awq_values(codes, zeros, scales)
            case "packed":
                return packed_values(codes, scales, zeros, order, bits=self.bits, columns=self.info.shape[1])
            case "int8":
                return int8_values(codes, scales, zeros)

    def _read(
        self, reader: Reader
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None, torch.Tensor | None]:
        zeros = reader(self.zeros) if self.zeros else None
        order = reader(self.order) if self.order else None
        return reader(self.codes), reader(self.scales), zeros, order


@dataclass(frozen=True)
class FloatMatrix:
    """8-bit floats and their scales. No strip holds them: they are floats."""

    info: TensorInfo
    codes: str
    scales: str
    block: tuple[int, int] | None  # rows and columns that share a scale; None: one for a row or for all
    bytes_read_before: int = 0

    @property
    def parts(self) -> tuple[str, ...]:
        return self.codes, self.scales

    def read_strip(self, reader: Reader) -> Strip | None:
        return None

    def read_values(self, reader: Reader) -> torch.Tensor:
        import torch

        from engine.weights.ready_values import fp8_values

        weight, scales = reader(self.codes), reader(self.scales)
        if weight.ndim == 2:
            return fp8_values(weight, scales, block=self.block)
        each = scales if scales.numel() > 1 else scales.reshape(1).expand(len(weight))
        return torch.stack([fp8_values(w, s, block=self.block) for w, s in zip(weight, each, strict=True)])


def gptq_matrix(stem: str, infos: Infos, *, less_one: bool, symmetric: bool, in_order: bool) -> IntegerMatrix:
    """in_order: the inputs keep the order of their groups, as far as is known."""
    codes, scales, zeros = (f"{stem}.{part}" for part in ("qweight", "scales", "qzeros"))
    order = _optional(f"{stem}.g_idx", infos)
    packed, rows = _words(codes, infos), infos[codes].shape[-1]
    groups = _scales(scales, infos, columns_last=True)[0]
    bits = _bits(codes, infos, _words(zeros, infos)[1] * 32, rows)
    columns = packed[0] * 32 // bits
    _require_shape(scales, infos, (groups, rows))
    _require_shape(zeros, infos, (groups, rows * bits // 32))
    if order:
        _require_shape(order, infos, (columns,), dtype="I32")
    members = [name for name in (codes, scales, zeros, order) if name]
    strip = _strip(bits, has_zeros=not symmetric)
    return IntegerMatrix(
        _info(codes, members, infos, (rows, columns), f"INT{bits}", strip if in_order else None, groups),
        "gptq" if less_one else "gptq_v2",
        bits,
        codes,
        scales,
        zeros,
        order,
    )


def awq_matrix(stem: str, infos: Infos, *, needs_zeros: bool) -> IntegerMatrix:
    codes, scales, zeros = (f"{stem}.{part}" for part in ("qweight", "scales", "qzeros"))
    zeros = _optional(zeros, infos, needed=needs_zeros)
    columns, words = _words(codes, infos)
    rows, groups = words * 8, _scales(scales, infos, columns_last=True)[0]
    _require_shape(scales, infos, (groups, rows))
    if zeros:
        _require_shape(zeros, infos, (groups, words), dtype="I32")
    members = [name for name in (codes, scales, zeros) if name]
    strip = _strip(4, has_zeros=bool(zeros))
    info = _info(codes, members, infos, (rows, columns), "INT4", strip, groups)
    return IntegerMatrix(info, "awq", 4, codes, scales, zeros, "")


def packed_matrix(
    stem: str, infos: Infos, *, shape: tuple[int, ...], in_order: bool, needs_zeros: bool
) -> IntegerMatrix:
    """shape: what weight_shape holds. in_order: as for `gptq_matrix`."""
    codes, scales = f"{stem}.weight_packed", f"{stem}.weight_scale"
    zeros = _optional(f"{stem}.weight_zero_point", infos, needed=needs_zeros)
    order = _optional(f"{stem}.weight_g_idx", infos)
    rows, width = _words(codes, infos)
    if len(shape) != 2 or shape[0] != rows or shape[1] < 1:
        raise _wrong(codes, infos, f"has {rows:,} rows, but weight_shape says {shape}")
    columns = shape[1]
    fitting = [bits for bits in (4, 8) if math.ceil(columns * bits / 32) == width]
    if not fitting:
        raise _unsupported(
            codes, infos, f"has {width * 32 / columns:g} bits for each number; 4 and 8 can be read"
        )
    bits = cast(Bits, fitting[0])
    groups = _row_scales(scales, infos, rows, columns)
    if zeros and infos[zeros].dtype == "I8":
        _require_shape(zeros, infos, infos[scales].shape)
    elif zeros:
        _require_shape(zeros, infos, (math.ceil(rows * bits / 32), groups), dtype="I32")
    if order:
        _require_shape(order, infos, (columns,), dtype="I32")
    shape_name = f"{stem}.weight_shape"
    members = [name for name in (codes, scales, zeros, order, shape_name) if name]
    strip = _strip(bits, has_zeros=bool(zeros))
    info = _info(codes, members, infos, (rows, columns), f"INT{bits}", strip if in_order else None, groups)
    return IntegerMatrix(
        info,
        "packed",
        bits,
        codes,
        scales,
        zeros,
        order,
        shape=shape_name,
        bytes_read_before=infos[shape_name].num_bytes,
    )


def int8_matrix(name: str, infos: Infos, *, needs_zeros: bool) -> IntegerMatrix:
    """name: that of the codes, which is the matrix's own."""
    scales = _scale_name(name, infos)
    zeros = _optional(f"{name}_zero_point", infos, needed=needs_zeros)
    if len(infos[name].shape) != 2:
        raise _unsupported(name, infos, "is a stack of int8 matrices, which can't be read")
    rows, columns = infos[name].shape
    groups = _row_scales(scales, infos, rows, columns)
    if zeros:
        _require_shape(zeros, infos, infos[scales].shape, dtype="I8")
    members = [each for each in (name, scales, zeros) if each]
    info = _info(name, members, infos, (rows, columns), "INT8", _strip(8, has_zeros=bool(zeros)), groups)
    return IntegerMatrix(info, "int8", 8, name, scales, zeros, "")


def float_matrix(name: str, infos: Infos, *, block: tuple[int, int] | None) -> FloatMatrix:
    """name: that of the 8-bit floats, which is the matrix's own."""
    scales = _scale_name(name, infos)
    shape, scale = infos[name].shape, _scales(scales, infos)
    if len(shape) not in (2, 3):
        raise _wrong(name, infos, f"has the shape {shape}, no matrix's")
    *stack, rows, columns = shape
    info = _info(name, [name, scales], infos, shape, "FP8", None, 1)
    if block is not None:
        grid = (math.ceil(rows / block[0]), math.ceil(columns / block[1]))
        if scale == (*stack, *grid):
            return FloatMatrix(info, name, scales, block)
    singles = [(), (1,), (*stack, rows), (*stack, rows, 1)]
    if block is None or stack:
        singles += [(*stack, 1), (*stack, 1, 1)]
    if scale not in singles:
        unfit = f"has the shape {scale}, which doesn't fit {shape}"
        if block is not None:
            unfit = f"has the shape {scale}, which doesn't fit {shape} in blocks of {block[0]} x {block[1]}"
        raise _wrong(scales, infos, unfit)
    return FloatMatrix(info, name, scales, None)


def named_errors(stored_name: str, error: EngineError) -> EngineError:
    """The same error with the tensor's name in front."""
    return type(error)(f"{shown(stored_name)}: {error.message}", error.hint)


def _strip(bits: Bits, *, has_zeros: bool) -> StoredStrip | None:
    """Codes of 8 bits and zero points have all of -128 … 127 within 32 inputs in nearly every matrix, and no
    strip has. Without zero points that is rare, but -128 by itself is not, and takes an offset.
    """
    if bits == 8:
        return None if has_zeros else StoredStrip(8, offsets=True)
    return StoredStrip(4, offsets=has_zeros)


def _info(
    name: str,
    members: list[str],
    infos: Infos,
    shape: tuple[int, ...],
    dtype: str,
    strip: StoredStrip | None,
    groups: int,
) -> TensorInfo:
    """strip: what it would be, if the groups are such that strips can follow."""
    holds = groups > 0 and shape[-1] % groups == 0 and fits(shape[-1] // groups, BLOCK)
    return TensorInfo(
        shape,
        dtype,
        sum(infos[each].num_bytes for each in members if each in infos),
        infos[name].stored_name,
        strip if holds else None,
    )


def _bits(codes: str, infos: Infos, zero_bits: int, rows: int) -> Bits:
    if rows and zero_bits == 8 * rows:
        return 8
    if rows and zero_bits == 4 * rows:
        return 4
    found = f"{zero_bits / rows:g}" if rows else "no"
    raise _unsupported(codes, infos, f"has {found} bits for each number; 4 and 8 can be read")


def _words(name: str, infos: Infos) -> tuple[int, int]:
    info = _present(name, infos)
    if info.dtype != "I32" or len(info.shape) != 2:
        raise _wrong(name, infos, f"is {info.dtype} {info.shape} instead of a matrix of I32")
    return info.shape[0], info.shape[1]


def _scales(name: str, infos: Infos, *, columns_last: bool = False) -> tuple[int, ...]:
    info = _present(name, infos)
    if info.dtype not in _SCALE_TYPES or (columns_last and len(info.shape) != 2):
        raise _wrong(name, infos, f"is {info.dtype} {info.shape}, no scales")
    return info.shape


def _row_scales(name: str, infos: Infos, rows: int, columns: int) -> int:
    """Groups a row, of scales (N, groups), (N,) or one for all."""
    shape = _scales(name, infos)
    if shape in ((), (1,), (1, 1), (rows,)):
        return 1
    if len(shape) != 2 or shape[0] != rows or not shape[1] or columns % shape[1]:
        raise _wrong(name, infos, f"has the shape {shape}, which doesn't fit ({rows}, {columns})")
    return shape[1]


def _scale_name(name: str, infos: Infos) -> str:
    for ending in ("_scale_inv", "_scale"):
        if f"{name}{ending}" in infos:
            return f"{name}{ending}"
    raise ModelFileError(
        f"{shown(infos[name].stored_name)} is stored as {infos[name].dtype}, but its scales are missing.",
        _AGAIN,
    )


def _require_shape(name: str, infos: Infos, shape: tuple[int, ...], *, dtype: str | None = None) -> None:
    info = _present(name, infos)
    if info.shape != shape or (dtype is not None and info.dtype != dtype):
        wanted = f"{shape}" if dtype is None else f"{dtype} {shape}"
        raise _wrong(name, infos, f"is {info.dtype} {info.shape} instead of {wanted}")


def _optional(name: str, infos: Infos, *, needed: bool = False) -> str:
    """The name, or "" where there is no such tensor."""
    if needed:
        _present(name, infos)
    return name if name in infos else ""


def _present(name: str, infos: Infos) -> TensorInfo:
    if name not in infos:
        raise ModelFileError(f"{shown(name)} is missing, a part of a quantised matrix.", _AGAIN)
    return infos[name]


def _wrong(name: str, infos: Infos, what: str) -> ModelFileError:
    return ModelFileError(f"{shown(infos[name].stored_name)} {what}.", _AGAIN)


def _unsupported(name: str, infos: Infos, what: str) -> UnsupportedModelError:
    return UnsupportedModelError(
        f"{shown(infos[name].stored_name)} {what}.", "Pick another form of the model, or a GGUF file."
    )
