"""Where the experts of a Qwen3-MoE layer are, in each layout that checkpoints store them.

    one by one      mlp.experts.{e}.gate_proj.weight (I, H), .up_proj.weight (I, H), .down_proj.weight (H, I)
    fused           mlp.experts.gate_up_proj (E, 2I, H), mlp.experts.down_proj (E, H, I)
    fused, in-out   mlp.experts.gate_up_proj (E, H, 2I), mlp.experts.down_proj (E, I, H)
    stacked         mlp.experts.gate_proj (E, I, H), .up_proj (E, I, H), .down_proj (E, H, I)   (GGUF)

The layout is read from the names, and between the two fused ones from the shape; where both shapes are equal
(2I = H), the family's own layout counts.
"""

from __future__ import annotations

from engine.models.family import StoredTensors
from engine.models.spec import MoeSpec, Parameter, Piece


class ExpertLayout:
    """Finds the experts of a layer in `stored`. `in_out` says how the family stores fused experts."""

    def __init__(self, stored: StoredTensors, *, fused: bool, in_out: bool) -> None:
        self._stored = stored
        self._fused = fused  # the family's own layout, for what the files don't tell
        self._in_out = in_out

    def parameters(self, prefix: str, hidden: int, moe: MoeSpec) -> tuple[Parameter, Parameter]:
        stem = f"{prefix}mlp.experts."
        gate_up = (moe.num_experts, 2 * moe.intermediate_size, hidden)
        down = (moe.num_experts, hidden, moe.intermediate_size)
        gate_up_pieces: tuple[Piece, ...]
        down_pieces: tuple[Piece, ...]
        if f"{stem}gate_proj" in self._stored:
            half = (moe.num_experts, moe.intermediate_size, hidden)
            gate_up_pieces = (Piece(f"{stem}gate_proj", half), Piece(f"{stem}up_proj", half))
            down_pieces = (Piece(f"{stem}down_proj", down),)
        elif self._is_fused(stem):
            gate_up_pieces = (self._fused_piece(f"{stem}gate_up_proj", gate_up),)
            down_pieces = (self._fused_piece(f"{stem}down_proj", down),)
        else:
            gate_up_pieces, down_pieces = _one_by_one(stem, hidden, moe)
        return (
            Parameter(f"{prefix}experts.gate_up", gate_up, gate_up_pieces),
            Parameter(f"{prefix}experts.down", down, down_pieces),
        )

    def _is_fused(self, stem: str) -> bool:
        if f"{stem}gate_up_proj" in self._stored:
            return True
        return self._fused and f"{stem}0.gate_proj.weight" not in self._stored

    def _fused_piece(self, name: str, shape: tuple[int, int, int]) -> Piece:
        """`shape` is (E, N, K), as the engine has it."""
        swapped = (shape[0], shape[2], shape[1])
        info = self._stored.get(name)
        in_out = self._in_out
        if info is not None and info.shape != (swapped if in_out else shape):
            in_out = not in_out and info.shape == swapped
        return Piece(name, swapped, transpose=True) if in_out else Piece(name, shape)


def _one_by_one(stem: str, hidden: int, moe: MoeSpec) -> tuple[tuple[Piece, ...], tuple[Piece, ...]]:
    size = moe.intermediate_size
    gate_up = tuple(
        Piece(f"{stem}{expert}.{part}.weight", (size, hidden))
        for expert in range(moe.num_experts)
        for part in ("gate_proj", "up_proj")
    )
    down = tuple(
        Piece(f"{stem}{expert}.down_proj.weight", (hidden, size)) for expert in range(moe.num_experts)
    )
    return gate_up, down
