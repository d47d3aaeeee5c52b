"""What a model is, as plain data that no backend has to ask the config file about again.

A family file (`engine/models/<family>.py`) turns a config into a `ModelSpec` and lists the `Parameter`s;
a backend reads only these. Nothing here imports torch.

Letters for shapes, used everywhere: T tokens, H hidden size, N outputs of a matrix, K its inputs, A
attention heads, G key/value heads, D head size, I intermediate size, E experts, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

RopeKind = Literal["default", "linear", "llama3", "yarn"]


@dataclass(frozen=True)
class RopeSpec:
    """Rotary position embedding, in the rotate-half layout. Fields past `dim` count only for the kinds
    that name them.

    M-RoPE sections matter only for images; on text all three positions are equal and M-RoPE is plain RoPE.
    """

    theta: float
    dim: int  # rotated features of each head, <= head_dim
    kind: RopeKind = "default"
    factor: float = 1.0  # linear, llama3, yarn
    low_freq_factor: float = 1.0  # llama3
    high_freq_factor: float = 4.0  # llama3
    original_context_length: int = 0  # llama3, yarn
    attention_factor: float = 1.0  # yarn: multiplies cos and sin, already resolved
    beta_fast: float = 32.0  # yarn
    beta_slow: float = 1.0  # yarn
    truncate: bool = True  # yarn: correction range rounded to whole dimensions
    frequency_factors: tuple[float, ...] = ()  # any kind: divide the dim / 2 frequencies


@dataclass(frozen=True)
class AttentionSpec:
    """One attention layer: A query heads over G key/value heads of D features."""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    scale: float  # multiplies q @ k
    rope: RopeSpec
    qkv_bias: bool = False
    output_bias: bool = False
    qk_norm: bool = False  # RMSNorm over each head of q and k, before RoPE
    window: int | None = None  # a token sees itself and the window - 1 tokens before it

    @property
    def q_dim(self) -> int:
        return self.num_heads * self.head_dim

    @property
    def kv_dim(self) -> int:
        return self.num_kv_heads * self.head_dim


@dataclass(frozen=True)
class DenseSpec:
    """SwiGLU feed-forward: down(silu(gate(x)) * up(x))."""

    intermediate_size: int
    bias: bool = False


@dataclass(frozen=True)
class MoeSpec:
    """Softmax-routed experts, each a SwiGLU; the top-k probabilities are renormalised when
    `normalise_top_k`.
    """

    num_experts: int
    top_k: int
    intermediate_size: int
    normalise_top_k: bool


@dataclass(frozen=True)
class LayerSpec:
    attention: AttentionSpec
    feed_forward: DenseSpec | MoeSpec


@dataclass(frozen=True)
class ModelSpec:
    """A decoder-only transformer: embedding, layers (pre-norm), final RMSNorm, head."""

    architecture: str  # class name as the checkpoint gives it, e.g. "Qwen3ForCausalLM"
    family: str  # name for people, e.g. "Qwen3"
    hidden_size: int
    vocab_size: int
    context_length: int
    norm_eps: float
    layers: tuple[LayerSpec, ...]
    tied_embeddings: bool

    @property
    def num_layers(self) -> int:
        return len(self.layers)


@dataclass(frozen=True)
class Piece:
    """One tensor of the checkpoint that fills part of a parameter.

    `source` is the checkpoint's name in canonical form: the model's prefix ("model.",
    "model.language_model.", …) is dropped, so "layers.0.self_attn.q_proj.weight",
    "embed_tokens.weight", "norm.weight", "lm_head.weight". `shape` is the shape as stored;
    `transpose` swaps the last two axes after reading (experts stored (E, in, out)).
    """

    source: str
    shape: tuple[int, ...]
    transpose: bool = False


@dataclass(frozen=True)
class Parameter:
    """One tensor of the engine, made of pieces laid one after the other along the rows.

    Names: "embed" (V, H), "final_norm" (H,), "head" (V, H; absent when embeddings are tied), and for
    each layer i "layers.{i}." + "attention_norm" (H,), "qkv" (q_dim + 2 kv_dim, H), "qkv_bias",
    "q_norm" (D,), "k_norm" (D,), "output" (H, q_dim), "output_bias", "feed_forward_norm" (H,),
    dense: "gate_up" (2I, H), "gate_up_bias", "down" (H, I), "down_bias",
    MoE: "router" (E, H), "experts.gate_up" (E, 2I, H), "experts.down" (E, H, I).
    "Rows" are axis 0, except that pieces with three axes (E, N, K) are joined along axis 1; for
    experts stored one by one the pieces (N, K) come in the order gate 0, up 0, gate 1, up 1, … and
    fill (E, 2I, H) from the front.
    """

    name: str
    shape: tuple[int, ...]
    pieces: tuple[Piece, ...] = field(default=())

    @property
    def num_elements(self) -> int:
        count = 1
        for size in self.shape:
            count *= size
        return count
