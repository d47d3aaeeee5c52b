"""The driver over a stand-in for PyCUDA: kernels, faults, and how it ends."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import numpy as np
import pytest
from fake_pycuda import Arguments, Error, FakeCard, Launch, LogicError, MemoryError
from pycuda_steps import INFO, card_for_pycuda, opened, random_bytes

from engine.cuda import card_holdings
from engine.cuda.driver import Address, CardFaultError, CardLostError, Mark
from engine.cuda.lost_card import earlier_loss
from engine.cuda.pycuda_driver import PyCudaDriver
from engine.errors import OutOfMemoryError


@pytest.fixture
def card(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeCard]:
    yield from card_for_pycuda(monkeypatch)


def on_another_thread(work: Callable[[], object]) -> None:
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()


def test_a_kernel_gets_its_structure_byte_for_byte(card: FakeCard) -> None:
    driver = opened(card)
    kernels = driver.load(b"first second", ["second"])
    driver.launch(kernels["second"], Arguments(2**40, 12), grid=(2, 3, 4), block=128)
    assert card.launches == [Launch("second", (2, 3, 4), (128, 1, 1), bytes(Arguments(2**40, 12)))]
    driver.close()


def test_shared_memory_beyond_the_usual_is_asked_for_before_it_is_used(card: FakeCard) -> None:
    driver = opened(card)
    kernel = driver.load(b"wide", ["wide"])["wide"]
    for shared in (47 * 1024, 47 * 1024 + 1, 100 * 1024, 60 * 1024):
        driver.launch(kernel, Arguments(), grid=(1, 1, 1), block=32, shared_bytes=shared)
    asked = [launch.shared_bytes for launch in card.launches]
    assert asked == [47 * 1024, 47 * 1024 + 1, 100 * 1024, 60 * 1024]
    driver.close()


def test_all_kernels_split_a_processors_memory_in_the_same_way(card: FakeCard) -> None:
    driver = opened(card)
    driver.load(b"one two", ["one", "two"])
    driver.load(b"three", ["three"])
    assert [kernel.attributes[9] for kernel in card.library.functions.values()] == [100] * 3
    driver.close()


def launches_of(driver: PyCudaDriver, *, overlaps: Sequence[bool]) -> Callable[[], None]:
    """Makes so many."""
    kernel = driver.load(b"one", ["one"])["one"]

    def launch() -> None:
        for each in overlaps:
            driver.launch(kernel, Arguments(), grid=(1, 1, 1), block=32, overlaps=each)

    return launch


def test_a_launch_that_may_overlap_does_so_directly_behind_another_one(card: FakeCard) -> None:
    driver = opened(card)
    launch = launches_of(driver, overlaps=[True, True, False, True])
    launch()
    recordings = [driver.record(launch) for _ in range(2)]
    launch()
    for recording in recordings:
        driver.replay(recording)
    launch()
    assert [each.overlaps for each in card.launches] == [False, True, False, True] * 5
    driver.close()
    assert (card.retained, card.alive) == (0, [])


BETWEEN: dict[str, Callable[[PyCudaDriver, Address, Mark], object]] = {
    "upload": lambda driver, address, _: driver.upload(address, np.zeros(8, np.uint8)),
    "download": lambda driver, address, _: driver.download(np.zeros(8, np.uint8), address),
    "copy": lambda driver, address, _: driver.copy(address, Address(address + 8), 8),
    "fill": lambda driver, address, _: driver.fill(address, 0, 8),
    "mark": lambda driver, _, mark: driver.mark_work(mark),
    "wait for uploads": lambda driver, _, mark: driver.work_waits(mark),
    "recording": lambda driver, *_: driver.record(lambda: None),
    "replay": lambda driver, *_: driver.replay(driver.record(lambda: None)),
}


@pytest.mark.parametrize("between", BETWEEN)
def test_nothing_overlaps_what_is_no_launch(card: FakeCard, between: str) -> None:
    driver = opened(card)
    address, mark = driver.allocate(16), driver.new_mark()
    launch = launches_of(driver, overlaps=[True, True])
    for _ in range(2):
        launch()
        BETWEEN[between](driver, address, mark)
    assert [each.overlaps for each in card.launches] == [False, True, False, True]
    driver.close()


@pytest.mark.parametrize(("capability", "cuda"), [((8, 9), (13, 0)), ((9, 0), (12, 2)), ((12, 0), (12, 2))])
def test_nothing_overlaps_where_the_card_or_its_driver_cant(
    card: FakeCard, capability: tuple[int, int], cuda: tuple[int, int]
) -> None:
    card.library.version = cuda
    driver = PyCudaDriver(replace(INFO, compute_capability=capability), card.library)
    launch = launches_of(driver, overlaps=[True, True])
    launch()
    driver.replay(driver.record(launch))
    assert [each.overlaps for each in card.launches] == [False] * 4
    driver.close()


def test_a_launch_behind_a_recording_that_failed_overlaps_nothing(card: FakeCard) -> None:
    driver = opened(card)
    launch = launches_of(driver, overlaps=[True])

    def fail() -> None:
        launch()
        card.failures["cuLaunchKernelEx"] = LogicError("cuLaunchKernelEx failed: operation not permitted")
        launch()

    with pytest.raises(CardFaultError, match="the kernel one: operation not permitted"):
        driver.record(fail)
    launch()
    assert [launch.overlaps for launch in card.launches] == [False]
    driver.close()
    assert (card.retained, card.alive) == (0, [])


def test_a_recording_without_room_is_refused_so_that_work_goes_on_without_it(card: FakeCard) -> None:
    driver = opened(card)
    card.failures["cuStreamEndCapture"] = MemoryError("cuStreamEndCapture failed: out of memory")
    with pytest.raises(CardFaultError, match="refused a recording: out of memory") as caught:
        driver.record(lambda: None)
    assert not isinstance(caught.value, CardLostError)
    driver.close()


def test_a_discarded_recording_is_gone_from_the_card(card: FakeCard) -> None:
    driver = opened(card)
    kept, discarded = (driver.record(lambda: None) for _ in range(2))
    driver.discard(discarded)
    assert list(card.library.graphs) == [kept]
    driver.close()
    assert card.library.graphs == {}


def test_kernels_without_room_are_told_with_what_is_free(card: FakeCard) -> None:
    driver = opened(card)
    card.failures["cuModuleLoadData"] = MemoryError("cuModuleLoadData failed: out of memory")
    with pytest.raises(OutOfMemoryError, match="for the kernels; on the card, 64 MiB are free"):
        driver.load(b"one", ["one"])
    driver.close()


def test_what_does_not_fit_is_refused_with_both_numbers_and_changes_nothing(card: FakeCard) -> None:
    driver = opened(card)
    kept = driver.allocate(4 * 2**20)
    with pytest.raises(OutOfMemoryError, match=r"another 61 MiB .* 60 MiB are free"):
        driver.allocate(61 * 2**20)
    assert driver.free_bytes() == 60 * 2**20
    driver.free(kept)
    assert driver.free_bytes() == 64 * 2**20
    driver.close()


@pytest.mark.parametrize("function", ["cuStreamCreate", "cuMemHostAlloc"])
@pytest.mark.parametrize("error", [LogicError("x failed: y"), MemoryError("x failed: out of memory")])
def test_an_opening_that_fails_leaves_nothing_on_the_card(
    card: FakeCard, function: str, error: Error
) -> None:
    for _ in range(20):
        card.failures[function] = error
        with pytest.raises((CardFaultError, OutOfMemoryError)):
            opened(card)
        assert (card.retained, card.alive) == (0, [])


def test_a_context_that_cant_be_had_is_told(card: FakeCard) -> None:
    card.failures["cuDevicePrimaryCtxRetain"] = MemoryError("cuDevicePrimaryCtxRetain failed: out of memory")
    with pytest.raises(OutOfMemoryError, match="for a context"):
        opened(card)
    card.failures["cuInit"] = LogicError("cuInit failed: initialization error")
    with pytest.raises(CardFaultError, match=r"initialization error \(cuInit\)"):
        opened(card)


def test_a_refused_call_is_a_fault_and_the_card_goes_on(card: FakeCard) -> None:
    driver = opened(card)
    with pytest.raises(CardFaultError, match="refused the kernel absent: named symbol not found") as caught:
        driver.load(b"present", ["absent"])
    assert not isinstance(caught.value, CardLostError)
    address = driver.allocate(10)
    driver.free(address)
    driver.close()
    assert (card.retained, card.alive) == (0, [])
    assert earlier_loss() is None


def test_a_full_card_at_a_launch_is_told_with_what_is_free(card: FakeCard) -> None:
    driver = opened(card)
    kernel = driver.load(b"one", ["one"])["one"]
    card.failures["cuLaunchKernelEx"] = MemoryError("cuLaunchKernelEx failed: out of memory")
    with pytest.raises(OutOfMemoryError, match="the kernel one; on the card, 64 MiB are free"):
        driver.launch(kernel, Arguments(), grid=(1, 1, 1), block=32)
    driver.close()


def test_a_lost_card_is_told_by_every_call_and_closes_without_a_complaint(card: FakeCard) -> None:
    driver = opened(card)
    address = driver.allocate(1000)
    kernel = driver.load(b"one", ["one"])["one"]
    recording = driver.record(lambda: None)
    some = np.zeros(10, np.uint8)
    mark = driver.new_mark()
    driver.upload(address, some)
    card.sticky = "an illegal memory access was encountered"
    calls: list[Callable[[], object]] = [
        driver.free_bytes,
        driver.synchronize,
        lambda: driver.allocate(10),
        lambda: driver.upload(address, some),
        lambda: driver.download(some, address),
        lambda: driver.copy(address, address, 5),
        lambda: driver.fill(address, 0, 5),
        lambda: driver.load(b"one", ["one"]),
        lambda: driver.launch(kernel, Arguments(), grid=(1, 1, 1), block=32),
        lambda: driver.record(lambda: None),
        lambda: driver.replay(recording),
        lambda: driver.upload_ahead(address, some),
        lambda: driver.mark_work(mark),
        lambda: driver.mark_uploads(mark),
        lambda: driver.work_waits(mark),
        lambda: driver.uploads_wait(mark),
    ]
    for call in calls:
        with pytest.raises(CardLostError, match="an illegal memory access was encountered"):
            call()
    driver.free(address)
    driver.close()
    assert (card.retained, card.alive) == (0, [])
    assert earlier_loss() == "an illegal memory access was encountered (cuMemGetInfo)"


def test_a_fault_seen_only_at_closing_is_no_error(card: FakeCard) -> None:
    driver = opened(card)
    driver.allocate(1000)
    card.sticky = "unspecified launch failure"
    driver.close()
    assert (card.retained, card.alive) == (0, [])
    assert earlier_loss() == "unspecified launch failure (cuCtxSynchronize)"


def test_a_call_refused_while_a_graph_is_recorded_does_not_mean_a_lost_card(card: FakeCard) -> None:
    driver = opened(card)
    card.sticky = "operation not permitted when stream is capturing"
    with pytest.raises(CardFaultError) as caught:
        driver.synchronize()
    assert not isinstance(caught.value, CardLostError)
    card.sticky = None
    driver.close()


def test_a_context_that_cant_be_taken_off_the_stack_is_given_up(card: FakeCard) -> None:
    driver = opened(card)
    card.failures["cuCtxPopCurrent"] = LogicError("cuCtxPopCurrent failed: context is destroyed")
    with pytest.raises(CardLostError, match="context is destroyed"):
        driver.allocate(10)
    assert card.stack == []
    driver.close()
    assert card.retained == 0


def test_closing_gives_everything_back_and_twice_is_once(card: FakeCard) -> None:
    driver = opened(card)
    kernels = driver.load(b"one two", ["one", "two"])
    for i in range(20):
        driver.upload(driver.allocate(1000), random_bytes(500 + i))
    driver.close()
    driver.close()
    assert (card.retained, card.alive, card.current[threading.get_ident()]) == (0, [], None)
    assert list(kernels) == ["one", "two"]  # whoever still has kernels keeps nothing on the card


def test_another_holder_of_the_context_finds_the_memory_free(card: FakeCard) -> None:
    card.retained = 1
    driver = opened(card)
    driver.upload(driver.allocate(1000), random_bytes(1000))
    driver.load(b"one", ["one"])
    driver.record(lambda: None)
    driver.close()
    assert (card.retained, card.alive, card.memory) == (1, [], {})


def test_a_driver_that_is_dropped_gives_everything_back(card: FakeCard) -> None:
    driver = opened(card)
    driver.upload(driver.allocate(1000), random_bytes(1000))
    del driver
    gc.collect()
    assert (card.retained, card.alive) == (0, [])


def test_a_driver_whose_thread_is_gone_can_be_closed_by_another(card: FakeCard) -> None:
    drivers: list[PyCudaDriver] = []

    def work() -> None:
        drivers.append(opened(card))
        drivers[0].allocate(1000)

    on_another_thread(work)
    drivers[0].close()
    drivers.clear()
    gc.collect()
    assert (card.retained, card.alive) == (0, [])


def test_the_end_of_the_process_closes_what_this_thread_opened(card: FakeCard) -> None:
    driver = opened(card)
    driver.allocate(1000)
    card_holdings._forget_open_cards()
    assert (card.retained, card.alive) == (0, [])
    driver.close()


def test_the_end_of_the_process_leaves_another_threads_work_alone_and_stays_silent(card: FakeCard) -> None:
    drivers: list[PyCudaDriver] = []
    on_another_thread(lambda: drivers.append(opened(card)))
    card_holdings._forget_open_cards()
    assert card.retained == 1  # the system takes it back
    drivers.clear()
    gc.collect()  # the objects of that thread are dropped here: see `complaints`


def test_an_interruption_between_push_and_work_leaves_no_context_on_the_stack(card: FakeCard) -> None:
    driver = opened(card)

    def interrupted(num_bytes: int) -> object:
        raise KeyboardInterrupt

    allocate, card.cuda.mem_alloc = card.cuda.mem_alloc, interrupted
    with pytest.raises(KeyboardInterrupt):
        driver.allocate(10)
    assert card.stack == []
    card.cuda.mem_alloc = allocate
    driver.close()


def test_another_thread_may_not_use_the_card(card: FakeCard) -> None:
    driver = opened(card)
    errors: list[BaseException] = []

    def work() -> None:
        try:
            driver.allocate(10)
        except AssertionError as error:
            errors.append(error)

    on_another_thread(work)
    assert len(errors) == 1
    driver.close()
