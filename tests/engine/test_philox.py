"""Against the vectors that the authors publish with their library (Random123, kat_vectors)."""

from __future__ import annotations

import pytest

from engine.philox import philox, uniform_bits

ONES = 0xFFFFFFFF


@pytest.mark.parametrize(
    ("counter", "key", "expected"),
    [
        ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
        ((ONES,) * 4, (ONES,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
        (
            (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
            (0xA4093822, 0x299F31D0),
            (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
        ),
    ],
)
def test_the_words_are_those_of_the_published_vectors(counter, key, expected):
    assert philox(counter, key) == expected


def test_uniform_numbers_are_the_upper_bits_of_the_first_two_words():
    assert uniform_bits(0, 0) == 0xE169C58D6627E8D5 >> 11


def test_every_bit_of_seed_and_index_counts():
    base = uniform_bits(0, 0)
    assert all(uniform_bits(1 << bit, 0) != base != uniform_bits(0, 1 << bit) for bit in range(63))


def test_numbers_are_spread_evenly():
    numbers = [uniform_bits(7, index) / 2**53 for index in range(4000)]
    assert min(numbers) >= 0
    assert max(numbers) < 1
    for part in range(8):
        share = sum(part / 8 <= number < (part + 1) / 8 for number in numbers) / len(numbers)
        assert share == pytest.approx(1 / 8, abs=0.02)
