"""Answers that follow each other on a card, of which one begins at the very place where another ended: what
the card keeps of the other's last draw is none of its tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest
from emulated_card import EmulatedCard, EmulatedCompiler

from engine.backend import Sequence
from engine.checkpoints.model_folder import open_model
from engine.cpu.backend import CpuBackend
from engine.cuda.backend import CudaBackend
from engine.cuda.card_drawing import CardDrawing
from engine.generation import SamplingParams
from engine.kv_geometry import KvGeometry

MODEL = Path(__file__).resolve().parents[1] / "models" / "tiny-qwen2"


@pytest.fixture
def backend(make_card: Callable[..., EmulatedCard], card_compiler: EmulatedCompiler) -> Iterator[CudaBackend]:
    folder = open_model(MODEL)
    cpu = CpuBackend.load(folder.spec, folder.parameters, folder.tensors)
    folder.tensors.close()
    with closing(CudaBackend(cpu, make_card(), card_compiler, activations="float", context=256)) as found:
        yield found


@pytest.mark.parametrize("second", [[90, 14, 33, 8], [61]])
def test_an_answer_that_begins_where_another_ended_reads_its_own_tokens(
    second: list[int], backend: CudaBackend
) -> None:
    pool = backend.new_pool(KvGeometry.of(backend.spec, "int8"), 2)
    found = []
    for drawn_before in (True, False):
        sequence = Sequence([pool.allocate_one()])
        first = [5, 17, 40, 2, 9]
        if drawn_before:
            with closing(greedy(backend, first)) as drawing:
                drawing.prefill(first, sequence, pool)
        else:
            backend.prefill(first, sequence, pool)
        with closing(greedy(backend, [*first, *second])) as drawing:
            tokens = [drawing.prefill(second, sequence, pool)]
            for _ in range(4):
                tokens.append(drawing.decode(tokens[-1], sequence, pool))
        found.append((tokens, pool.read(sequence.pages[0]).tolist()))
        pool.free(sequence.pages.pop())
    assert found[0][0] == found[1][0]
    assert found[0][1] == found[1][1]


def greedy(backend: CudaBackend, history: list[int]) -> CardDrawing:
    drawing = backend.start_drawing(SamplingParams(temperature=0.0), seed=None, history=history)
    assert drawing is not None
    return drawing
