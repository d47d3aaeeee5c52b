"""One attention layer on the card, from given rows of queries, keys and values to what it attends to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from emulated_card import EmulatedCard, EmulatedCompiler

from engine.cpu.rope import RopeTable
from engine.cuda.attention import AttentionRunner, StepShape, splits_for
from engine.cuda.driver import NOWHERE, Address, as_bytes
from engine.cuda.kernel_set import KernelSet
from engine.cuda.memory import CardMemory, Use
from engine.cuda.rope_tables import RopeTables
from engine.cuda.step import StepBuffer
from engine.cuda.workspace import Workspace
from engine.kv_geometry import PAGE, KvFormat, KvGeometry, pages_for
from engine.models.spec import AttentionSpec, DenseSpec, LayerSpec, ModelSpec, RopeSpec

NORM_EPS = 1e-6
HIDDEN = 32


def spec_of(
    heads: int, kv_heads: int, width: int, *, window: int | None = None, rotated: int | None = None
) -> AttentionSpec:
    return AttentionSpec(
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=width,
        scale=width**-0.5,
        rope=RopeSpec(theta=10_000.0, dim=width if rotated is None else rotated),
        window=window,
    )


@dataclass(frozen=True)
class Pages:
    """Of one sequence, somewhere on the card, in the order of its tokens."""

    addresses: list[Address]
    page_bytes: int


class AttentionBench:
    """context: tokens. Pages hold two layers, of which the second one is used."""

    def __init__(
        self,
        card: EmulatedCard,
        compiler: EmulatedCompiler,
        spec: AttentionSpec,
        *,
        context: int,
        form: KvFormat = "int8",
        normed: bool = True,
        planes: int = 2,
    ) -> None:
        self.spec, self.card = spec, card
        self.memory = CardMemory(card)
        model = ModelSpec(
            architecture="Test",
            family="Test",
            hidden_size=HIDDEN,
            vocab_size=1,
            context_length=context,
            norm_eps=NORM_EPS,
            layers=(LayerSpec(spec, DenseSpec(1)),),
            tied_embeddings=True,
        )
        self.geometry = KvGeometry(form, ((1, 4), (spec.num_kv_heads, spec.head_dim)))
        self.planes = planes
        self.space = Workspace(self.memory, model, rows=context, context=context, planes=planes)
        self.step = StepBuffer(self.memory, rows=context, width=HIDDEN, context=context)
        self.tables = RopeTables(self.memory, {spec.rope}, context=context)
        self.tables.reserve(context)
        self.norm = torch.rand(spec.num_heads + spec.num_kv_heads, spec.head_dim) + 0.5 if normed else None
        norm = NOWHERE if self.norm is None else self._put(self.norm)
        self._norm_address = norm
        self.kernels = KernelSet(card, compiler)
        self.lets_early = False  # whether launches behind a token's may begin early
        self.runner = AttentionRunner(self.kernels, self.space, self.step, self.tables, norm_eps=NORM_EPS)

    def close(self) -> None:
        self.memory.free_all()

    def rows(self, count: int, *, seed: int = 0) -> torch.Tensor:
        """(T, A + 2 G, D), of different sizes."""
        generator = torch.Generator().manual_seed(seed)
        heads = self.spec.num_heads + 2 * self.spec.num_kv_heads
        rows = torch.randn(count, heads, self.spec.head_dim, generator=generator)
        return rows * torch.exp(torch.randn(count, heads, 1, generator=generator) / 3)

    def new_pages(self, tokens: int, *, order: int = 0) -> Pages:
        """order: a seed, by which they lie here and there."""
        size = self.geometry.page_bytes
        addresses = [self.memory.allocate(size, Use.CACHE) for _ in range(pages_for(tokens))]
        np.random.default_rng(order).shuffle(addresses)
        return Pages(addresses, size)

    def fill(self, pages: Pages, byte: int) -> None:
        for address in pages.addresses:
            self.card.upload(address, as_bytes(torch.full((pages.page_bytes,), byte, dtype=torch.uint8)))

    def attend(self, rows: torch.Tensor, pages: Pages, *, first: int, room: int = 0) -> torch.Tensor:
        """(T, A * D). room: of splits, where there is more than the tokens need."""
        count = len(rows)
        end = first + count
        self.card.upload(self.space.qkv, as_bytes(rows.reshape(-1).contiguous()))
        self.step.send([0] * count, first, pages.addresses[: pages_for(end)])
        self.out = self.space.attended.of(self.spec.q_dim, values=True, planes=self.planes)
        self.runner.run(
            self.spec,
            self._norm_address,
            1,
            geometry=self.geometry,
            shape=StepShape(count, max(splits_for(end), room)),
            out=self.out,
            lets_early=self.lets_early,
        )
        return self.get(Address(self.out.values), count, self.spec.q_dim)

    def get(self, address: Address, *shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        found = torch.empty(shape, dtype=dtype)
        self.card.download(as_bytes(found.view(-1).view(torch.uint8)), address)
        return found

    def kept(self, pages: Pages, tokens: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values (T, G, D) in float64, as the pages have them, and nothing else in those."""
        heads, width = self.spec.num_kv_heads, self.spec.head_dim
        raw = [self.get(address, pages.page_bytes, dtype=torch.uint8) for address in pages.addresses]
        found = []
        for page in raw:
            layer = page[self.geometry.layer_offsets[1] :]
            if self.geometry.format == "native":
                found.append(layer.view(torch.float32).view(2, heads, PAGE, width).double())
                continue
            codes = layer[: 2 * heads * PAGE * width].view(torch.int8).view(2, heads, PAGE, width)
            scales = layer[2 * heads * PAGE * width :].view(torch.float32).view(2, heads, PAGE, 1)
            found.append(codes.double() * scales.double())
        keys, values = torch.cat(found, 2)[:, :, :tokens].transpose(1, 2)
        return keys, values

    def page_bytes_of(self, pages: Pages, tokens: int) -> bytes:
        """All that was written for so many tokens."""
        keys, values = self.kept(pages, tokens)
        return keys.numpy().tobytes() + values.numpy().tobytes()

    def expected(self, rows: torch.Tensor, pages: Pages, *, first: int) -> torch.Tensor:
        """(T, A * D) in float64: attention over what the pages hold."""
        spec, count = self.spec, len(rows)
        keys, values = self.kept(pages, first + count)
        queries = rows[:, : spec.num_heads].double()
        if self.norm is not None:
            mean = queries.square().mean(-1, keepdim=True)
            queries = queries / (mean + NORM_EPS).sqrt() * self.norm[: spec.num_heads].double()
        queries = rotated(queries, spec.rope, first)
        group = spec.num_heads // spec.num_kv_heads
        positions = torch.arange(first, first + count)[:, None]
        tokens = torch.arange(first + count)[None]
        hidden = tokens > positions
        if spec.window is not None:
            hidden = hidden | (tokens <= positions - spec.window)
        out = torch.empty(count, spec.num_heads, spec.head_dim, dtype=torch.float64)
        for head in range(spec.num_heads):
            scores = queries[:, head] @ keys[:, head // group].T * spec.scale
            weights = scores.masked_fill(hidden, -torch.inf).softmax(-1)
            out[:, head] = weights @ values[:, head // group]
        return out.view(count, -1)

    def _put(self, values: torch.Tensor) -> Address:
        address = self.memory.allocate(values.nbytes, Use.WORKSPACE)
        self.card.upload(address, as_bytes(values.reshape(-1)))
        return address


def rotated(x: torch.Tensor, rope: RopeSpec, first: int) -> torch.Tensor:
    """x (T, heads, D) float64 by the tables' own numbers."""
    cosines, sines = RopeTable(rope).rows(first, len(x))
    half = rope.dim // 2
    cosine, sine = cosines[:, 0].double(), sines[:, 0, 1:].double()  # (T, 1, R / 2)
    result = x.clone()
    result[..., :half] = x[..., :half] * cosine - x[..., half : rope.dim] * sine
    result[..., half : rope.dim] = x[..., half : rope.dim] * cosine + x[..., :half] * sine
    return result


def run_in(
    bench: AttentionBench, rows: torch.Tensor, pages: Pages, steps: Sequence[int], *, first: int = 0
) -> torch.Tensor:
    """The rows in steps of so many tokens each, behind `first` tokens."""
    outputs, done = [], 0
    for count in steps:
        outputs.append(bench.attend(rows[done : done + count], pages, first=first + done))
        done += count
    assert done == len(rows)
    return torch.cat(outputs)
