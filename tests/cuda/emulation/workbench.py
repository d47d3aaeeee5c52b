"""A card with every kernel, and tensors on it."""

from __future__ import annotations

from typing import Any

import torch
from emulated_card import EmulatedCard, EmulatedCompiler

from engine.config import Activations
from engine.cpu.matrices import Dense, Joined, Matrix, Widened
from engine.cpu.strip_matrix import StripMatrix
from engine.cuda.arguments import Activation, Quantise
from engine.cuda.driver import Address, as_bytes
from engine.cuda.kernel_set import KernelSet
from engine.cuda.matrices import DeviceLinear
from engine.cuda.memory import CardMemory, Use
from engine.cuda.row_forms import PLANES
from engine.cuda.uploader import Uploader
from engine.weights.quantise import quantise
from engine.weights.strips import BLOCK, Bits, Group, Strip, dequantise


class Workbench:
    def __init__(self, card: EmulatedCard, compiler: EmulatedCompiler) -> None:
        self.card = card
        self.memory = CardMemory(card)
        self.kernels = KernelSet(card, compiler)

    def put(self, tensor: torch.Tensor) -> Address:
        flat = tensor.contiguous().view(-1).view(torch.uint8)
        address = self.memory.allocate(flat.nbytes, Use.WORKSPACE)
        self.card.upload(address, as_bytes(flat))
        return address

    def room(self, *shape: int, dtype: torch.dtype = torch.float32) -> Address:
        return self.memory.allocate(torch.empty(shape, dtype=dtype).nbytes, Use.WORKSPACE)

    def get(self, address: int, *shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        found = torch.empty(shape, dtype=dtype)
        self.card.download(as_bytes(found.view(-1).view(torch.uint8)), Address(address))
        return found

    def linear(self, *matrices: Matrix) -> DeviceLinear:
        """One matrix, or one an expert."""
        return Uploader(self.memory, self.kernels).linear(matrices)

    def activation_room(self, rows: int, width: int, form: Activations) -> Activation:
        """For numbers, and for their codes in that form."""
        planes, blocks = PLANES[form], width // BLOCK
        return Activation(
            values=self.room(rows, width),
            high=self.room(rows, width, dtype=torch.int8) if planes else 0,
            low=self.room(rows, width, dtype=torch.int8) if planes > 1 else 0,
            scales=self.room(rows, blocks) if planes else 0,
            sums=self.room(rows, blocks) if planes else 0,
            width=width,
        )

    def activation(self, x: torch.Tensor, form: Activations) -> Activation:
        """x (T, K) as numbers and in that form, made by the card itself."""
        out = self.activation_room(*x.shape, form)
        self.kernels.launch("quantise_rows", Quantise(x=self.put(x), out=out), grid=(len(x), 1, 1))
        return out

    def codes_of(self, x: Activation, rows: int) -> dict[str, torch.Tensor]:
        """high, low (T, K), scales and sums (T, K / 32), as far as they are there; codes in the order of
        their inputs.
        """
        found = {}
        for name in ("high", "low"):
            if getattr(x, name):
                lying = self.get(getattr(x, name), rows, x.width // BLOCK, 4, 2, 4, dtype=torch.int8)
                found[name] = lying.transpose(2, 3).reshape(rows, x.width)
        for name in ("scales", "sums"):
            if getattr(x, name):
                found[name] = self.get(getattr(x, name), rows, x.width // BLOCK)
        return found


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def strip_of(
    rows: int,
    columns: int,
    *,
    bits: Bits,
    group: Group = 32,
    offsets: bool = False,
    narrow: bool = True,
    seed: int = 1,
) -> Strip:
    """narrow: its scales lose nothing as float16."""
    strip = quantise(random(rows, columns, seed=seed), bits=bits, group=group)
    scales = strip.scales.half().float() if narrow else strip.scales * (1 + 2.0**-20)
    added = None
    if offsets:
        added = random(*scales.shape, seed=seed + 1) / 8
        added = added.half().float() if narrow else added
    return Strip(strip.bits, strip.group, strip.codes, scales, added)


def one_matrix(*shape: int, **form: Any) -> StripMatrix:
    """form: as of `strip_of`."""
    return StripMatrix(strip_of(*shape, **form))


def dense_of(matrix: Matrix) -> torch.Tensor:
    """(N, K) float64"""
    if isinstance(matrix, Joined):
        return torch.cat([dense_of(each) for each in matrix.members])
    if isinstance(matrix, StripMatrix):
        return dequantise(matrix.strip).double()
    assert isinstance(matrix, Dense | Widened)
    return matrix.weight.double()


def agrees(found: torch.Tensor, x: torch.Tensor, weight: torch.Tensor) -> bool:
    """Within what float32 sums may differ by."""
    bound = 3e-7 * (x.double().abs() @ weight.abs().T) + 1e-30
    return bool(((found.double() - x.double() @ weight.T).abs() <= bound).all())
