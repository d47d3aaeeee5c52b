from __future__ import annotations

import pytest
from model_files import TINY_MODELS

from engine.checkpoints.model_folder import open_model
from engine.kv_geometry import PAGE, KvGeometry, pages_for
from engine.weights.sizes import kv_bytes_per_token, kv_bytes_per_token_native

MODELS = sorted(folder.name for folder in TINY_MODELS.iterdir() if folder.is_dir())


def test_an_int8_token_costs_a_byte_a_number_and_a_scale_for_each_head_of_k_and_v() -> None:
    geometry = KvGeometry("int8", ((4, 128),) * 48)
    assert 8192 * geometry.token_bytes == 415_236_096
    assert geometry.page_bytes == PAGE * geometry.token_bytes


@pytest.mark.parametrize("name", MODELS)
def test_sizes_on_the_model_card_are_those_of_the_pages(name: str) -> None:
    folder = open_model(TINY_MODELS / name)
    folder.tensors.close()
    assert KvGeometry.of(folder.spec, "int8").token_bytes == kv_bytes_per_token(folder.spec)
    assert KvGeometry.of(folder.spec, "native").token_bytes == kv_bytes_per_token_native(folder.spec)


@pytest.mark.parametrize("kv_format", ["int8", "native"])
def test_layers_follow_each_other_without_gaps_and_scales_can_be_read_as_floats(kv_format: str) -> None:
    layers = ((2, 24), (1, 7), (8, 128), (3, 64))
    geometry = KvGeometry(kv_format, layers)  # type: ignore[arg-type]
    ends = [*geometry.layer_offsets[1:], geometry.page_bytes]
    for layer, start, end in zip(layers, geometry.layer_offsets, ends, strict=True):
        assert end - start == KvGeometry(kv_format, (layer,)).page_bytes  # type: ignore[arg-type]
        assert start % 64 == 0


def test_geometries_are_equal_exactly_if_format_and_layers_are() -> None:
    assert KvGeometry("int8", ((2, 8),)) == KvGeometry("int8", ((2, 8),))
    assert KvGeometry("int8", ((2, 8),)) != KvGeometry("native", ((2, 8),))
    assert KvGeometry("int8", ((2, 8),)) != KvGeometry("int8", ((4, 4),))


@pytest.mark.parametrize(("tokens", "pages"), [(0, 0), (1, 1), (63, 1), (64, 1), (65, 2), (128, 2)])
def test_a_page_holds_64_tokens(tokens: int, pages: int) -> None:
    assert pages_for(tokens) == pages
