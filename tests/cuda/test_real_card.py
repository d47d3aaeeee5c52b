"""The driver on a real card, where there is one."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest
from card_process import output_of
from fake_pycuda import Arguments

from engine.cuda.pycuda_driver import PyCudaDriver
from engine.errors import OutOfMemoryError

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
    lost, code, message = output_of(LOSES_ITS_CARD).splitlines()
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
    assert output_of(script) == ""
