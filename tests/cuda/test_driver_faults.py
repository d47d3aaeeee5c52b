"""Sentences for what the driver says."""

from __future__ import annotations

import pytest

from engine.cuda.driver import CardFaultError, CardLostError
from engine.cuda.driver_faults import card_fault, card_full, card_full_at, driver_words


@pytest.mark.parametrize(
    ("message", "words"),
    [
        ("cuMemAlloc failed: out of memory", "out of memory (cuMemAlloc)"),
        ("cuLoad failed: device kernel image is invalid - ", "device kernel image is invalid (cuLoad)"),
        ("cuX failed: the PTX is too new.\nsecond line", "the PTX is too new (cuX)"),
        ("something else.", "something else"),
    ],
)
def test_the_drivers_words_stand_before_the_function(message: str, words: str) -> None:
    assert driver_words(message) == words


@pytest.mark.parametrize(
    ("words", "what_to_do"),
    [
        ("uncorrectable ECC error encountered", "memory is failing"),
        ("the launch timed out and was terminated", "close other programs"),
        ("unknown error", "sleep"),
        ("the provided PTX was compiled with an unsupported toolchain.", "newer NVIDIA driver"),
        ("an illegal memory access was encountered", "Restart the program"),
    ],
)
def test_the_hint_fits_what_happened(words: str, what_to_do: str) -> None:
    error = card_fault(f"cuStreamSynchronize failed: {words}", doing="its work", lost=True)
    assert isinstance(error, CardLostError)
    assert (
        error.message == f"The graphics card stopped at its work: {words.rstrip('.')} (cuStreamSynchronize)."
    )
    assert what_to_do in error.hint


def test_a_refusal_is_no_loss() -> None:
    error = card_fault("cuLaunchKernel failed: invalid argument", doing="the kernel norm", lost=False)
    assert type(error) is CardFaultError
    assert error.message == "The graphics card refused the kernel norm: invalid argument (cuLaunchKernel)."
    assert error.hint.startswith("Load the model again")


def test_a_full_card_is_told_with_both_numbers_as_far_as_they_are_known() -> None:
    assert "another 3 MiB in one piece; 2 MiB are free" in card_full(3 * 2**20, 2 * 2**20).message
    assert "another 5,000 bytes in one piece; an unknown number are free" in card_full(5000, None).message
    assert "the kernels; on the card, 2 MiB are free" in card_full_at("the kernels", 2 * 2**20).message
    assert "how many are free is unknown" in card_full_at("a context", None).message
