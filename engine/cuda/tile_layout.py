"""Where codes and scales of a strip lie on the card: in tiles, as `kernels/tiles.cuh` says."""

from __future__ import annotations

from dataclasses import dataclass

from engine.weights.strips import BLOCK

TILE = 16  # rows
STRETCHES = 4  # of a chain
MOST_CHAINS = 16  # of a row: one a warp
_STAGE_BYTES = {4: 1024, 8: 2048}  # by bits: a block of each stretch


_FEW_TILES, _MORE_TILES = 132, 264  # one or two for each processor of a large card


def most_chains(rows: int, matrices: int) -> int:
    """Into how many a row of (N, K) is cut, where there are so many matrices, one an expert. With more of
    them a row is there sooner, and then there is more to add up: so there are as many as give all warps of a
    large card something to do. Of experts several are read at a time.
    """
    tiles = -(-rows // TILE)
    if matrices > 1 or tiles > _MORE_TILES:
        return 4
    return 16 if tiles <= _FEW_TILES else 8


@dataclass(frozen=True)
class TileLayout:
    """Of one matrix (N, K). group: inputs that share a scale. most_chains: that a row may be cut into."""

    bits: int
    rows: int
    columns: int
    group: int
    most_chains: int = MOST_CHAINS

    @property
    def blocks(self) -> int:
        """Of 32 inputs."""
        return self.columns // BLOCK

    @property
    def tiles(self) -> int:
        return -(-self.rows // TILE)

    @property
    def stretch(self) -> int:
        """Blocks that a sum goes through at a stretch."""
        return -(-self.blocks // (STRETCHES * self.most_chains))

    @property
    def chains(self) -> int:
        return -(-self.blocks // (STRETCHES * self.stretch))

    @property
    def stages(self) -> int:
        """Of a tile, the last chain filled up with zeros."""
        return self.chains * self.stretch

    @property
    def code_bytes(self) -> int:
        return self.tiles * self.stages * _STAGE_BYTES[self.bits]

    @property
    def pieces(self) -> int:
        """Of 16 bytes."""
        return self.code_bytes // 16

    @property
    def num_scales(self) -> int:
        """Of all tiles."""
        groups = self.stages * STRETCHES if self.group == BLOCK else self.columns // self.group
        return self.tiles * groups * TILE
