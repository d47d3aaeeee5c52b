"""Philox4x32-10: random numbers as a function of a key and a counter (Salmon et al., "Parallel random
numbers: as easy as 1, 2, 3", 2011).

There is no state that draws on one device could lose to another: the number for an answer's n-th token is the
same wherever that is drawn. `cuda/kernels/weigh.cuh` has the same function.
"""

from __future__ import annotations

UNIFORM_BITS = 53  # as many as a float64 holds

_WORD = 0xFFFFFFFF
_MULTIPLIERS = 0xD2511F53, 0xCD9E8D57
_WEYL = 0x9E3779B9, 0xBB67AE85  # what is added to the key from round to round
_ROUNDS = 10

Words = tuple[int, int, int, int]


def philox(counter: Words, key: tuple[int, int]) -> Words:
    """Four random words of 32 bits."""
    a, b, c, d = counter
    first, second = key
    for _ in range(_ROUNDS):
        left, right = _MULTIPLIERS[0] * a, _MULTIPLIERS[1] * c
        a, b, c, d = (right >> 32) ^ b ^ first, right & _WORD, (left >> 32) ^ d ^ second, left & _WORD
        first, second = (first + _WEYL[0]) & _WORD, (second + _WEYL[1]) & _WORD
    return a, b, c, d


def uniform_bits(seed: int, index: int) -> int:
    """A number from 0 to 2**53 - 1, each as likely as any other. seed, index: below 2**64."""
    low, high, _, _ = philox((index & _WORD, index >> 32, 0, 0), (seed & _WORD, seed >> 32))
    return (high << 32 | low) >> (64 - UNIFORM_BITS)
