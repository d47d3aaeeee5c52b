"""Each kernel against its definition in float64, at sizes that don't divide evenly."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from emulated_card import EmulatedCard, EmulatedCompiler

from engine.cpu.activations import rounded
from engine.cpu.matrices import Dense, Joined, Matrix, Widened
from engine.cpu.strip_matrix import StripMatrix
from engine.cuda import arguments
from engine.cuda.arguments import Activation, Mixture, Norm, Product, Route, Swiglu
from engine.cuda.driver import Address, CardFaultError, as_bytes
from engine.cuda.kernel_set import MAIN, KernelSet, kernel_sources
from engine.cuda.matrices import DeviceLinear, Uploader
from engine.cuda.memory import CardMemory, Use
from engine.errors import UnsupportedModelError
from engine.weights.quantise import quantise
from engine.weights.strips import Strip, dequantise

STRUCTURES = [
    each
    for each in vars(arguments).values()
    if isinstance(each, type) and issubclass(each, ctypes.Structure) and each is not ctypes.Structure
]


class Workbench:
    """A card with every kernel, and tensors on it."""

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

    def get(self, address: Address, *shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        found = torch.empty(shape, dtype=dtype)
        self.card.download(as_bytes(found.view(-1).view(torch.uint8)), address)
        return found

    def activation(self, x: torch.Tensor) -> Activation:
        """x (T, K) in every form, made by the card itself."""
        rows, width = x.shape
        padded = -(-width // 32) * 32
        out = Activation(
            values=self.room(rows, width),
            high=self.room(rows, padded, dtype=torch.int8) if width == padded else 0,
            low=self.room(rows, padded, dtype=torch.int8) if width == padded else 0,
            scales=self.room(rows, padded // 32) if width == padded else 0,
            width=width,
        )
        # silu(40) is 40 to the last bit, so this is x * 40 / 40: numbers of any size.
        gate_up = torch.cat((torch.full_like(x, 40.0), x / 40), 1)
        self.kernels.launch("swiglu", Swiglu(gate_up=self.put(gate_up), out=out), grid=(rows, 1, 1))
        return out


@pytest.fixture
def bench(card: EmulatedCard, card_compiler: EmulatedCompiler) -> Iterator[Workbench]:
    bench = Workbench(card, card_compiler)
    yield bench
    bench.memory.free_all()


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def strip_of(
    rows: int, columns: int, *, bits: Any, group: Any = 32, offsets: bool = False, seed: int = 1
) -> Strip:
    strip = quantise(random(rows, columns, seed=seed), bits=bits, group=group)
    if not offsets:
        return strip
    added = random(*strip.scales.shape, seed=seed + 1) / 8
    return Strip(strip.bits, strip.group, strip.codes, strip.scales, added)


def dense_of(matrix: Matrix) -> torch.Tensor:
    """(N, K) float64"""
    if isinstance(matrix, Joined):
        return torch.cat([dense_of(each) for each in matrix.members])
    if isinstance(matrix, StripMatrix):
        return dequantise(matrix.strip).double()
    assert isinstance(matrix, Dense | Widened)
    return matrix.weight.double()


def product(
    bench: Workbench, linear: DeviceLinear, x: Activation, form: str, rows: int, **more: Any
) -> torch.Tensor:
    """(rows, N), as one launch a part."""
    y, many = more.pop("y", None), more.pop("many", rows > 1)
    target = bench.room(rows, linear.rows) if y is None else bench.put(y)
    first = 0
    for part in linear.parts:
        name = f"product_{part.kind}_{form}" if part.is_strip else f"product_{part.kind}"
        values = Product(
            weights=part.weights,
            scales=part.scales,
            offsets=part.offsets,
            bias=linear.bias + 4 * first if linear.bias else 0,
            x=x,
            y=target + 4 * first,
            stride=linear.rows,
            outputs=part.rows,
            rows=rows,
            **{"rows_each": 1, **more},
            blocks_a_scale=part.blocks_a_scale,
            narrow_scales=part.narrow_scales,
        )
        at_once = 8 if many else 1
        grid = (-(-part.rows // 8), -(-rows // at_once), 1)
        bench.kernels.launch(f"{name}_{'many' if many else 'one'}", values, grid=grid)
        first += part.rows
    return bench.get(target, rows, linear.rows)


def agrees(found: torch.Tensor, x: torch.Tensor, weight: torch.Tensor) -> bool:
    """Within what float32 sums may differ by."""
    bound = 2e-6 * (x.double().abs() @ weight.abs().T) + 1e-30
    return bool(((found.double() - x.double() @ weight.T).abs() <= bound).all())


@pytest.mark.parametrize("structure", STRUCTURES, ids=lambda each: each.__name__)
def test_structures_are_laid_out_as_in_the_kernels(
    structure: type[ctypes.Structure], card: EmulatedCard, card_compiler: EmulatedCompiler
) -> None:
    name = structure.__name__
    checks = [f"static_assert(sizeof({name}) == {ctypes.sizeof(structure)}, {name!r});".replace("'", '"')]
    for field, *_ in structure._fields_:
        offset = getattr(structure, field).offset
        checks.append(f'static_assert(__builtin_offsetof({name}, {field}) == {offset}, "{field}");')
    sources = {**kernel_sources(), "check.cu": f'#include "{MAIN}"\n' + "\n".join(checks)}
    card_compiler.compile(sources, "check.cu", card=card.info)


def test_every_kernel_takes_a_structure_that_the_host_knows() -> None:
    text = "\n".join(kernel_sources().values())
    taken = set(re.findall(r"KESTREL_KERNEL(?:_SHARING)?\([^()]+, (\w+)\) \{", text))
    assert taken
    assert taken <= {each.__name__ for each in STRUCTURES}


@pytest.mark.parametrize("form", ["float", "int8", "int8x2"])
@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("offsets", [False, True])
@pytest.mark.parametrize(("rows", "columns", "group"), [(1, 32, 32), (21, 288, 32), (9, 1024, 256)])
def test_products_with_strips(
    rows: int, columns: int, group: Any, offsets: bool, bits: Any, form: Any, bench: Workbench
) -> None:
    matrix = StripMatrix(strip_of(rows, columns, bits=bits, group=group, offsets=offsets))
    x = random(11, columns, seed=5) * torch.logspace(-3, 3, 11)[:, None]
    linear = Uploader(bench.memory).linear([matrix])
    activation = bench.activation(x)
    found = product(bench, linear, activation, form, 11)
    assert agrees(found, rounded(bench.get(Address(activation.values), 11, columns), form), dense_of(matrix))
    assert torch.equal(product(bench, linear, activation, form, 11, many=False), found)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize(("rows", "columns"), [(1, 1), (21, 288), (8, 77)])
def test_products_with_numbers(rows: int, columns: int, dtype: torch.dtype, bench: Workbench) -> None:
    weight = random(rows, columns, seed=2).to(dtype)
    matrix = Dense(weight) if dtype == torch.float32 else Widened(weight)
    x = random(9, columns, seed=5)
    linear = Uploader(bench.memory).linear([matrix])
    activation = bench.activation(x)
    found = product(bench, linear, activation, "float", 9)
    assert agrees(found, bench.get(Address(activation.values), 9, columns), dense_of(matrix))
    assert torch.equal(product(bench, linear, activation, "float", 9, many=False), found)


def test_a_bias_is_added_and_so_is_what_was_there(bench: Workbench) -> None:
    bias, y = random(21, seed=8), random(3, 21, seed=9)
    linear = Uploader(bench.memory).linear([StripMatrix(strip_of(21, 64, bits=8), bias)])
    activation = bench.activation(random(3, 64, seed=5))
    plain = product(bench, DeviceLinear(linear.parts, Address(0)), activation, "int8x2", 3)
    assert torch.equal(product(bench, linear, activation, "int8x2", 3), plain + bias)
    assert torch.equal(product(bench, linear, activation, "int8x2", 3, adds=1, y=y), y + (plain + bias))


def test_members_of_different_kinds_fill_one_row(bench: Workbench) -> None:
    members = [
        StripMatrix(strip_of(5, 64, bits=8)),
        StripMatrix(strip_of(12, 64, bits=4, seed=4)),
        Dense(random(3, 64, seed=6)),
    ]
    matrix = Joined(members, random(20, seed=7))
    linear = Uploader(bench.memory).linear([matrix])
    x = random(2, 64, seed=5)
    activation = bench.activation(x)
    found = product(bench, linear, activation, "float", 2) - matrix.bias
    assert torch.allclose(found.double(), x.double() @ dense_of(matrix).T, atol=1e-4)


def test_each_row_takes_its_expert(bench: Workbench) -> None:
    experts = [StripMatrix(strip_of(13, 96, bits=4, seed=seed)) for seed in range(5)]
    linear = Uploader(bench.memory).linear(experts)
    x, chosen = random(4, 96, seed=5), torch.tensor([[0, 3], [1, 4], [0, 1], [2, 3]], dtype=torch.int32)
    activation = bench.activation(x)
    found = product(
        bench, linear, activation, "float", 8, experts=bench.put(chosen), rows_each=2, many=False
    ).view(4, 2, 13)
    values = bench.get(Address(activation.values), 4, 96)
    for token in range(4):
        for slot in range(2):
            weight = dense_of(experts[chosen[token, slot]])
            assert agrees(found[token, slot][None], values[token][None], weight)


def test_experts_of_different_kinds_are_refused(bench: Workbench) -> None:
    with pytest.raises(UnsupportedModelError, match="different ways"):
        Uploader(bench.memory).linear([Dense(random(4, 32)), StripMatrix(strip_of(4, 32, bits=8))])


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
@pytest.mark.parametrize("form", ["float", "int8", "int8x2"])
def test_what_is_no_number_reaches_its_own_row_alone(bad: float, form: str, bench: Workbench) -> None:
    x = random(3, 64, seed=5)
    x[1, 40] = bad
    linear = Uploader(bench.memory).linear([StripMatrix(strip_of(9, 64, bits=8))])
    found = product(bench, linear, bench.activation(x), form, 3)
    assert found[[0, 2]].isfinite().all()
    assert not found[1].isfinite().any()


@pytest.mark.parametrize("width", [1, 31, 64, 300, 576])
def test_rms_norm(width: int, bench: Workbench) -> None:
    x, weight = random(3, width, seed=1), random(width, seed=2)
    out = bench.room(3, width)
    norm = Norm(x=bench.put(x), weight=bench.put(weight), out=Activation(values=out, width=width), eps=1e-5)
    bench.kernels.launch("rms_norm", norm, grid=(3, 1, 1))
    wide = x.double()
    expected = wide / (wide.square().mean(-1, keepdim=True) + 1e-5).sqrt() * weight
    assert torch.allclose(bench.get(out, 3, width).double(), expected, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("width", [1, 33, 256, 300])
def test_swiglu(width: int, bench: Workbench) -> None:
    gate_up = random(3, 2 * width, seed=1) * 10
    out = bench.room(3, width)
    swiglu = Swiglu(gate_up=bench.put(gate_up), out=Activation(values=out, width=width))
    bench.kernels.launch("swiglu", swiglu, grid=(3, 1, 1))
    gate, up = gate_up.double().chunk(2, 1)
    expected = gate / (1 + (-gate).exp()) * up
    assert torch.allclose(bench.get(out, 3, width).double(), expected, rtol=1e-5, atol=1e-9)


def route(
    bench: Workbench, logits: torch.Tensor, chosen: int, *, normalises: bool
) -> tuple[torch.Tensor, ...]:
    rows, count = logits.shape
    experts, weights = bench.room(rows, chosen, dtype=torch.int32), bench.room(rows, chosen)
    arguments = Route(
        logits=bench.put(logits),
        experts=experts,
        weights=weights,
        count=count,
        chosen=chosen,
        normalises=normalises,
    )
    bench.kernels.launch("route", arguments, grid=(rows, 1, 1))
    return bench.get(experts, rows, chosen, dtype=torch.int32), bench.get(weights, rows, chosen)


@pytest.mark.parametrize("normalises", [True, False])
@pytest.mark.parametrize(("count", "chosen"), [(1, 1), (5, 2), (128, 8), (1000, 40)])
def test_the_most_probable_experts_are_taken_in_ascending_order(
    count: int, chosen: int, normalises: bool, bench: Workbench
) -> None:
    logits = random(4, count, seed=3) * 3
    experts, weights = route(bench, logits, chosen, normalises=normalises)
    expected, order = logits.double().softmax(-1).topk(chosen)
    if normalises:
        expected = expected / expected.sum(-1, keepdim=True)
    ascending = order.sort(-1)
    assert torch.equal(experts.long(), ascending.values)
    assert torch.allclose(weights.double(), expected.gather(1, ascending.indices), rtol=1e-5)


def test_of_equal_experts_the_first_are_taken(bench: Workbench) -> None:
    experts, weights = route(bench, torch.zeros(1, 50), 3, normalises=True)
    assert experts.tolist() == [[0, 1, 2]]
    assert torch.allclose(weights, torch.full((1, 3), 1 / 3))


def test_logits_that_are_no_numbers_choose_experts_that_exist(bench: Workbench) -> None:
    experts, weights = route(bench, torch.full((1, 50), float("nan")), 3, normalises=True)
    assert sorted(set(experts[0].tolist())) == experts[0].tolist()
    assert all(0 <= expert < 50 for expert in experts[0].tolist())
    assert weights.isnan().all()


def test_experts_add_up(bench: Workbench) -> None:
    y, weights, hidden = random(6, 300, seed=1), random(2, 3, seed=2), random(2, 300, seed=3)
    target = bench.put(hidden)
    mixture = Mixture(y=bench.put(y), weights=bench.put(weights), hidden=target, width=300, chosen=3)
    bench.kernels.launch("mix_experts", mixture, grid=(2, 2, 1))
    expected = hidden.double() + (y.double().view(2, 3, 300) * weights.double()[..., None]).sum(1)
    assert torch.allclose(bench.get(target, 2, 300).double(), expected, atol=1e-5)


def test_a_kernel_that_is_not_there_is_the_compiler_s_complaint(
    card: EmulatedCard, card_compiler: EmulatedCompiler
) -> None:
    with pytest.raises(CardFaultError):
        card_compiler.compile({"bad.cu": "this is no kernel"}, "bad.cu", card=card.info)
