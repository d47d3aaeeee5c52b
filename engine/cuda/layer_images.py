"""The layers of a model that the CPU has, as they are to lie on the card."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from engine.cpu.matrices import Dense, Joined, Matrix, Widened
from engine.cpu.model import LayerWeights, ModelWeights
from engine.cpu.moe import MoeWeights
from engine.cpu.strip_matrix import StripMatrix
from engine.cuda.driver import NOWHERE, Address
from engine.cuda.layers import DeviceDense, DeviceExperts, DeviceLayer
from engine.cuda.matrices import DeviceLinear, LinearImage, linear_image, mixed_experts
from engine.cuda.uploader import Uploader
from engine.models.spec import AttentionSpec, MoeSpec


@dataclass(frozen=True)
class LayerImage:
    """One layer. Its norms are on the card already. matrices: by projection (fused queries, keys and values,
    output, gates with their ups, down, router), of which each takes a buffer.
    """

    attention: AttentionSpec
    attention_norm: Address
    qk_norm: Address
    feed_forward_norm: Address
    experts: MoeSpec | None
    intermediate_size: int
    matrices: tuple[LinearImage, ...]

    @property
    def sizes(self) -> tuple[int, ...]:
        """Bytes of each matrix, as it stays."""
        return tuple(each.num_bytes for each in self.matrices)

    @property
    def raw_sizes(self) -> tuple[int, ...]:
        """Bytes of each matrix, as it comes."""
        return tuple(each.raw_bytes for each in self.matrices)

    @property
    def num_bytes(self) -> int:
        return sum(self.sizes)

    def converted(self) -> LayerImage:
        """See `LinearImage.converted`."""
        return replace(self, matrices=tuple(each.converted() for each in self.matrices))

    def with_matrices(self, linears: Sequence[DeviceLinear]) -> DeviceLayer:
        """Where those are on the card."""
        qkv, output, gate_up, down, *router = linears
        return DeviceLayer(
            attention=self.attention,
            attention_norm=self.attention_norm,
            qkv=qkv,
            qk_norm=self.qk_norm,
            output=output,
            feed_forward_norm=self.feed_forward_norm,
            feed_forward=(
                DeviceDense(gate_up, down)
                if self.experts is None
                else DeviceExperts(self.experts, router[0], gate_up, down)
            ),
            intermediate_size=self.intermediate_size,
        )


def layer_images(weights: ModelWeights, uploader: Uploader) -> list[LayerImage]:
    """Of every layer. Uploads their norms. Raises UnsupportedModelError."""
    return [_layer_image(layer, uploader) for layer in weights.layers]


def _layer_image(layer: LayerWeights, uploader: Uploader) -> LayerImage:
    attention, feed_forward = layer.attention, layer.feed_forward
    if isinstance(feed_forward, MoeWeights):
        experts = feed_forward.spec
        _check_alike(feed_forward.gate_up)
        _check_alike(feed_forward.down)
        maps = [feed_forward.gate_up, feed_forward.down, [feed_forward.router]]
    else:
        experts = None
        maps = [[feed_forward.gate_up], [feed_forward.down]]
    qk_norm = attention.qk_norm
    return LayerImage(
        attention=attention.spec,
        attention_norm=uploader.tensor(attention.norm.float()),
        qk_norm=NOWHERE if qk_norm is None else uploader.tensor(qk_norm.float()),
        feed_forward_norm=uploader.tensor(layer.feed_forward_norm.float()),
        experts=experts,
        intermediate_size=layer.intermediate_size,
        matrices=tuple(linear_image(matrices) for matrices in ([attention.qkv], [attention.output], *maps)),
    )


def _check_alike(experts: Sequence[Matrix]) -> None:
    """A kernel finds an expert by its number alone. Raises UnsupportedModelError."""
    if len({_layout(each) for each in experts}) > 1:
        raise mixed_experts()


def _layout(matrix: Matrix) -> tuple[object, ...]:
    """What two experts have in common that lie one behind the other."""
    if isinstance(matrix, Joined):
        return tuple(_layout(each) for each in matrix.members)
    if isinstance(matrix, StripMatrix):
        return matrix.strip.bits, matrix.strip.group, matrix.strip.codes.shape
    assert isinstance(matrix, Dense | Widened)
    return matrix.weight.dtype, matrix.weight.shape
