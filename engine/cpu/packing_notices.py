"""What a load tells of the forms that a model's matrices have come to."""

from __future__ import annotations

from collections.abc import Iterator

from engine.cpu.strip_kernels import strip_kernels
from engine.notices import Notice
from engine.weights.sizes import MatrixCounts
from engine.weights.strips import BLOCK, Bits, Group


def packing_notices(
    counts: MatrixCounts, bits: Bits | None, *, group: Group, narrow: int, not_kept: int
) -> tuple[Notice, ...]:
    """bits, group: what was asked for. narrow: matrices whose rows don't divide by that group, but by 32.
    not_kept: matrices that are strips by the headers, and by their numbers aren't.
    """
    return tuple(_notices(counts, bits, group, narrow=narrow, not_kept=not_kept))


def _notices(
    counts: MatrixCounts, bits: Bits | None, group: Group, *, narrow: int, not_kept: int
) -> Iterator[Notice]:
    total = counts.native + counts.q8 + counts.q4
    if counts.native and bits is not None:
        yield Notice(
            "matrices-not-packed",
            f"{counts.native} of {total} matrices stay as they are stored, because their rows don't divide "
            f"into groups of {BLOCK}.",
        )
    if narrow:
        yield Notice(
            "matrices-in-small-groups",
            f"{narrow} of {total} matrices have a scale for every {BLOCK} inputs, because their rows don't "
            f"divide into groups of {group}.",
        )
    if counts.q4 and bits == 8:
        yield Notice(
            "matrices-stay-packed",
            f"{counts.q4} of {total} matrices are stored with 4 bits and stay so: with 8 they would be the "
            "same numbers in more memory.",
        )
    if not_kept:
        yield Notice(
            "matrices-packed-anew",
            f"{not_kept} of {total} matrices can't be kept exactly as they are stored, so they are packed "
            "anew; answers hardly show it.",
        )
    if strip_kernels() is None:
        yield Notice(
            "strip-kernels-missing",
            "The fast products for packed weights can't be compiled here, so answers come slower.",
            "Install the package llvmlite, 0.45 or newer, or choose native weights.",
        )
