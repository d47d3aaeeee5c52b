"""A folder's tensors with its quantised matrices under the names and in the shapes that the model knows.

Matrices are found by what is stored, not by what the config says of modules: every layer may be quantised or
not. `read_strip` gives a matrix with not a bit lost where a strip holds it, `read` gives it as float32.
"""

from __future__ import annotations

import array
import sys
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING

from engine.checkpoints.foreign_files import shown
from engine.checkpoints.quantisation_config import Quantisation
from engine.errors import ModelFileError, UnsupportedModelError
from engine.weights.quantised_matrices import (
    FLOATS8,
    QuantisedMatrix,
    awq_matrix,
    float_matrix,
    gptq_matrix,
    int8_matrix,
    named_errors,
    packed_matrix,
)
from engine.weights.safetensors_source import READABLE_DTYPES, SafetensorsSource
from engine.weights.source import TensorInfo
from engine.weights.weight_file import OnBytes, WeightFile, unwatched

if TYPE_CHECKING:
    import torch

    from engine.weights.strips import Strip

# Scales of what is quantised while a model computes. This engine computes with floats.
_RUN_TIME_SCALES = (
    ".input_scale",
    ".input_zero_point",
    ".input_global_scale",
    ".output_scale",
    ".output_zero_point",
    ".activation_scale",
    ".k_scale",
    ".v_scale",
    ".q_scale",
    ".input_scale_ub",
)
_SCALES_LEFT_OUT = "run-time scale"
_BIASES_LEFT_OUT = "bias of zeros"
_PACKED_ENDINGS = (".qweight", ".weight_packed")
_AUXILIARY_ENDINGS = (
    "_zero_point",
    "_scale",
    "_scale_inv",
    ".g_idx",
    "_g_idx",
    "_shape",
    ".qzeros",
    ".scales",
)


class QuantisedFolderSource:
    """`left_out` counts by kind the tensors that a text model has no use for. `reordered` are the stored
    names of matrices whose inputs are in an order of their own.
    """

    def __init__(self, plain: SafetensorsSource, quantisation: Quantisation) -> None:
        """Closes nothing when it raises: `plain` stays the caller's."""
        self._plain = plain
        self._quantisation = quantisation
        self.file_bytes = plain.file_bytes
        self.left_out = Counter(plain.left_out)
        stored = plain.tensors()
        self._infos: dict[str, TensorInfo] = dict(stored)
        self._matrices: dict[str, QuantisedMatrix] = {}
        for name in stored:
            if name.endswith(_RUN_TIME_SCALES):
                del self._infos[name]
                self.left_out[_SCALES_LEFT_OUT] += 1
        for name in stored:
            found = self._matrix(name, stored)
            if found is not None:
                self._add(*found)

    @property
    def num_matrices(self) -> int:
        return len(self._matrices)

    @property
    def packed_anew(self) -> int:
        """Quantised to whole numbers, but in a form that no strip holds."""
        return sum(m.info.strip is None and m.info.dtype != "FP8" for m in self._matrices.values())

    def leave_out_zero_biases(self, wanted: Collection[str]) -> None:
        """Some tools give every quantised matrix a bias; of those that the model doesn't have, the ones that
        are all zeros change nothing.
        """
        for name, matrix in self._matrices.items():
            bias = f"{name.removesuffix('.weight')}.bias"
            if bias in wanted or bias not in self._infos or len(matrix.info.shape) != 2:
                continue
            if not self._plain.read_raw(bias).strip(b"\0"):
                del self._infos[bias]
                self.left_out[_BIASES_LEFT_OUT] += 1

    def tensors(self) -> Mapping[str, TensorInfo]:
        return self._infos

    def files(self) -> Sequence[WeightFile]:
        return self._plain.files()

    def read(self, name: str, on_bytes: OnBytes = unwatched) -> torch.Tensor:
        matrix = self._matrices.get(name)
        if matrix is None:
            return self._plain.read(name, on_bytes)
        try:
            values = matrix.read_values(lambda part: self._plain.read(part, on_bytes))
            on_bytes(matrix.bytes_read_before)
            return values
        except (ModelFileError, UnsupportedModelError) as error:
            raise named_errors(matrix.info.stored_name, error) from error

    def read_strip(self, name: str, on_bytes: OnBytes = unwatched) -> Strip | None:
        matrix = self._matrices.get(name)
        if matrix is None:
            return None
        try:
            strip = matrix.read_strip(lambda part: self._plain.read(part, on_bytes))
            if strip is not None:
                on_bytes(matrix.bytes_read_before)
            return strip
        except (ModelFileError, UnsupportedModelError) as error:
            raise named_errors(matrix.info.stored_name, error) from error

    def close(self) -> None:
        self._plain.close()

    def _matrix(self, name: str, stored: Mapping[str, TensorInfo]) -> tuple[str, QuantisedMatrix] | None:
        """The matrix whose codes are called so, and its own name."""
        method = self._quantisation.method
        if name.endswith(".qweight") and method in ("gptq", "awq"):
            stem = name.removesuffix(".qweight")
            return f"{stem}.weight", self._awq(stem, stored) if method == "awq" else self._gptq(stem, stored)
        if name.endswith(".weight_packed") and method == "compressed-tensors":
            stem = name.removesuffix(".weight_packed")
            return f"{stem}.weight", self._packed(stem, stored)
        if method not in ("compressed-tensors", "fp8") or name.endswith(_AUXILIARY_ENDINGS):
            return None
        if stored[name].dtype == "I8":
            return name, int8_matrix(name, stored, needs_zeros=self._quantisation.needs_zeros)
        if stored[name].dtype in FLOATS8:
            return name, float_matrix(name, stored, block=self._quantisation.block)
        return None

    def _add(self, name: str, matrix: QuantisedMatrix) -> None:
        for part in matrix.parts:
            self._infos.pop(part, None)
        if name in self._infos:
            raise ModelFileError(
                f"{shown(self._infos[name].stored_name)} is stored twice, also as "
                f"{shown(matrix.info.stored_name)}.",
                "Download the model again.",
            )
        self._infos[name] = matrix.info
        self._matrices[name] = matrix

    def _gptq(self, stem: str, stored: Mapping[str, TensorInfo]) -> QuantisedMatrix:
        quantisation = self._quantisation
        return gptq_matrix(
            stem,
            stored,
            less_one=quantisation.zeros_less_one,
            symmetric=quantisation.symmetric,
            in_order=self._in_order(f"{stem}.g_idx", stored, groups=_size(f"{stem}.scales", stored, 0)),
        )

    def _packed(self, stem: str, stored: Mapping[str, TensorInfo]) -> QuantisedMatrix:
        groups = _size(f"{stem}.weight_scale", stored, 1)
        return packed_matrix(
            stem,
            stored,
            shape=self._stored_shape(stem, stored),
            in_order=self._in_order(f"{stem}.weight_g_idx", stored, groups=groups),
            needs_zeros=self._quantisation.needs_zeros,
        )

    def _awq(self, stem: str, stored: Mapping[str, TensorInfo]) -> QuantisedMatrix:
        return awq_matrix(stem, stored, needs_zeros=self._quantisation.needs_zeros)

    def _in_order(self, name: str, stored: Mapping[str, TensorInfo], *, groups: int) -> bool:
        """Whether the file has the inputs in the order of their groups. Reads a few kilobytes; done only
        where the config speaks of another order, for what is told of sizes. Reading looks in any case.
        """
        order = stored.get(name)
        if not self._quantisation.may_reorder or order is None or len(order.shape) != 1 or not groups:
            return True  # nothing there, or refused soon
        if order.dtype != "I32":
            return True  # refused soon
        found = array.array("i", self._plain.read_raw(name))
        if sys.byteorder == "big":
            found.byteswap()
        size = max(1, order.shape[0] // groups)
        return all(each < 0 for each in found) or all(each == i // size for i, each in enumerate(found))

    def _stored_shape(self, stem: str, stored: Mapping[str, TensorInfo]) -> tuple[int, ...]:
        """The numbers in weight_shape, 16 bytes."""
        name = f"{stem}.weight_shape"
        info = stored.get(name)
        if info is None or info.dtype not in ("I64", "I32") or info.shape != (2,):
            found = (
                "is missing" if info is None else f"is {info.dtype} {info.shape} instead of two whole numbers"
            )
            raise ModelFileError(f"{shown(name)} {found}.", "Download the model again.")
        raw = self._plain.read_raw(name)
        half = len(raw) // 2
        return tuple(int.from_bytes(raw[i : i + half], "little", signed=True) for i in (0, half))


def _size(name: str, stored: Mapping[str, TensorInfo], axis: int) -> int:
    """0 where there is no such axis."""
    shape = stored[name].shape if name in stored else ()
    return shape[axis] if axis < len(shape) else 0


def quantised_tensors(plain: SafetensorsSource) -> list[TensorInfo]:
    """What is not plain numbers."""
    return [
        info
        for name, info in plain.tensors().items()
        if info.dtype not in READABLE_DTYPES or name.endswith(_PACKED_ENDINGS)
    ]
