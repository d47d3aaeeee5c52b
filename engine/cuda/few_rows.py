"""How products of a few rows are launched: what of a block's shared memory they take, and how many blocks."""

from __future__ import annotations

from dataclasses import dataclass

from engine.cuda.driver import CardInfo
from engine.cuda.tile_layout import STRETCHES, TILE, TileLayout

# As in kernels/few_rows.cuh and product_few.cu.
MOST_TOKENS = 4
MOST_TAKEN = 64  # experts
_WARPS = 16
_ROUNDS = 2
_STAGES_TO_END = 3
_NORM_STEP = 4096  # numbers: 8 a thread
_SMALL_SHARED_BYTES = 96 * 2**10  # that a block may have
_ROOMY_SHARED_BYTES = 160 * 2**10
# Of cards whose launches begin while others run: a processor's shared memory; of a launch that is to have a
# processor to itself, but for other launches; and what blocks take beside what their launches say.
_PROCESSOR_BYTES = 228 * 2**10
_ALONE_BYTES = 112 * 2**10
_BLOCK_BYTES = 3 * 2**10


@dataclass(frozen=True)
class FewLaunch:
    """grid: blocks in its first axis. jobs: of one matrix. teams: of a group of warps, see `teams_for`.
    shared_bytes: of dynamic shared memory.
    """

    grid: int
    jobs: int
    teams: int
    shared_bytes: int


def few_launch(
    layout: TileLayout,
    card: CardInfo,
    *,
    planes: int,
    tokens: int,
    slots: int,
    taken: int,
    takers: int = 1,
    behind: int | None = None,
    knows_teams: bool = True,
    two_steps: bool = False,
) -> FewLaunch:
    """slots: tiles that a group of warps makes at a time. taken: experts of a row, or 1. takers: rows that
    have blocks of their own; of all of them there are no more than processors, where these are enough: a
    second one of a processor would begin late. behind: how much a block of the launch before takes of shared
    memory, where this one is to be spread evenly, see `_spread`. knows_teams: as kernels of one row.
    two_steps: see `takes_two_steps`.
    """
    jobs = layout.tiles // slots
    teams = 1
    if knows_teams:
        teams = teams_for(layout, jobs * taken, slots=slots, blocks=card.multiprocessors)
    wanted = shared_bytes(
        layout, card, planes=planes, tokens=tokens, slots=slots, teams=teams, two_steps=two_steps
    )
    return FewLaunch(
        grid=min(jobs * taken, max(card.multiprocessors // takers, 1)),
        jobs=jobs,
        teams=teams,
        shared_bytes=wanted if behind is None else _spread(wanted, behind, card),
    )


def teams_for(layout: TileLayout, jobs: int, *, slots: int, blocks: int) -> int:
    """Of how many teams (1, 2 or 4), of as many warps as there are chains, a group is, in products of one
    row: each makes as many of a job's tiles. With more of them a job is done sooner, but there are fewer
    groups; what ends a job takes as long as some stages of a warp's, measured on an H200.
    """
    most = min(slots, _WARPS // layout.chains)

    def stages(teams: int) -> int:
        rounds = _rounds(layout, jobs, teams=teams, blocks=blocks)
        return rounds * (slots // teams * layout.stretch + _STAGES_TO_END)

    return min((teams for teams in (1, 2, 4) if teams <= most), key=stages)


def fits_rings(layout: TileLayout, card: CardInfo, *, slots: int, teams: int) -> bool:
    """Whether rings hold all of a matrix: then nothing is asked for behind them."""
    rounds = _rounds(layout, layout.tiles // slots, teams=teams, blocks=card.multiprocessors)
    return rounds * (slots // teams) * layout.stretch <= _ring_stages(layout, card)


def _rounds(layout: TileLayout, jobs: int, *, teams: int, blocks: int) -> int:
    """Jobs of a group of warps, one after the other."""
    groups = _WARPS // layout.chains // teams
    return -(-jobs // (groups * blocks))


def takes_two_steps(columns: int) -> bool:
    """Whether threads go through so wide a row in two steps, where a norm stands before it: then a block has
    what belongs to the second one in the place of its sums.
    """
    return _NORM_STEP < columns <= 2 * _NORM_STEP


def shared_bytes(
    layout: TileLayout,
    card: CardInfo,
    *,
    planes: int,
    tokens: int,
    slots: int,
    teams: int = 1,
    two_steps: bool = False,
) -> int:
    """What a block needs. teams: of a group. two_steps: see `takes_two_steps`."""
    stage_bytes = STRETCHES * TILE * (4 * layout.bits + 2)  # codes and their scales
    blocks = layout.stages * STRETCHES
    codes = tokens * planes * (blocks // 4 * 4 + 5) * 32
    numbers = 2 * tokens * blocks
    groups = _WARPS // layout.chains // teams
    parts = groups * _ROUNDS * layout.chains * STRETCHES * slots * TILE * tokens
    if two_steps:
        parts = max(parts, 2 * (layout.columns - _NORM_STEP))
    return _WARPS * _ring_stages(layout, card) * stage_bytes + codes + 4 * (numbers + parts)


def _spread(wanted: int, behind: int, card: CardInfo) -> int:
    """There is a block for each processor. But where launches begin while others run, blocks go to whatever
    processor has room, and where that is two of one launch, another processor has none and all wait for the
    two. So a block takes more shared memory than half of a processor's, unless one of the launch before were
    in the way then, which it wasn't otherwise.
    """
    if not (9, 0) <= card.compute_capability < (12, 0):
        return wanted
    left = _PROCESSOR_BYTES - behind - 2 * _BLOCK_BYTES
    spread = max(wanted, _ALONE_BYTES)
    return wanted if wanted <= left < spread else spread


def most_tokens(layout: TileLayout, card: CardInfo, *, planes: int, slots: int) -> int:
    """That a launch has room for; 0 where it hasn't for one row."""
    most_bytes = _ROOMY_SHARED_BYTES if is_roomy(card.compute_capability) else _SMALL_SHARED_BYTES
    fitting = 0
    for tokens in range(1, MOST_TOKENS + 1):
        if shared_bytes(layout, card, planes=planes, tokens=tokens, slots=slots) <= most_bytes:
            fitting = tokens
    return fitting


def late_stages(layout: TileLayout, card: CardInfo) -> int:
    """How many of each warp's ring a launch asks for only when it asks for its row, where those asked for
    earlier would be in the way of the one before it.
    """
    return 3 * _ring_stages(layout, card) // 4


def near_stages(layout: TileLayout, card: CardInfo) -> int:
    """How many behind each warp's ring are brought near while a row comes that a norm stands before, as far
    as they are of the same tile: memory has brought the ring by then, and would wait for the row.
    """
    return _ring_stages(layout, card) // 2


def inverse(number: int, bits: int) -> int:
    """By which kernels divide: i // number is i * that, shifted right by so many bits, where i * number is
    below 2^bits.
    """
    return -(-(1 << bits) // number)


def is_roomy(compute_capability: tuple[int, int]) -> bool:
    """Whether a processor has 160 KB of shared memory or more; others have 100."""
    return compute_capability in ((8, 0), (8, 7)) or (9, 0) <= compute_capability < (12, 0)


def _ring_stages(layout: TileLayout, card: CardInfo) -> int:
    return (16 if is_roomy(card.compute_capability) else 8) // layout.bits
