"""How many bytes a token has to read: what no kernel can do without, and so how fast it could be at best."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from engine.backend import Backend
from engine.cpu.backend import CpuBackend
from engine.cpu.matrices import Dense, Joined, Matrix, Widened
from engine.cpu.model import LayerWeights
from engine.cpu.moe import MoeWeights
from engine.cpu.strip_matrix import StripMatrix
from engine.cuda.backend import CudaBackend
from engine.cuda.layers import DeviceExperts, DeviceLayer
from engine.cuda.matrices import DeviceLinear, DeviceMatrix
from engine.kv_geometry import KvFormat, KvGeometry
from engine.models.spec import AttentionSpec, ModelSpec
from engine.weights.strips import BLOCK

_FLOAT_BYTES = 4
_KIND_BYTES = {"float32": 4.0, "float16": 2.0, "bfloat16": 2.0, "codes8": 1.0, "codes4": 0.5}


@dataclass(frozen=True)
class Traffic:
    """weights: of all layers and the head, of a mixture only the experts that a token takes; norms, biases
    and one row of the embedding, too. layers: bytes of each layer's keys and values for one token, and how
    many tokens one sees at most (0: all).
    """

    weights: int
    layers: tuple[tuple[int, int], ...]

    def at(self, depth: int) -> int:
        """Bytes of a token behind `depth` others."""
        return self.weights + self.cache(depth)

    def cache(self, depth: int) -> int:
        return sum(each * min(depth, window or depth) for each, window in self.layers)


def traffic_of(backend: Backend, kv: KvFormat) -> Traffic:
    """kv: of the pages that it computes with."""
    spec = backend.spec
    if isinstance(backend, CudaBackend):
        weights = _card_weights(backend)
    else:
        assert isinstance(backend, CpuBackend)
        weights = _cpu_weights(backend)
    return Traffic(
        weights=weights + _vector_bytes(spec) + _FLOAT_BYTES * spec.hidden_size,
        layers=tuple(_of_a_cached_token(layer.attention, kv) for layer in spec.layers),
    )


def _of_a_cached_token(attention: AttentionSpec, kv: KvFormat) -> tuple[int, int]:
    geometry = KvGeometry(kv, ((attention.num_kv_heads, attention.head_dim),))
    return geometry.token_bytes, attention.window or 0


def _vector_bytes(spec: ModelSpec) -> int:
    """Norms. Biases belong to their matrices."""

    def of_attention(attention: AttentionSpec) -> int:
        return 2 * attention.head_dim if attention.qk_norm else 0

    numbers = (2 * spec.num_layers + 1) * spec.hidden_size
    return _FLOAT_BYTES * (numbers + sum(of_attention(layer.attention) for layer in spec.layers))


def _cpu_weights(backend: CpuBackend) -> int:
    weights = backend.weights
    return weights.head.num_bytes + sum(_cpu_layer(layer) for layer in weights.layers)


def _cpu_layer(layer: LayerWeights) -> int:
    attention, feed_forward = layer.attention, layer.feed_forward
    matrices = [attention.qkv, attention.output]
    if isinstance(feed_forward, MoeWeights):
        top_k = feed_forward.spec.top_k  # experts are alike
        matrices += [feed_forward.router, *feed_forward.gate_up[:top_k], *feed_forward.down[:top_k]]
    else:
        matrices += [feed_forward.gate_up, feed_forward.down]
    return sum(each.num_bytes + _bias_bytes(each) for each in matrices)


def _bias_bytes(matrix: Matrix) -> int:
    assert isinstance(matrix, Dense | Widened | Joined | StripMatrix)
    return 0 if matrix.bias is None else matrix.bias.nbytes


def _card_weights(backend: CudaBackend) -> int:
    weights = backend.weights
    total = linear_bytes(weights.head)
    for index in range(backend.spec.num_layers):
        with weights.layers.running(index) as layer:
            total += sum(num_bytes for _, _, num_bytes in layer_maps(layer))
    return total


def layer_maps(layer: DeviceLayer) -> Sequence[tuple[str, DeviceLinear, int]]:
    """Each map of a layer by name, and the bytes of it that a token reads."""
    maps = [("qkv", layer.qkv, 1), ("output", layer.output, 1)]
    feed_forward = layer.feed_forward
    if isinstance(feed_forward, DeviceExperts):
        top_k = feed_forward.spec.top_k
        maps += [
            ("router", feed_forward.router, 1),
            ("experts gate_up", feed_forward.gate_up, top_k),
            ("experts down", feed_forward.down, top_k),
        ]
    else:
        maps += [("gate_up", feed_forward.gate_up, 1), ("down", feed_forward.down, 1)]
    return [(name, linear, times * linear_bytes(linear)) for name, linear, times in maps]


def linear_bytes(linear: DeviceLinear) -> int:
    """Of one map; of a mixture's, of one expert."""
    bias = _FLOAT_BYTES * linear.rows if linear.bias else 0
    return bias + sum(_matrix_bytes(part) for part in linear.parts)


def _matrix_bytes(part: DeviceMatrix) -> int:
    """Without what a layout adds to round it up."""
    weights = int(_KIND_BYTES[part.kind] * part.rows * part.columns)
    if not part.is_strip:
        return weights
    numbers = part.rows * part.columns // (BLOCK * part.blocks_a_scale) * (2 if part.offsets else 1)
    return weights + numbers * (2 if part.narrow_scales else _FLOAT_BYTES)
