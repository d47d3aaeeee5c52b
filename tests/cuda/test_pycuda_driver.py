"""The driver over a stand-in for PyCUDA, and over a real card where there is one."""

from __future__ import annotations

import ctypes
import gc
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from fake_pycuda import TOTAL_BYTES, Arguments, Error, FakeCard, Launch, LogicError, MemoryError

from engine.cuda import card_holdings
from engine.cuda.driver import Address, CardFaultError, CardInfo, CardLostError, Mark
from engine.cuda.lost_card import earlier_loss
from engine.cuda.pycuda_driver import (
    LANDING_BYTES,
    STAGING_BYTES,
    PyCudaDriver,
)
from engine.errors import OutOfMemoryError

ROOT = Path(__file__).resolve().parent.parent.parent
INFO = CardInfo("Card", (9, 0), TOTAL_BYTES, 132, "580.95")


@pytest.fixture
def card(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeCard]:
    fake = FakeCard()
    package = ModuleType("pycuda")
    package.driver = fake.cuda  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "pycuda", package)
    monkeypatch.setitem(sys.modules, "pycuda.driver", fake.cuda)
    yield fake
    assert fake.complaints == []
    assert not any(fake.stacks.values()), "PyCUDA would end the process"


def opened(card: FakeCard) -> PyCudaDriver:
    return PyCudaDriver(INFO, card.library)


def on_another_thread(work: Callable[[], object]) -> None:
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()


def random_bytes(count: int) -> np.ndarray:
    return np.random.default_rng(count).integers(0, 256, count, dtype=np.uint8)


@pytest.mark.parametrize("count", [1, 700, LANDING_BYTES, LANDING_BYTES + 1, STAGING_BYTES + 12_345])
def test_bytes_come_back_as_they_went_and_their_source_may_be_changed_at_once(
    card: FakeCard, count: int
) -> None:
    driver = opened(card)
    address = driver.allocate(count)
    sent = random_bytes(count)
    source = sent.copy()
    driver.upload(address, source)
    source[:] = 0
    back = np.zeros(count, np.uint8)
    driver.download(back, address)
    assert np.array_equal(back, sent)
    driver.close()


def test_many_small_uploads_keep_their_order_and_use_few_events(card: FakeCard) -> None:
    driver = opened(card)
    address = driver.allocate(100_000)
    for i in range(400):
        driver.upload(address, np.full(100_000, i % 251, np.uint8))
    back = np.zeros(100_000, np.uint8)
    driver.download(back, address)
    assert set(back) == {399 % 251}
    assert sum(name.startswith("event") for name in card.alive) <= STAGING_BYTES // 100_000 + 1
    driver.close()


def test_an_upload_that_nobody_could_wait_for_is_not_begun(card: FakeCard) -> None:
    """Its place in pinned memory is the next one's."""
    driver = opened(card)
    addresses = [driver.allocate(100) for _ in range(2)]
    card.failures["cuEventCreate"] = card.cuda.MemoryError("cuEventCreate failed: out of memory")
    with pytest.raises(OutOfMemoryError):
        driver.upload(addresses[0], np.full(100, 7, np.uint8))
    driver.upload(addresses[1], np.full(100, 9, np.uint8))
    found = [np.zeros(100, np.uint8) for _ in addresses]
    for each, address in zip(found, addresses, strict=True):
        driver.download(each, address)
    assert not (found[0] == 9).any()
    assert (found[1] == 9).all()
    driver.close()


@pytest.mark.parametrize("count", [1, 700, STAGING_BYTES + 12_345])
def test_an_upload_ahead_is_there_for_work_that_waits_for_it(card: FakeCard, count: int) -> None:
    driver = opened(card)
    address, copy, arrived = driver.allocate(count), driver.allocate(count), driver.new_mark()
    sent = random_bytes(count)
    source = sent.copy()
    driver.upload_ahead(address, source)
    source[:] = 0
    driver.mark_uploads(arrived)
    driver.work_waits(arrived)
    driver.copy(copy, address, count)
    back = np.zeros(count, np.uint8)
    driver.download(back, copy)
    assert np.array_equal(back, sent)
    driver.close()


def test_an_upload_ahead_waits_for_the_work_that_still_reads_its_place(card: FakeCard) -> None:
    driver = opened(card)
    address, copy = driver.allocate(100), driver.allocate(100)
    driver.new_mark()
    passed, arrived = driver.new_mark(), driver.new_mark()
    for value in (1, 2, 3):  # marks are set again and again
        driver.fill(address, value, 100)
        driver.copy(copy, address, 100)
        driver.mark_work(passed)
        driver.uploads_wait(passed)
        driver.upload_ahead(address, np.full(100, 9, np.uint8))
        driver.mark_uploads(arrived)
        held = driver._held
        held.ahead_stream.synchronize()  # as if the card did all of it as early as it may
        back = np.zeros(200, np.uint8)
        driver.download(back[:100], copy)
        driver.download(back[100:], address)
        assert (set(back[:100]), set(back[100:])) == ({value}, {9})
        driver.work_waits(arrived)
    driver.close()


def test_a_mark_that_was_never_set_is_waited_for_by_nobody(card: FakeCard) -> None:
    driver = opened(card)
    mark = driver.new_mark()
    driver.work_waits(mark)
    driver.uploads_wait(mark)
    driver.synchronize()
    driver.close()


def test_memory_is_freed_behind_uploads_ahead_too(card: FakeCard) -> None:
    driver = opened(card)
    address = driver.allocate(100)
    driver.new_mark()
    driver.upload_ahead(address, random_bytes(100))
    driver.free(address)
    assert card.memory == {}
    driver.synchronize()
    driver.close()
    assert (card.retained, card.alive) == (0, [])


def test_what_the_card_leaves_for_the_computer_is_there_after_a_wait(card: FakeCard) -> None:
    driver = opened(card)
    letterbox, mark = driver.open_letterbox(100), driver.new_mark(ahead=False)
    assert not letterbox.contents.any()
    for value in (1, 2):  # the same mark again
        driver.fill(letterbox.address, value, 100)
        driver.mark_work(mark)
        driver.fill(letterbox.address, 9, 100)
        driver.wait(mark)
        assert set(letterbox.contents) == {value}
        driver.synchronize()
    driver.close()
    assert (card.retained, card.alive) == (0, [])


def test_a_mark_for_work_alone_takes_no_second_stream(card: FakeCard) -> None:
    driver = opened(card)
    driver.new_mark(ahead=False)
    assert driver._held.ahead_stream is None
    driver.close()


def test_no_memory_for_a_letterbox_is_told(card: FakeCard) -> None:
    driver = opened(card)
    card.failures["cuMemHostAlloc"] = MemoryError("x failed: out of memory")
    with pytest.raises(OutOfMemoryError, match="writes for the computer"):
        driver.open_letterbox(16)
    assert not driver.open_letterbox(16).contents.any()
    driver.close()
    assert (card.retained, card.alive) == (0, [])


@pytest.mark.parametrize("function", ["cuStreamCreate", "cuMemHostAlloc"])
def test_no_memory_for_uploads_ahead_is_told_and_can_be_tried_again(card: FakeCard, function: str) -> None:
    driver = opened(card)
    card.failures[function] = MemoryError("x failed: out of memory")
    with pytest.raises(OutOfMemoryError, match="a second stream"):
        driver.new_mark()
    driver.mark_work(driver.new_mark())
    driver.close()
    assert (card.retained, card.alive) == (0, [])


def test_copies_and_fills_happen_in_order(card: FakeCard) -> None:
    driver = opened(card)
    first, second = driver.allocate(1000), driver.allocate(1000)
    driver.fill(first, 7, 1000)
    driver.copy(second, first, 600)
    driver.fill(first, 9, 1000)
    back = np.zeros(600, np.uint8)
    driver.download(back, second)
    assert set(back) == {7}
    driver.close()


def test_nothing_is_asked_of_the_card_for_no_bytes(card: FakeCard) -> None:
    driver = opened(card)
    address = driver.allocate(0)
    card.failures = {
        name: LogicError(name) for name in ("cuMemcpyDtoHAsync", "cuMemsetD8Async", "cuMemcpyDtoDAsync")
    }
    empty = np.zeros(0, np.uint8)
    driver.upload(address, empty)
    driver.download(empty, address)
    driver.fill(address, 0, 0)
    driver.copy(address, address, 0)
    assert len(card.failures) == 3
    driver.close()


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


# On a real card.

DOUBLE = """
struct Arguments { float* values; int count; };
extern "C" __global__ void twice(const __grid_constant__ Arguments args) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < args.count) args.values[i] *= 2;
}
extern "C" __global__ void astray(const __grid_constant__ Arguments args) { *(volatile int*)64 = 1; }
"""


def real_driver() -> PyCudaDriver:
    from engine.cuda.availability import NoCard, find_card, open_card

    found = find_card()
    if isinstance(found, NoCard):
        pytest.skip(found.reason)
    driver = open_card()
    assert isinstance(driver, PyCudaDriver)
    return driver


@pytest.mark.gpu
def test_a_real_card_computes_what_it_is_told() -> None:
    from engine.cuda.driver import as_bytes
    from engine.cuda.nvrtc_compiler import NvrtcCompiler

    driver = real_driver()
    try:
        code = NvrtcCompiler().compile({"twice.cu": DOUBLE}, "twice.cu", card=driver.info)
        kernel = driver.load(code, ["twice"])["twice"]
        values = np.arange(5_000_001, dtype=np.float32)
        address = driver.allocate(values.nbytes)
        driver.upload(address, as_bytes(values))
        grid = (-(-len(values) // 256), 1, 1)
        driver.launch(kernel, Arguments(address, len(values)), grid=grid, block=256)
        back = np.zeros_like(values)
        driver.download(as_bytes(back), address)
        assert np.array_equal(back, 2 * values)
    finally:
        driver.close()


TURNED = """
struct Arguments { const int* from; int* to; int count; };
extern "C" __global__ void turned(const __grid_constant__ Arguments args) {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" : : : "memory");
    asm volatile("griddepcontrol.wait;" : : : "memory");
#endif
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < args.count) args.to[i] = args.from[args.count - 1 - i] + i % 3;
}
"""


class Turned(ctypes.Structure):
    _fields_ = (("source", ctypes.c_int64), ("target", ctypes.c_int64), ("count", ctypes.c_int32))


@pytest.mark.gpu
@pytest.mark.parametrize("recorded", [False, True])
def test_launches_that_overlap_on_a_real_card_see_what_was_written_before_them(recorded: bool) -> None:
    """Two places take turns, so that a kernel also overwrites what the one before reads."""
    from engine.cuda.driver import as_bytes
    from engine.cuda.nvrtc_compiler import NvrtcCompiler

    driver = real_driver()
    try:
        code = NvrtcCompiler().compile({"turned.cu": TURNED}, "turned.cu", card=driver.info)
        kernel = driver.load(code, ["turned"])["turned"]
        count, rounds = 1_000_003, 200
        expected = np.arange(count, dtype=np.int32)
        places = [driver.allocate(expected.nbytes) for _ in range(2)]
        driver.upload(places[0], as_bytes(expected))

        def launch() -> None:
            for number in range(rounds):
                source, target = places[number % 2], places[1 - number % 2]
                grid = (-(-count // 256), 1, 1)
                driver.launch(kernel, Turned(source, target, count), grid=grid, block=256, overlaps=True)

        if recorded:
            driver.replay(driver.record(launch))
        else:
            launch()
        found = np.zeros_like(expected)
        driver.download(as_bytes(found), places[0])
        for _ in range(rounds):
            expected = expected[::-1] + np.arange(count, dtype=np.int32) % 3
        assert np.array_equal(found, expected)
    finally:
        driver.close()


LOSES_ITS_CARD = f"""
import ctypes
from engine.cuda.availability import find_card, open_card
from engine.cuda.driver import CardLostError
from engine.cuda.nvrtc_compiler import NvrtcCompiler
from engine.errors import SettingError

class Arguments(ctypes.Structure):
    _fields_ = (("address", ctypes.c_int64), ("count", ctypes.c_int32))

driver = open_card()
code = NvrtcCompiler().compile({{"astray.cu": {DOUBLE!r}}}, "astray.cu", card=driver.info)
driver.launch(driver.load(code, ["astray"])["astray"], Arguments(), grid=(1, 1, 1), block=32)
try:
    driver.synchronize()
except CardLostError:
    print("lost")
driver.close()
print(find_card().code)
try:
    open_card()
except SettingError as error:
    print(error.message)
"""


@pytest.mark.gpu
def test_a_real_card_reads_what_came_ahead_and_keeps_what_is_still_read() -> None:
    """Two places take turns, with no wait of this thread: a wait that is missing on the card would show."""
    from engine.cuda.driver import as_bytes
    from engine.cuda.nvrtc_compiler import NvrtcCompiler

    driver = real_driver()
    try:
        code = NvrtcCompiler().compile({"twice.cu": DOUBLE}, "twice.cu", card=driver.info)
        kernel = driver.load(code, ["twice"])["twice"]
        count, rounds = 10_000_001, 24
        places = [driver.allocate(4 * count) for _ in range(2)]
        results = [driver.allocate(4 * count) for _ in range(rounds)]
        passed, arrived = [driver.new_mark() for _ in places], [driver.new_mark() for _ in places]
        grid = (-(-count // 256), 1, 1)
        for number in range(rounds):
            turn = number % 2
            driver.uploads_wait(passed[turn])
            driver.upload_ahead(places[turn], as_bytes(np.full(count, number + 1, np.float32)))
            driver.mark_uploads(arrived[turn])
            driver.work_waits(arrived[turn])
            for _ in range(10):
                driver.launch(kernel, Arguments(places[turn], count), grid=grid, block=256)
            driver.copy(results[number], places[turn], 4 * count)
            driver.mark_work(passed[turn])
        for number, result in enumerate(results):
            back = np.zeros(count, np.float32)
            driver.download(as_bytes(back), result)
            assert np.array_equal(back, np.full(count, 1024 * (number + 1), np.float32))
    finally:
        driver.close()


@pytest.mark.gpu
def test_a_real_card_that_was_lost_is_not_tried_again_by_its_process() -> None:
    """In a process of its own, since no other test there could use the card."""
    real_driver().close()
    done = subprocess.run(
        [sys.executable, "-c", LOSES_ITS_CARD],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert (done.returncode, done.stderr) == (0, "")
    lost, code, message = done.stdout.splitlines()
    assert (lost, code) == ("lost", "card-failed")
    assert "failed earlier in this program (an illegal memory access was encountered (" in message
    real_driver().close()  # other processes can use it as before


@pytest.mark.gpu
def test_a_real_card_that_is_full_says_so_and_goes_on() -> None:
    driver = real_driver()
    with pytest.raises(OutOfMemoryError):
        driver.allocate(2 * driver.info.total_bytes)
    driver.free(driver.allocate(1000))
    driver.close()


@pytest.mark.gpu
def test_ten_loads_leave_the_real_cards_memory_as_it_was() -> None:
    driver = real_driver()
    driver.close()
    free = []
    for _ in range(10):
        driver = real_driver()
        free.append(driver.free_bytes())
        driver.allocate(200 * 2**20)
        driver.close()
    assert max(free) - min(free) < 50 * 2**20


EXITS = {
    "open on the main thread": "driver = open_card(); driver.allocate(1000)",
    "an exception": "driver = open_card(); driver.allocate(1000); raise SystemExit(0)",
    "open on a thread that ended": (
        "kept = []\nthread = threading.Thread(target=lambda: kept.append(open_card()))\n"
        "thread.start(); thread.join(); kept[0]"
    ),
    "dropped on a thread": "thread = threading.Thread(target=open_card); thread.start(); thread.join()",
    "closed": "driver = open_card(); driver.close()",
}


@pytest.mark.gpu
@pytest.mark.parametrize("how", EXITS)
def test_a_process_that_used_a_real_card_ends_cleanly(how: str) -> None:
    real_driver().close()
    script = f"import threading\nfrom engine.cuda.availability import open_card\n{EXITS[how]}\n"
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=False, timeout=120
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
