"""How a token's products are dealt to warps, as far as that is arithmetic."""

from __future__ import annotations

import pytest
from emulated_card import EmulatedCompiler
from hypothesis import given
from hypothesis import strategies as st
from noted_kernels import NotedKernels, large_card, linear

from engine.cuda.arguments import Activation
from engine.cuda.driver import NOWHERE, Address
from engine.cuda.few_rows import few_launch, inverse, late_stages, shared_bytes, teams_for
from engine.cuda.kernel_set import kernel_sources
from engine.cuda.matrices import DeviceLinear, DeviceMatrix
from engine.cuda.product_rows import Normed
from engine.cuda.tile_layout import TILE, TileLayout, most_chains

WARPS = 16
PROCESSOR_BYTES = 228 * 2**10  # of an H100's shared memory
ALONE_BYTES = 112 * 2**10  # of which a block takes so much that no other one of its launch fits beside it
BLOCK_BYTES = 2**10 + 1792  # of it, for the driver and for what the kernel itself names


@given(st.data(), st.integers(1, 2**16))
def test_a_product_with_the_inverse_is_the_quotient(data: st.DataObject, number: int) -> None:
    i = data.draw(st.integers(0, (2**32 - 1) // number))
    assert i * inverse(number, 32) >> 32 == i // number


@pytest.mark.parametrize("chains", range(1, WARPS + 1))
def test_so_it_is_for_every_warp_and_all_of_them(chains: int) -> None:
    for warp in range(WARPS + 1):
        assert warp * inverse(chains, 8) >> 8 == warp // chains


@given(st.integers(1, 264))
def test_a_matrix_of_few_tiles_keeps_all_warps_of_a_large_card_busy(tiles: int) -> None:
    a_processor = -(-tiles // 132)
    assert a_processor * most_chains(TILE * tiles, 1) == WARPS


@given(st.integers(1, 10**6), st.integers(2, 512))
def test_experts_are_cut_alike_whatever_their_size(rows: int, experts: int) -> None:
    assert most_chains(rows, experts) == most_chains(10**6, 1)


@given(st.integers(1, 16), st.sampled_from([1, 2, 4]), st.integers(1, 2000), st.integers(1, 132))
def test_teams_have_whole_tiles_and_all_of_their_warps(
    chains: int, slots: int, jobs: int, blocks: int
) -> None:
    layout = TileLayout(4, TILE * slots, 128 * chains, 32)
    teams = teams_for(layout, jobs, slots=slots, blocks=blocks)
    assert slots % teams == 0
    assert teams * layout.chains <= WARPS


def test_few_tiles_are_made_at_the_same_time_and_many_one_after_the_other() -> None:
    """Gates with their ups of Qwen3-0.6B, 8B and 32B, and of all experts that a token of 30B-A3B takes."""
    for width, columns, experts, slots, teams in (
        (3072, 1024, 1, 4, 4),
        (12288, 4096, 1, 4, 4),
        (25600, 5120, 1, 4, 1),
        (768, 2048, 8, 2, 1),
    ):
        layout = TileLayout(4, 2 * width, columns, 32, most_chains(2 * width, experts))
        jobs = layout.tiles // slots * experts
        assert teams_for(layout, jobs, slots=slots, blocks=132) == teams


def test_teams_of_a_group_share_the_room_for_sums() -> None:
    layout, large = TileLayout(4, 24576, 4096, 32, 4), large_card()
    one, four = (shared_bytes(layout, large, planes=2, tokens=1, slots=4, teams=teams) for teams in (1, 4))
    of_a_group = 4 * 2 * 16 * 4 * TILE  # floats: two rounds of 16 stretches for four tiles
    assert one - four == 3 * of_a_group
    launch = few_launch(layout, large, planes=2, tokens=1, slots=4, taken=1)
    assert (launch.teams, launch.shared_bytes) == (4, four)
    without = few_launch(layout, large, planes=2, tokens=1, slots=4, taken=1, knows_teams=False)
    assert (without.teams, without.shared_bytes) == (1, one)


@pytest.mark.parametrize("columns", [4128, 5120, 8192])
def test_there_is_room_for_a_second_step(columns: int) -> None:
    layout, large = TileLayout(4, 4096, columns, 32, 4), large_card()
    without, room = (
        shared_bytes(layout, large, planes=2, tokens=1, slots=1, two_steps=two_steps)
        for two_steps in (False, True)
    )
    sums = 4 * 2 * 16 * TILE * 4
    assert room - without == max(0, 2 * 4 * (columns - 4096) - sums)


@given(st.sampled_from([4, 8]), st.integers(1, 200), st.integers(1, 4), st.integers(0, 150 * 2**10))
def test_a_processor_has_one_block_of_a_product_that_begins_early(
    bits: int, columns: int, slots: int, behind: int
) -> None:
    layout, large = TileLayout(bits, 4096, 256 * columns, 32), large_card()
    launch = few_launch(layout, large, planes=2, tokens=1, slots=slots, taken=1, behind=behind)
    needed = shared_bytes(layout, large, planes=2, tokens=1, slots=slots, teams=launch.teams)
    room = PROCESSOR_BYTES - behind - 6 * 2**10  # beside a block of the launch before
    assert launch.shared_bytes >= needed
    assert launch.shared_bytes <= room or needed > room
    if needed <= room < ALONE_BYTES:
        assert launch.shared_bytes == needed  # with more, one of the launch before would be in its way
    else:
        assert 2 * (launch.shared_bytes + BLOCK_BYTES) > PROCESSOR_BYTES


def test_a_block_of_each_part_has_room_beside_one_of_the_part_before() -> None:
    """As queries and keys of 4 bits, and values of 8."""
    kernels = NotedKernels()
    runner = kernels.runner()
    parts = [
        DeviceMatrix(kind, 1024, 2048, Address(2**20), Address(2**21), narrow_scales=True)
        for kind in ("codes4", "codes8")
    ]
    x = Normed(Address(2**22), Address(2**23))
    runner.run(DeviceLinear(tuple(parts), NOWHERE), x, Address(2**24), rows=1)
    first, second = kernels.shared_bytes
    assert 2 * (first + BLOCK_BYTES) > PROCESSOR_BYTES
    assert first + second + 2 * BLOCK_BYTES <= PROCESSOR_BYTES


def output_and_gates(width: int, intermediate: int, *, splits: int, rows: int = 1) -> list[int]:
    """What their blocks take of shared memory, behind attention of so many splits."""
    kernels = NotedKernels()
    runner = kernels.runner()
    output, some = linear(width, 4096), Address(2**22)
    attended = Activation(high=some, low=some, scales=some, width=4096)
    runner.run(output, attended, some, rows=rows, adds=True, lets_early=True, behind_splits=splits > 1)
    x = Normed(some, some, output, is_near=True)
    if rows == 1:
        assert runner.gates(linear(2 * intermediate, width), x, attended, rows=1)
    return kernels.shared_bytes


def test_behind_splits_a_processor_has_one_block_of_the_output_and_room_for_one_of_the_gates() -> None:
    """As of Qwen3-8B; a smaller matrix hasn't a block for each."""
    output, gates = output_and_gates(4096, 12288, splits=33)
    assert 2 * (output + BLOCK_BYTES) > PROCESSOR_BYTES
    assert output + gates + 2 * BLOCK_BYTES <= PROCESSOR_BYTES
    assert output > output_and_gates(4096, 12288, splits=1)[0]
    few_tiles = [output_and_gates(2048, 6144, splits=splits)[0] for splits in (1, 33)]
    assert few_tiles[0] == few_tiles[1]
    many_rows = [output_and_gates(4096, 12288, splits=splits, rows=2)[0] for splits in (1, 33)]
    assert many_rows[0] == many_rows[1]


@pytest.mark.parametrize("capability", [(8, 0), (8, 6), (8, 7), (8, 9), (9, 0), (10, 0), (11, 0), (12, 0)])
def test_rings_have_as_many_stages_in_the_kernels_as_launches_make_room_for(
    capability: tuple[int, int], card_compiler: EmulatedCompiler
) -> None:
    checks, found = [], large_card(capability)
    for bits in (4, 8):
        layout = TileLayout(bits, TILE, 32, 32)
        one, two = (shared_bytes(layout, found, planes=1, tokens=tokens, slots=1) for tokens in (1, 2))
        ring = one - (two - one)  # what does not grow with the rows
        checks.append(f'static_assert(Ring<{bits}>::BYTES == {ring}, "bytes");')
        late = late_stages(layout, found)
        checks.append(f'static_assert(3 * Ring<{bits}>::COUNT / 4 == {late}, "late stages");')
    text = "\n".join(['#include "few_rows.cuh"', *checks])
    card_compiler.compile({**kernel_sources(), "check.cu": text}, "check.cu", card=found)


@pytest.mark.parametrize("capability", [(8, 0), (8, 6), (8, 9), (12, 0)])
def test_where_launches_do_not_overlap_or_have_no_room_blocks_take_what_they_need(
    capability: tuple[int, int],
) -> None:
    layout = TileLayout(4, 4096, 4096, 32)
    launch = few_launch(layout, large_card(capability), planes=2, tokens=1, slots=1, taken=1, behind=0)
    needed = shared_bytes(layout, large_card(capability), planes=2, tokens=1, slots=1, teams=launch.teams)
    assert launch.shared_bytes == needed
