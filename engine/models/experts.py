"""Where the experts of a Qwen3-MoE layer are, in each layout that checkpoints store them.

    one by one      mlp.experts.{e}.gate_proj.weight (I, H), .up_proj.weight (I, H), .down_proj.weight (H, I)
    fused           mlp.experts.gate_up_proj (E, 2I, H), mlp.experts.down_proj (E, H, I)
    fused, in-out   mlp.experts.gate_up_proj (E, H, 2I), mlp.experts.down_proj (E, I, H)
    stacked         mlp.experts.gate_proj (E, I, H), .up_proj (E, I, H), .down_proj (E, H, I)   (GGUF)

The layout is read from the names, and between the two fused ones from the shapes: gate_up tells them apart
unless 2I = H, and down then does. transformers writes Qwen3-VL-MoE in either of the two.
"""

from __future__ import annotations

from collections.abc import Mapping

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
            fused = {f"{stem}gate_up_proj": gate_up, f"{stem}down_proj": down}
            in_out = self._is_in_out(fused)
            first, second = (_fused_piece(name, shape, in_out=in_out) for name, shape in fused.items())
            gate_up_pieces, down_pieces = (first,), (second,)
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

    def _is_in_out(self, shapes: Mapping[str, tuple[int, int, int]]) -> bool:
        """What the shapes of the files say, and the family's own layout where they say nothing.

        `shapes` are (E, N, K) by name, as the engine has them.
        """
        for name, shape in shapes.items():
            info = self._stored.get(name)
            if info is not None and shape != _swapped(shape) and info.shape in (shape, _swapped(shape)):
                return info.shape == _swapped(shape)
        return self._in_out


def _fused_piece(name: str, shape: tuple[int, int, int], *, in_out: bool) -> Piece:
    return Piece(name, _swapped(shape), transpose=True) if in_out else Piece(name, shape)


def _swapped(shape: tuple[int, int, int]) -> tuple[int, int, int]:
    return shape[0], shape[2], shape[1]


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
