"""Each kernel against its definition in float64, at sizes that don't divide evenly."""

from __future__ import annotations

import ctypes
import re

import pytest
import torch
from emulated_card import EmulatedCard, EmulatedCompiler
from workbench import Workbench, random

from engine.cuda import arguments
from engine.cuda.arguments import Activation, Mixture, Norm, Swiglu
from engine.cuda.driver import CardFaultError
from engine.cuda.kernel_set import kernel_sources

STRUCTURES = [
    each
    for each in vars(arguments).values()
    if isinstance(each, type) and issubclass(each, ctypes.Structure) and each is not ctypes.Structure
]


def test_structures_are_laid_out_as_in_the_kernels(
    card: EmulatedCard, card_compiler: EmulatedCompiler
) -> None:
    checks = []
    for structure in STRUCTURES:
        name = structure.__name__
        checks.append(f'static_assert(sizeof({name}) == {ctypes.sizeof(structure)}, "{name}");')
        for field, *_ in structure._fields_:
            offset = getattr(structure, field).offset
            checks.append(
                f'static_assert(__builtin_offsetof({name}, {field}) == {offset}, "{name} {field}");'
            )
    sources = kernel_sources()
    files = [f'#include "{file}"' for file in sources if file.endswith(".cu")]
    text = "\n".join([*files, *checks])
    card_compiler.compile({**sources, "check.cu": text}, "check.cu", card=card.info)


def test_every_kernel_takes_a_structure_that_the_host_knows() -> None:
    text = "\n".join(kernel_sources().values())
    taken = set(re.findall(r"KESTREL_KERNEL(?:_SHARING)?\([^()]+, (\w+)\) \{", text))
    assert "Arguments" in taken  # of a macro
    taken = taken - {"Arguments"} | set(re.findall(r"^PRODUCT_OF\(\w+, (\w+),", text, re.MULTILINE))
    assert {"Product", "ProductValues", "ProductFew", "TiledProduct"} <= taken
    assert taken <= {each.__name__ for each in STRUCTURES}


@pytest.mark.parametrize("width", [1, 31, 64, 300, 576, 5120, 8192, 8200, 12301])
def test_rms_norm(width: int, workbench: Workbench) -> None:
    x, weight = random(3, width, seed=1), random(width, seed=2)
    out = workbench.room(3, width)
    norm = Norm(
        x=workbench.put(x), weight=workbench.put(weight), out=Activation(values=out, width=width), eps=1e-5
    )
    workbench.kernels.launch("rms_norm", norm, grid=(3, 1, 1))
    wide = x.double()
    expected = wide / (wide.square().mean(-1, keepdim=True) + 1e-5).sqrt() * weight
    assert torch.allclose(workbench.get(out, 3, width).double(), expected, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("width", [1, 33, 256, 300])
def test_swiglu(width: int, workbench: Workbench) -> None:
    gate_up = random(3, 2 * width, seed=1) * 10
    out = workbench.room(3, width)
    swiglu = Swiglu(gate_up=workbench.put(gate_up), out=Activation(values=out, width=width))
    workbench.kernels.launch("swiglu", swiglu, grid=(3, 1, 1))
    gate, up = gate_up.double().chunk(2, 1)
    expected = gate / (1 + (-gate).exp()) * up
    assert torch.allclose(workbench.get(out, 3, width).double(), expected, rtol=1e-5, atol=1e-9)


def test_experts_add_up(workbench: Workbench) -> None:
    y, weights, hidden = random(6, 300, seed=1), random(2, 3, seed=2), random(2, 300, seed=3)
    target = workbench.put(hidden)
    mixture = Mixture(y=workbench.put(y), weights=workbench.put(weights), hidden=target, width=300, chosen=3)
    workbench.kernels.launch("mix_experts", mixture, grid=(2, 2, 1))
    expected = hidden.double() + (y.double().view(2, 3, 300) * weights.double()[..., None]).sum(1)
    assert torch.allclose(workbench.get(target, 2, 300).double(), expected, atol=1e-5)


def test_a_kernel_that_is_not_there_is_the_compiler_s_complaint(
    card: EmulatedCard, card_compiler: EmulatedCompiler
) -> None:
    with pytest.raises(CardFaultError):
        card_compiler.compile({"bad.cu": "this is no kernel"}, "bad.cu", card=card.info)
