"""Models whose layers are on the card a few at a time: the same bits, within the memory that there is."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import torch
from emulated_card import Counts, EmulatedCard, EmulatedCompiler

from engine.checkpoints.model_folder import open_model
from engine.cpu.backend import CpuBackend
from engine.cuda.backend import CudaBackend
from engine.cuda.embedding import CardEmbedding
from engine.cuda.layer_window import LayerWindow
from engine.cuda.memory import Use
from engine.cuda.placement import Rest
from engine.cuda.residency import widest_matrices, window_bytes
from engine.errors import Cancelled, OutOfMemoryError
from engine.kv_geometry import PAGE, KvGeometry
from engine.progress import LoadProgress

TINY_MODELS = Path(__file__).resolve().parents[1] / "models"
DENSE, MIXED = "tiny-qwen2", "tiny-qwen3moe-mix"
ORDERS = ("uploads", "work")
CONTEXT = 256

MakeCard = Callable[..., EmulatedCard]
Load = Callable[..., CudaBackend]


def on_cpu(name: str, weights: Any = "q8") -> CpuBackend:
    folder = open_model(TINY_MODELS / name)
    try:
        return CpuBackend.load(folder.spec, folder.parameters, folder.tensors, weights=weights)
    finally:
        folder.tensors.close()


@pytest.fixture(scope="module")
def models() -> dict[str, CpuBackend]:
    return {name: on_cpu(name) for name in (DENSE, MIXED)}


@pytest.fixture
def load(make_card: MakeCard, card_compiler: EmulatedCompiler) -> Iterator[Load]:
    """`load(cpu, window, card=..., **options)`; closed at the end."""
    backends: list[CudaBackend] = []

    def on_card(
        cpu: CpuBackend, window: int = 0, card: EmulatedCard | None = None, **options: Any
    ) -> CudaBackend:
        options = {"context": CONTEXT, **options}
        backends.append(CudaBackend(cpu, card or make_card(), card_compiler, window=window, **options))
        return backends[-1]

    yield on_card
    for backend in backends:
        backend.close()


def some_ids(backend: CpuBackend | CudaBackend, count: int) -> list[int]:
    generator = torch.Generator().manual_seed(1)
    return torch.randint(0, backend.spec.vocab_size, (count,), generator=generator).tolist()


def in_pieces(backend: CudaBackend, pieces: tuple[int, ...]) -> torch.Tensor:
    """Logits (T, V) of a prompt that comes so; pieces of one are decoded."""
    ids = some_ids(backend, sum(pieces))
    starts = itertools.accumulate(pieces, initial=0)
    with closing(backend.new_cache("int8")) as cache:
        parts = [
            backend.forward(ids[at : at + piece], cache, all_logits=True)
            for at, piece in zip(starts, pieces, strict=False)
        ]
    return torch.cat(parts)


def window_of(backend: CudaBackend) -> LayerWindow:
    layers = backend._weights.layers
    assert isinstance(layers, LayerWindow)
    return layers


def embedding_bytes(backend: CudaBackend) -> int:
    """What it takes of the card, where it is there."""
    embedding = backend._weights.embedding
    assert isinstance(embedding, CardEmbedding)
    return embedding.num_bytes


PIECES = (5, PAGE - 3, 1, 1)


@pytest.mark.parametrize("name", [DENSE, MIXED])
def test_every_window_gives_the_same_bits(
    name: str, models: dict[str, CpuBackend], load: Load, make_card: MakeCard
) -> None:
    cpu = models[name]
    whole = in_pieces(load(cpu), PIECES)
    count = cpu.spec.num_layers
    for window, lagging in itertools.product(range(1, count + 2), ORDERS):
        backend = load(cpu, window, make_card(lagging=lagging))
        assert backend.window == (window if window < count else None)
        assert torch.equal(in_pieces(backend, PIECES), whole), (window, lagging)


@pytest.mark.parametrize("weights", ["native", "q4"])
def test_weights_of_every_form_pass_through_a_window(weights: Any, load: Load, make_card: MakeCard) -> None:
    cpu = on_cpu(MIXED, weights)
    whole = in_pieces(load(cpu), (7, 1))
    for lagging in ORDERS:
        assert torch.equal(in_pieces(load(cpu, 2, make_card(lagging=lagging)), (7, 1)), whole)


def test_a_token_allocates_nothing_and_brings_each_layer_once(
    models: dict[str, CpuBackend], load: Load, card: EmulatedCard
) -> None:
    backend = load(models[MIXED], 2, card)
    window = window_of(backend)
    with closing(backend.new_cache("int8")) as cache:
        backend.forward([1, 2, 3], cache)
        for _ in range(3):
            card.counts = Counts()
            before = window.residency.num_placed
            backend.forward([4], cache)
            counts = card.counts
            assert (counts.allocations, counts.frees, counts.synchronizations) == (0, 0, 0)
            assert (counts.uploads, counts.downloads) == (2, 1)  # the step, and the token's row
            assert window.residency.num_placed - before == backend.spec.num_layers
            assert counts.ahead_bytes == sum(sum(image.raw_sizes) for image in window._images)
            assert window.residency.layers == {backend.spec.num_layers - 1, 0}  # the next token begins there


def test_a_layer_is_under_way_while_the_one_before_runs(
    models: dict[str, CpuBackend], load: Load, card: EmulatedCard
) -> None:
    backend = load(models[DENSE], 2, card)
    window = window_of(backend)
    with window.running(0):
        pass
    for index in (1, 2, 3, 0, 1):
        before = card.counts.uploads_ahead
        with window.running(index):
            assert card.counts.uploads_ahead == before  # it was there, and is launched before more comes
        assert card.counts.uploads_ahead > before
        assert window.residency.layers == {index, (index + 1) % 4}


@pytest.mark.parametrize("name", [DENSE, MIXED])
def test_a_window_takes_the_memory_of_its_layers_and_of_the_one_that_runs(
    name: str, models: dict[str, CpuBackend], load: Load
) -> None:
    whole = load(models[name])
    images = window_of(load(models[name], 1))._images
    layers = sum(image.num_bytes for image in images)
    stays = whole.memory.num_bytes[Use.WEIGHTS] - embedding_bytes(whole) - layers
    runs = sum(widest_matrices([image.sizes for image in images]))
    for window in range(1, len(images)):
        waits = window_bytes([image.raw_sizes for image in images], window)
        assert load(models[name], window).memory.num_bytes[Use.WEIGHTS] == stays + waits + runs


def short_cache(backend: CudaBackend) -> int:
    """Bytes that weights leave in any case."""
    return Rest.of(KvGeometry.of(backend.spec, "int8"), context=backend._context, other=0).short_cache


def test_where_not_all_fits_as_many_layers_are_on_the_card_as_do(
    models: dict[str, CpuBackend], load: Load, make_card: MakeCard
) -> None:
    cpu = models[DENSE]
    all_there = load(cpu)
    layer = window_of(load(cpu, 1))._images[0].num_bytes
    looked_up = embedding_bytes(all_there)
    needed = sum(all_there.memory.num_bytes.values()) + short_cache(all_there) - looked_up
    # Those of a window wait beside the one that runs.
    cases = ((-looked_up, None), (0, None), (1, 2), (layer, 2), (layer + 1, 1), (2 * layer, 1))
    for missing, expected in cases:
        card = make_card()
        backend = load(cpu, card=card, vram_budget=needed - missing)
        assert isinstance(backend._weights.embedding, CardEmbedding) == (missing < 0)
        assert backend.window == expected
        assert torch.equal(in_pieces(backend, (9, 1)), in_pieces(all_there, (9, 1)))
        assert sum(backend.memory.num_bytes.values()) <= needed - missing
        assert sum(card.live.values()) <= needed - missing
    with pytest.raises(OutOfMemoryError, match="even one layer"):
        load(cpu, vram_budget=needed - 2 * layer - 1)


def test_what_is_free_on_the_card_counts_too(
    models: dict[str, CpuBackend], load: Load, make_card: MakeCard
) -> None:
    """Other programs have the rest."""
    card = make_card()
    card.foreign_bytes = card.total_bytes - 300 * 2**20
    assert load(models[DENSE], card=card).window is None
    card = make_card()
    free = load(models[DENSE], card=card)
    needed = sum(free.memory.num_bytes.values()) + short_cache(free) + 256 * 2**20
    looked_up = embedding_bytes(free)
    free.close()
    for missing, expected in ((looked_up - 100_000, None), (looked_up + 100_000, 2)):
        card = make_card()
        card.foreign_bytes = card.total_bytes - needed + missing
        assert load(models[DENSE], card=card).window == expected


def test_a_load_brings_the_first_layers_and_counts_them(models: dict[str, CpuBackend], load: Load) -> None:
    steps: list[LoadProgress] = []
    backend = load(models[DENSE], 2, on_progress=steps.append)
    assert [step.done for step in steps] == sorted(step.done for step in steps)
    runs = window_of(backend)._images[0].num_bytes  # takes the place of its own beside
    assert steps[-1].done == steps[-1].total == backend.memory.num_bytes[Use.WEIGHTS] - runs
    whole = load(models[DENSE])
    assert backend.weight_bytes == whole.weight_bytes - embedding_bytes(whole) > steps[-1].total
    assert backend.description.endswith("2 of 4 layers at a time")


def test_a_cancelled_load_leaves_nothing(
    models: dict[str, CpuBackend], load: Load, card: EmulatedCard
) -> None:
    cancel = threading.Event()
    with pytest.raises(Cancelled):
        load(models[DENSE], 2, card, cancel=cancel, on_progress=lambda _: cancel.set())
    assert card.live == {}


def test_no_memory_at_any_place_leaves_nothing_behind(
    models: dict[str, CpuBackend], load: Load, make_card: MakeCard
) -> None:
    """Each allocation of a load fails in turn; the next try works."""
    cpu = models[MIXED]
    card = make_card()
    backend = load(cpu, 2, card)
    count = card.counts.allocations
    whole = in_pieces(backend, (2, 1))
    for number in range(1, count + 1):
        card = make_card()
        card.fail_allocation(number)
        with pytest.raises(OutOfMemoryError):
            load(cpu, 2, card)
        assert card.live == {}
        if number % 10 == 0:
            assert torch.equal(in_pieces(load(cpu, 2, card), (2, 1)), whole)


class StopAt(threading.Event):
    """Is set once it was asked that often."""

    def __init__(self, times: int) -> None:
        super().__init__()
        self._left = times

    def is_set(self) -> bool:
        self._left -= 1
        return self._left < 0


@pytest.mark.parametrize("lagging", ORDERS)
@pytest.mark.parametrize("window", [1, 2, 3])
@pytest.mark.parametrize("tokens", [1, 6])
def test_a_step_that_was_cancelled_at_any_layer_is_followed_by_a_right_one(
    tokens: int, window: int, lagging: str, models: dict[str, CpuBackend], load: Load, make_card: MakeCard
) -> None:
    cpu = models[DENSE]
    backend = load(cpu, window, make_card(lagging=lagging))
    ids = some_ids(cpu, 10 + tokens)
    whole = in_pieces(load(cpu), (10, tokens))
    with closing(backend.new_cache("int8")) as cache:
        backend.forward(ids[:10], cache)
        for layer in range(cpu.spec.num_layers):
            with pytest.raises(Cancelled):
                backend.forward(ids[10:], cache, cancel=StopAt(layer))
            assert cache.length == 10
            assert len(window_of(backend).residency.layers) == window
        assert torch.equal(backend.forward(ids[10:], cache, all_logits=True), whole[10:])


@pytest.mark.parametrize("lagging", ORDERS)
@pytest.mark.parametrize("window", [1, 2, 3])
def test_a_step_that_broke_off_within_a_layer_is_followed_by_a_right_one(
    window: int,
    lagging: str,
    models: dict[str, CpuBackend],
    load: Load,
    make_card: MakeCard,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Some of the layer's kernels were launched, and read its weights still."""
    cpu = models[MIXED]
    backend = load(cpu, window, make_card(lagging=lagging))
    whole = in_pieces(load(cpu), (3, 1))
    launch, left = backend.kernels.launch, 0

    def launch_some(*args: Any, **options: Any) -> None:
        nonlocal left
        left -= 1
        if left == 0:
            raise OutOfMemoryError("The driver has no memory for a launch.")
        launch(*args, **options)

    monkeypatch.setattr(backend.kernels, "launch", launch_some)
    ids = some_ids(cpu, 4)
    for number in range(2, 40, 7):
        with closing(backend.new_cache("int8")) as cache:
            left = number
            with pytest.raises(OutOfMemoryError):
                backend.forward(ids[:3], cache)
            left = 0
            parts = [
                backend.forward(ids[:3], cache, all_logits=True),
                backend.forward(ids[3:], cache, all_logits=True),
            ]
            assert torch.equal(torch.cat(parts), whole)


def test_an_upload_that_broke_off_is_made_anew(
    models: dict[str, CpuBackend], load: Load, card: EmulatedCard, monkeypatch: pytest.MonkeyPatch
) -> None:
    cpu = models[DENSE]
    backend = load(cpu, 2, card)
    whole = in_pieces(load(cpu), (3,))
    driver, left = backend.memory.driver, 0
    upload = driver.upload_ahead

    def upload_some(*args: Any) -> None:
        nonlocal left
        left -= 1
        if left == 0:
            raise KeyboardInterrupt
        upload(*args)

    monkeypatch.setattr(driver, "upload_ahead", upload_some)
    for number in range(1, 12):
        with closing(backend.new_cache("int8")) as cache:
            left = number
            with pytest.raises(KeyboardInterrupt):
                backend.forward(some_ids(cpu, 3), cache)
            left = 0
            assert torch.equal(backend.forward(some_ids(cpu, 3), cache, all_logits=True), whole)


@pytest.mark.gpu
@pytest.mark.parametrize("name", [DENSE, MIXED])
def test_every_window_gives_the_same_bits_on_a_real_card(name: str, models: dict[str, CpuBackend]) -> None:
    from engine.cuda.availability import NoCard, find_card, open_card
    from engine.cuda.nvrtc_compiler import NvrtcCompiler

    found = find_card()
    if isinstance(found, NoCard):
        pytest.skip(found.reason)
    cpu, compiler = models[name], NvrtcCompiler()
    logits = []
    for window in range(cpu.spec.num_layers + 1):
        with closing(CudaBackend(cpu, open_card(), compiler, context=CONTEXT, window=window)) as backend:
            logits += [in_pieces(backend, (*PIECES, *[1] * 40)) for _ in range(3)]
    assert all(torch.equal(each, logits[0]) for each in logits)
