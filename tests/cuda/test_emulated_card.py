"""The emulated card beside its kernels: memory, faults on request, counts, and mistakes of the caller."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from emulated_card import Counts, EmulatedCard, EmulatedCompiler
from kernel_bench import SUMS, KernelBench, numbers, sources_of

from engine.cuda.driver import Address, CardFaultError, CardLostError
from engine.errors import OutOfMemoryError


def test_code_is_compiled_once_for_all_processes(bench: KernelBench, tmp_path: Path) -> None:
    sources = sources_of(SUMS)
    first, second = EmulatedCompiler(tmp_path / "kept"), EmulatedCompiler(tmp_path / "kept")
    code = first.compile(sources, "test.cu", card=bench.card.info)
    assert first.compile(sources, "test.cu", card=bench.card.info) == code
    assert second.compile(sources, "test.cu", card=bench.card.info) == code
    assert (first.compiled, second.compiled) == (1, 0)
    changed = {**sources, "test.cu": sources["test.cu"] + "\n"}
    assert second.compile(changed, "test.cu", card=bench.card.info)
    assert second.compiled == 1


def test_what_is_forgotten_meanwhile_by_another_process_is_not_missed(
    bench: KernelBench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("emulated_compiler.KEPT_LIBRARIES", 0)  # whatever was built is gone at once
    (tmp_path / "kernels-gone.so").symlink_to(tmp_path / "nowhere")  # listed, and no file when it is asked
    code = EmulatedCompiler(tmp_path).compile(sources_of(SUMS), "test.cu", card=bench.card.info)
    assert set(bench.card.load(code, ["block_sums"])) == {"block_sums"}
    assert [path for path in tmp_path.iterdir() if path.is_file()] == []


def test_memory_ends_where_it_was_said_to_end(make_card: Callable[..., EmulatedCard]) -> None:
    card = make_card(total_bytes=4096)
    first = card.allocate(1000)  # takes 1024
    assert card.used_bytes == 1024
    assert first % 256 == 0
    with pytest.raises(OutOfMemoryError, match="3072 bytes free, and 3073"):
        card.allocate(3073)
    card.foreign_bytes = 2048
    assert card.free_bytes() == 1024
    with pytest.raises(OutOfMemoryError):
        card.allocate(1025)
    second = card.allocate(1024)
    assert card.free_bytes() == 0
    card.free(first)
    card.free(second)
    assert (card.free_bytes(), card.live) == (2048, {})


def test_the_allocation_that_was_to_fail_fails_and_no_other(card: EmulatedCard) -> None:
    card.fail_allocation(2)
    first = card.allocate(1)
    with pytest.raises(OutOfMemoryError):
        card.allocate(1)
    second = card.allocate(1)
    assert set(card.live) == {first, second}
    card.free(first)
    card.free(second)


@pytest.mark.parametrize(("plan", "expected"), [("lose_at_launch", True), ("fault_at_launch", False)])
def test_the_launch_that_was_to_fail_does_nothing_and_neither_does_what_follows(
    bench: KernelBench, plan: str, expected: bool
) -> None:
    text = "KERNEL(increase, 32) { if (threadIdx.x == 0) ++*(int*)args.output; }"
    output = np.zeros(1, np.int32)
    getattr(bench.card, plan)(2)
    assert bench.run(text, "increase", output, output=output)[0] == 1
    with pytest.raises(CardFaultError) as told:
        bench.run(text, "increase", output, output=output)
    assert isinstance(told.value, CardLostError) is expected
    with pytest.raises(type(told.value)):
        bench.card.synchronize()


def test_copies_and_launches_are_counted(bench: KernelBench) -> None:
    card = bench.card
    values = numbers(256)
    bench.run(SUMS, "block_sums", values, output=np.zeros(1, np.float32), block=256)
    two = card.allocate(200)
    card.fill(two, 3, 200)
    card.copy(Address(two + 100), two, 50)
    card.synchronize()
    card.free(two)
    assert card.counts == Counts(
        launches={"block_sums": 1},
        uploads=2,
        upload_bytes=1028,
        downloads=1,
        download_bytes=4,
        copies=1,
        copy_bytes=50,
        fills=1,
        allocations=3,
        frees=3,
        synchronizations=1,
    )


def test_addresses_that_are_not_the_cards_are_refused(card: EmulatedCard) -> None:
    address = card.allocate(100)
    host = np.zeros(101, np.uint8)
    with pytest.raises(AssertionError, match="101 bytes"):
        card.upload(address, host)
    with pytest.raises(AssertionError, match="not the card's"):
        card.download(host, Address(256))
    with pytest.raises(AssertionError, match="overlap"):
        card.copy(Address(address + 1), address, 50)
    with pytest.raises(AssertionError, match="not the start"):
        card.free(Address(address + 1))
    card.free(address)
    with pytest.raises(AssertionError, match="not the start"):
        card.free(address)
    with pytest.raises(AssertionError):
        card.upload(address, host[:1])


def test_what_is_left_on_the_card_is_told(make_card: Callable[..., EmulatedCard]) -> None:
    card = make_card()
    address = card.allocate(123)
    with pytest.raises(AssertionError, match=r"never freed: .*123"):
        card.check()
    card.free(address)
    card.check()


def test_a_write_into_freed_memory_is_found_at_the_end(card_compiler: EmulatedCompiler) -> None:
    card = EmulatedCard()
    address = card.allocate(100_000)
    card.free(address)
    ctypes.memset(address + 50_000, 0, 1)
    with pytest.raises(AssertionError, match="written to after free"):
        card.check()


def test_another_thread_may_not_use_the_card(card: EmulatedCard) -> None:
    errors: list[AssertionError] = []

    def use() -> None:
        try:
            card.free_bytes()
        except AssertionError as error:
            errors.append(error)

    thread = threading.Thread(target=use)
    thread.start()
    thread.join()
    assert "belongs to the thread" in str(errors[0])


def test_a_closed_card_may_be_closed_again_but_not_used(card: EmulatedCard) -> None:
    card.close()
    card.close()
    with pytest.raises(AssertionError, match="closed"):
        card.allocate(1)


def test_arguments_of_another_size_are_refused(bench: KernelBench) -> None:
    class Other(ctypes.Structure):
        _fields_ = (("input", ctypes.c_uint64),)

    kernel = bench.card.load(bench.compile(SUMS), ["block_sums"])["block_sums"]
    with pytest.raises(AssertionError, match="takes 24 bytes of arguments, not 8"):
        bench.card.launch(kernel, Other(0), grid=(1, 1, 1), block=256)
