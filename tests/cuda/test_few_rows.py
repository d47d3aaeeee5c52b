"""How a token's products are dealt to warps, as far as that is arithmetic."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.cuda.few_rows import inverse
from engine.cuda.tile_layout import TILE, most_chains

WARPS = 16


@given(st.data(), st.integers(1, 2**16))
def test_a_product_with_the_inverse_is_the_quotient(data: st.DataObject, number: int) -> None:
    i = data.draw(st.integers(0, (2**32 - 1) // number))
    assert i * inverse(number, 32) >> 32 == i // number


@pytest.mark.parametrize("chains", range(1, WARPS + 1))
def test_so_it_is_for_every_warp_and_all_of_them(chains: int) -> None:
    for warp in range(WARPS + 1):
        assert warp * inverse(chains, 8) >> 8 == warp // chains


@given(st.integers(1, 264))
def test_a_matrix_of_few_tiles_keeps_all_warps_of_a_large_card_busy(tiles: int) -> None:
    a_processor = -(-tiles // 132)
    assert a_processor * most_chains(TILE * tiles, 1) == WARPS


@given(st.integers(1, 10**6), st.integers(2, 512))
def test_experts_are_cut_alike_whatever_their_size(rows: int, experts: int) -> None:
    assert most_chains(rows, experts) == most_chains(10**6, 1)
