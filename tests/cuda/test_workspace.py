"""The card's memory for what is between the layers of one step."""

from __future__ import annotations

import pytest
from emulated_card import EmulatedCard

from engine.cuda.memory import CardMemory
from engine.cuda.workspace import STEP_ROWS, Workspace, row_bytes, step_rows
from engine.models.spec import AttentionSpec, DenseSpec, LayerSpec, ModelSpec, MoeSpec, RopeSpec


def model(feed_forward: DenseSpec | MoeSpec, *, hidden: int = 96) -> ModelSpec:
    attention = AttentionSpec(
        num_heads=6, num_kv_heads=2, head_dim=16, scale=0.25, rope=RopeSpec(theta=10_000.0, dim=16)
    )
    return ModelSpec(
        architecture="Test",
        family="Test",
        hidden_size=hidden,
        vocab_size=50,
        context_length=4096,
        norm_eps=1e-6,
        layers=(LayerSpec(attention, feed_forward),),
        tied_embeddings=True,
    )


DENSE = DenseSpec(200)
EXPERTS = MoeSpec(num_experts=9, top_k=8, intermediate_size=40, normalise_top_k=True)


@pytest.mark.parametrize("planes", [0, 1, 2])
@pytest.mark.parametrize("feed_forward", [DENSE, EXPERTS])
def test_a_row_takes_what_is_said_of_it(
    feed_forward: DenseSpec | MoeSpec, planes: int, card: EmulatedCard
) -> None:
    spec, memory, held = model(feed_forward), CardMemory(card), []
    for rows in (64, 192):
        space = Workspace(memory, spec, rows=rows, context=512, planes=planes)
        held.append(sum(memory.num_bytes.values()))
        space.free()
    assert held[1] - held[0] == 128 * row_bytes(spec, planes=planes)


def test_longer_steps_take_a_small_part_of_what_the_weights_leave() -> None:
    spec = model(DENSE, hidden=4096)
    each = row_bytes(spec, planes=2)
    for room in (-(2**33), 0, 2**28, 2**30, 2**32, 2**34, 2**40):
        rows = step_rows(spec, room, planes=2)
        assert rows in STEP_ROWS
        assert rows == STEP_ROWS[-1] or rows * each <= room / 8
        longer = [more for more in STEP_ROWS if more > rows]
        assert all(more * each > room / 8 for more in longer)
    assert step_rows(spec, 2**40, planes=2) == STEP_ROWS[0]
