"""The card's backend, its kernels and all, against the CPU's: the same weights, the same words."""

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

from engine.backend import Sequence
from engine.checkpoints.model_folder import open_model
from engine.cpu.backend import CpuBackend
from engine.cuda.backend import CudaBackend
from engine.cuda.driver import CardFaultError, Recording
from engine.cuda.support import check_supported
from engine.errors import Cancelled, OutOfMemoryError, StepRefusedError, UnsupportedModelError
from engine.kv_geometry import PAGE, KvGeometry, pages_for

TINY_MODELS = Path(__file__).resolve().parents[1] / "models"
FAMILIES = sorted(path.name for path in TINY_MODELS.iterdir() if path.is_dir())
MODEL = "tiny-qwen2"

OnCard = Callable[..., CudaBackend]


def on_cpu(name: str, **options: Any) -> CpuBackend:
    folder = open_model(TINY_MODELS / name)
    try:
        return CpuBackend.load(folder.spec, folder.parameters, folder.tensors, **options)
    finally:
        folder.tensors.close()


@pytest.fixture
def on_card(make_card: Callable[..., EmulatedCard], card_compiler: EmulatedCompiler) -> Iterator[OnCard]:
    """`on_card(cpu, card=..., **options of CudaBackend)`; closed at the end."""
    backends: list[CudaBackend] = []

    def load(cpu: CpuBackend, card: EmulatedCard | None = None, **options: Any) -> CudaBackend:
        backends.append(CudaBackend(cpu, card or make_card(), card_compiler, **options))
        return backends[-1]

    yield load
    for backend in backends:
        backend.close()


def some_ids(backend: CpuBackend | CudaBackend, count: int, seed: int = 1) -> list[int]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, backend.spec.vocab_size, (count,), generator=generator).tolist()


def logits_of(backend: CpuBackend | CudaBackend, ids: list[int], kv: Any = "int8") -> torch.Tensor:
    with closing(backend.new_cache(kv)) as cache:
        return backend.forward(ids, cache, all_logits=True)


def relative(found: torch.Tensor, wanted: torch.Tensor) -> float:
    return float((found - wanted).norm() / wanted.norm())


@pytest.mark.parametrize("name", FAMILIES)
def test_weights_as_stored_give_the_cpu_s_logits(name: str, on_card: OnCard) -> None:
    cpu = on_cpu(name)
    card = on_card(cpu, activations="float")
    ids = some_ids(cpu, 70)
    assert relative(logits_of(card, ids, "native"), logits_of(cpu, ids, "native")) < 1e-5


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("weights", ["q8", "q4"])
@pytest.mark.parametrize("activations", ["float", "int8", "int8x2"])
def test_strips_give_the_cpu_s_logits(name: str, weights: Any, activations: Any, on_card: OnCard) -> None:
    """With the cache as float32: codes of 8 bits that lie on a border go either way."""
    cpu = on_cpu(name, weights=weights, activations=activations)
    card = on_card(cpu, activations=activations)
    ids = some_ids(cpu, 12)
    bound = {"float": 1e-5, "int8": 3e-2, "int8x2": 1e-3}[activations]
    assert relative(logits_of(card, ids, "native"), logits_of(cpu, ids, "native")) < bound


@pytest.mark.parametrize(
    ("name", "weights", "kv"),
    [
        *((name, "q8", "int8") for name in FAMILIES),
        ("tiny-qwen2", "native", "native"),
        ("tiny-qwen3moe-mix", "q4", "int8"),
    ],
)
def test_a_row_has_the_same_bits_however_it_came(name: str, weights: Any, kv: Any, on_card: OnCard) -> None:
    """A whole prompt, pieces cut anywhere, and the last ones one token at a time."""
    card = on_card(on_cpu(name, weights=weights))
    ids = some_ids(card, PAGE + 9)
    whole = logits_of(card, ids, kv)
    for pieces in ([37, 36], [PAGE - 1, 1, 9], [PAGE, 9], [PAGE + 1, 8], [PAGE - 2, *[1] * 11]):
        with closing(card.new_cache(kv)) as cache:
            starts = itertools.accumulate(pieces, initial=0)
            parts = [
                card.forward(ids[at : at + piece], cache, all_logits=True)
                for at, piece in zip(starts, pieces, strict=False)
            ]
        assert torch.equal(torch.cat(parts), whole)


@pytest.mark.parametrize("group", [32, 256])
def test_scales_of_both_groups_are_taken(group: Any, on_card: OnCard) -> None:
    cpu = on_cpu("tiny-qwen3", weights="q8", group=group)
    ids = some_ids(cpu, 20)
    card = on_card(cpu, activations="float")
    assert relative(logits_of(card, ids, "native"), logits_of(cpu, ids, "native")) < 1e-5


def test_prompts_longer_than_a_step_and_than_a_split_have_the_same_bits(on_card: OnCard) -> None:
    card = on_card(on_cpu(MODEL, weights="q8"), most_rows=256)
    ids = some_ids(card, 256 + 70)
    whole = logits_of(card, ids)
    with closing(card.new_cache("int8")) as cache:
        card.forward(ids[:-1], cache)
        assert torch.equal(card.forward(ids[-1:], cache), whole[-1])


@pytest.mark.parametrize("context", [1, 2, PAGE - 1, PAGE + 1])
def test_a_short_context_is_used_to_its_last_token_and_no_further(context: int, on_card: OnCard) -> None:
    """The last page has room for more tokens, but nothing else has."""
    cpu = on_cpu(MODEL)
    card = on_card(cpu, activations="float", context=context)
    ids = some_ids(cpu, context)
    with closing(card.new_cache("native")) as cache:
        found = card.forward(ids, cache, all_logits=True)
        assert relative(found, logits_of(cpu, ids, "native")) < 1e-5
        if context > 1:
            assert torch.equal(logits_of(card, ids[:1], "native"), found[:1])
        with pytest.raises(StepRefusedError, match="the context holds"):
            card.forward([1], cache)
        assert cache.length == context


def test_blocks_and_threads_in_any_order_give_the_same_bits(
    make_card: Callable[..., EmulatedCard], on_card: OnCard
) -> None:
    cpu = on_cpu("tiny-qwen3moe-mix", weights="q8")
    ids = some_ids(cpu, 30)
    found = [logits_of(on_card(cpu, card=make_card(order_seed=seed)), ids) for seed in (1, 2)]
    assert torch.equal(*found)


@pytest.mark.parametrize(
    ("name", "weights", "activations"),
    [("tiny-qwen2", "q8", "int8"), ("tiny-qwen3", "q4", "int8x2"), ("tiny-qwen3moe-mix", "q4", "int8x2")],
)
def test_cards_with_more_shared_memory_give_the_same_bits(
    name: str, weights: Any, activations: Any, make_card: Callable[..., EmulatedCard], on_card: OnCard
) -> None:
    """A prompt, a few rows, and single ones, with longer rings of weights."""
    cpu = on_cpu(name, weights=weights, activations=activations)
    ids, found = some_ids(cpu, 40), []
    for capability in ((8, 6), (9, 0)):
        card = on_card(cpu, card=make_card(compute_capability=capability), activations=activations)
        with closing(card.new_cache("int8")) as cache:
            pieces = [ids[:34], ids[34:37], *([token] for token in ids[37:])]
            found.append(torch.cat([card.forward(piece, cache, all_logits=True) for piece in pieces]))
    assert torch.equal(*found)


def test_a_page_is_the_same_bytes_on_both(on_card: OnCard) -> None:
    """What the CPU wrote goes on on the card, and the other way round."""
    cpu = on_cpu(MODEL, weights="q8")
    card = on_card(cpu, activations="float")
    ids = some_ids(cpu, PAGE + 20)
    geometry = KvGeometry.of(cpu.spec, "int8")
    pools = cpu.new_pool(geometry, 4), card.new_pool(geometry, 4)
    for (backend, pool), (other, other_pool) in (
        ((cpu, pools[0]), (card, pools[1])),
        ((card, pools[1]), (cpu, pools[0])),
    ):
        sequence, moved = Sequence(), Sequence()
        for each, its_pool in ((sequence, pool), (moved, other_pool)):
            while len(each.pages) < pages_for(len(ids)):
                page = its_pool.allocate()
                assert page is not None
                each.pages.append(page)
        backend.prefill(ids[:-1], sequence, pool)
        for page, copy in zip(sequence.pages, moved.pages, strict=True):
            other_pool.write(copy, pool.read(page))
            assert torch.equal(other_pool.read(copy), pool.read(page))
        moved.length = sequence.length
        here, there = backend.decode(ids[-1], sequence, pool), other.decode(ids[-1], moved, other_pool)
        assert relative(there, here) < 2e-3
        for each, its_pool in ((sequence, pool), (moved, other_pool)):
            for page in each.pages:
                its_pool.free(page)


def test_a_decoded_token_takes_one_copy_each_way(card: EmulatedCard, on_card: OnCard) -> None:
    backend = on_card(on_cpu(MODEL, weights="q8"), card=card)
    with closing(backend.new_cache("int8")) as cache:
        backend.forward(some_ids(backend, 10), cache)
        card.counts = Counts()
        backend.forward([3], cache)
        assert (card.counts.uploads, card.counts.downloads) == (1, 1)
        assert (card.counts.allocations, card.counts.copies, card.counts.fills) == (0, 0, 0)


def test_a_single_token_s_experts_are_chosen_by_those_who_read_them(
    card: EmulatedCard, on_card: OnCard
) -> None:
    backend = on_card(on_cpu("tiny-qwen3moe-mix", weights="q4"), card=card)
    with closing(backend.new_cache("int8")) as cache:
        for count in (2, 1):
            card.counts = Counts()
            backend.forward(some_ids(backend, count), cache)
            choosing = {name for name in card.counts.launches if name.endswith("_choosing")}
            assert len(choosing) == (2 if count == 1 else 0)


def test_a_token_is_started_as_one_and_nothing_is_recorded_while_somebody_waits(
    card: EmulatedCard, on_card: OnCard
) -> None:
    backend = on_card(on_cpu(MODEL, weights="q8"), card=card, context=600)
    pool = backend.new_pool(KvGeometry.of(backend.spec, "int8"), 20)
    recorded = len(card.recordings)
    assert recorded == 2 * 3, "for one split, two and four, and pages of both forms"
    sequence = Sequence()
    while len(sequence.pages) < pages_for(600):
        page = pool.allocate()
        assert page is not None
        sequence.pages.append(page)
    backend.prefill(some_ids(backend, 254), sequence, pool)
    card.counts = Counts()
    for token in range(4):  # the border between two splits is among them
        backend.decode(token, sequence, pool)
    assert card.counts.replays == 4
    assert len(card.recordings) == recorded


class NothingRecorded(EmulatedCard):
    def record(self, work: Callable[[], None]) -> Recording:
        raise CardFaultError("The driver records nothing.")


class WronglyRecorded(EmulatedCard):
    def record(self, work: Callable[[], None]) -> Recording:
        super().record(work)
        self.recordings[-1] = Recording(self.recordings[-1][: -self.missing])  # type: ignore[index]
        return self.recordings[-1]

    missing = 2  # the draw


class WronglyRecordedEarlier(WronglyRecorded):
    missing = 4  # logits, too


@pytest.mark.parametrize("kind", [NothingRecorded, WronglyRecorded, WronglyRecordedEarlier])
def test_where_recording_fails_kernels_are_started_one_by_one_and_that_is_told(
    kind: type[EmulatedCard], on_card: OnCard
) -> None:
    cpu = on_cpu(MODEL, weights="q8")
    sound, backend = on_card(cpu), on_card(cpu, card=kind())
    ids = [1, 2, 3]
    for each in (sound, backend):
        each.new_pool(KvGeometry.of(each.spec, "int8"), 20)
    assert [notice.code for notice in backend.notices] == ["card-recording-refused"]
    assert sound.notices == ()
    with closing(backend.new_cache("int8")) as cache:
        rows = [backend.forward([token], cache) for token in ids]
    assert torch.equal(torch.stack(rows), logits_of(sound, ids))


class SoonRecordsNothing(EmulatedCard):
    still = 4  # one split, two, and pages of both forms

    def record(self, work: Callable[[], None]) -> Recording:
        self.still -= 1
        if self.still < 0:
            raise CardFaultError("The driver records nothing any more.")
        return super().record(work)


def test_a_recording_that_is_refused_in_mid_answer_costs_time_alone(
    on_card: OnCard, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Longer tables of rotation lie elsewhere, so that tokens are recorded anew."""
    monkeypatch.setattr("engine.cuda.rope_tables.FIRST_POSITIONS", 12)
    cpu, card = on_cpu(MODEL, weights="q8"), SoonRecordsNothing()
    backend = on_card(cpu, card=card, context=300)
    assert backend.notices == ()
    ids = some_ids(cpu, 20)
    with closing(backend.new_cache("int8")) as cache:
        rows = [backend.forward([token], cache) for token in ids]
    assert torch.equal(torch.stack(rows), logits_of(backend, ids))
    assert [notice.code for notice in backend.notices] == ["card-recording-refused"]
    assert card.recordings == []


def test_a_cancelled_step_leaves_the_sequence_as_it_was(on_card: OnCard) -> None:
    backend = on_card(on_cpu(MODEL, weights="q8"))
    ids, cancel = some_ids(backend, 20), threading.Event()
    with closing(backend.new_cache("int8")) as cache:
        backend.forward(ids, cache)
        cancel.set()
        with pytest.raises(Cancelled):
            backend.forward([1], cache, cancel=cancel)
        assert cache.length == 20
        cancel.clear()
        assert torch.equal(backend.forward([1], cache, cancel=cancel), logits_of(backend, [*ids, 1])[-1])


def test_no_memory_at_any_place_leaves_nothing_behind(
    make_card: Callable[..., EmulatedCard], on_card: OnCard
) -> None:
    """Each allocation of a load fails in turn; the next try works, at once where spare memory is freed."""
    cpu = on_cpu(MODEL, weights="q8")
    card = make_card()
    backend = on_card(cpu, card=card)
    count = card.counts.allocations
    backend.close()
    loaded = 0
    for number in range(1, count + 1):
        card = make_card()
        card.fail_allocation(number)
        try:
            backend = on_card(cpu, card=card)
            loaded += 1
        except OutOfMemoryError:
            assert card.live == {}
            backend = on_card(cpu, card=card)
        assert logits_of(backend, [1, 2, 3]).isfinite().all()
    assert loaded <= 1


def test_a_budget_is_kept_to(make_card: Callable[..., EmulatedCard], on_card: OnCard) -> None:
    cpu = on_cpu(MODEL, weights="q8")
    with pytest.raises(OutOfMemoryError, match="VRAM budget"):
        on_card(cpu, vram_budget=100_000)


def test_numbers_that_are_none_come_through_as_such(on_card: OnCard) -> None:
    cpu = on_cpu(MODEL, weights="q8")
    card = on_card(cpu)
    cpu.weights.final_norm[3] = float("nan")
    broken = on_card(cpu)
    assert logits_of(card, [1, 2, 3]).isfinite().all()
    assert logits_of(broken, [1, 2, 3]).isnan().any()


def test_what_no_kernel_does_is_refused() -> None:
    from dataclasses import replace

    spec = on_cpu(MODEL).spec
    layer = spec.layers[0]
    wide = replace(layer, attention=replace(layer.attention, head_dim=1024))
    with pytest.raises(UnsupportedModelError, match="1024 features"):
        check_supported(replace(spec, layers=(wide,)))
    check_supported(spec)
