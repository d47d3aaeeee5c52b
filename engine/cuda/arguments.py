"""The structures that kernels take, field by field as in `kernels/*.cu`: each comment there holds here."""

from __future__ import annotations

import ctypes
from typing import Any

_POINTER = ctypes.c_uint64
_INT, _LONG, _FLOAT = ctypes.c_int32, ctypes.c_int64, ctypes.c_float


def _fields(**fields: Any) -> list[tuple[str, Any]]:
    return list(fields.items())


class Activation(ctypes.Structure):
    _fields_ = _fields(
        values=_POINTER,
        high=_POINTER,
        low=_POINTER,
        scales=_POINTER,
        sums=_POINTER,
        width=_INT,
        padding=_INT,
    )


class Product(ctypes.Structure):
    _fields_ = _fields(
        weights=_POINTER,
        bias=_POINTER,
        x=Activation,
        y=_POINTER,
        experts=_POINTER,
        stride=_LONG,
        outputs=_INT,
        rows=_INT,
        rows_each=_INT,
        adds=_INT,
    )


class Tiles(ctypes.Structure):
    _fields_ = _fields(
        codes=_POINTER,
        scales=_POINTER,
        offsets=_POINTER,
        rows=_INT,
        columns=_INT,
        blocks_a_scale=_INT,
        narrow_scales=_INT,
        stretch=_INT,
        chains=_INT,
    )


class Relay(ctypes.Structure):
    _fields_ = _fields(codes=_POINTER, scales=_POINTER, offsets=_POINTER, to=Tiles, bits=_INT, padding=_INT)


class ProductValues(ctypes.Structure):
    _fields_ = _fields(
        weights=Tiles,
        bias=_POINTER,
        x=Activation,
        y=_POINTER,
        experts=_POINTER,
        stride=_LONG,
        rows=_INT,
        rows_each=_INT,
        adds=_INT,
        padding=_INT,
    )


class TiledProduct(ctypes.Structure):
    _fields_ = _fields(
        weights=Tiles,
        bias=_POINTER,
        x=Activation,
        y=_POINTER,
        order=_POINTER,
        row_tiles=_POINTER,
        stride=_LONG,
        rows=_INT,
        rows_each=_INT,
        adds=_INT,
        gated=_INT,
        out=Activation,
    )


class Quantise(ctypes.Structure):
    _fields_ = _fields(x=_POINTER, out=Activation)


class Grouping(ctypes.Structure):
    _fields_ = _fields(
        experts=_POINTER,
        order=_POINTER,
        tiles=_POINTER,
        count=_INT,
        num_experts=_INT,
        tile_rows=_INT,
        padding=_INT,
    )


class FewRows(ctypes.Structure):
    _fields_ = _fields(codes=Activation, values=_POINTER, norm=_POINTER, eps=_FLOAT, padding=_INT)


class ProductFew(ctypes.Structure):
    _fields_ = _fields(
        weights=Tiles,
        bias=_POINTER,
        x=FewRows,
        y=_POINTER,
        gated=Activation,
        experts=_POINTER,
        logits=_POINTER,
        stride=_LONG,
        tokens=_INT,
        taken=_INT,
        jobs_each=_INT,
        adds=_INT,
        experts_known=_INT,
        by_chains=_INT,
        by_jobs=ctypes.c_uint32,
        lets_early=_INT,
        teams_shift=_INT,
        late_stages=_INT,
        near_stages=_INT,
        num_experts=_INT,
        num_chosen=_INT,
    )


class Norm(ctypes.Structure):
    _fields_ = _fields(x=_POINTER, weight=_POINTER, out=Activation, eps=_FLOAT, padding=_INT)


class Swiglu(ctypes.Structure):
    _fields_ = _fields(gate_up=_POINTER, out=Activation)


class PageLayout(ctypes.Structure):
    _fields_ = _fields(offset=_LONG, heads=_INT, width=_INT)


class Rotary(ctypes.Structure):
    _fields_ = _fields(
        step=_POINTER,
        qkv=_POINTER,
        norm=_POINTER,
        cosines=_POINTER,
        sines=_POINTER,
        layout=PageLayout,
        query_heads=_INT,
        rotated=_INT,
        eps=_FLOAT,
        padding=_INT,
    )


class Attention(ctypes.Structure):
    _fields_ = _fields(
        step=_POINTER,
        qkv=_POINTER,
        partials=_POINTER,
        out=Activation,
        layout=PageLayout,
        query_heads=_INT,
        window=_INT,
        first_row=_INT,
        splits=_INT,
        scale=_FLOAT,
        padding=_INT,
    )


class CodeAttention(ctypes.Structure):
    _fields_ = _fields(
        step=_POINTER,
        qkv=_POINTER,
        norm=_POINTER,
        cosines=_POINTER,
        sines=_POINTER,
        partials=_POINTER,
        arrivals=_POINTER,
        out=Activation,
        layout=PageLayout,
        query_heads=_INT,
        window=_INT,
        rows=_INT,
        rotated=_INT,
        lets_early=_INT,
        joining=_INT,
        scale=_FLOAT,
        eps=_FLOAT,
    )


class ShortAttention(ctypes.Structure):
    _fields_ = _fields(all=CodeAttention, tiles=_INT, first_pair=_INT, pairs=_INT, splits=_INT)


class Route(ctypes.Structure):
    _fields_ = _fields(
        logits=_POINTER,
        experts=_POINTER,
        weights=_POINTER,
        count=_INT,
        chosen=_INT,
        normalises=_INT,
        padding=_INT,
    )


class Router(ctypes.Structure):
    _fields_ = _fields(
        x=_POINTER,
        norm=_POINTER,
        out=Activation,
        weights=_POINTER,
        route=Route,
        arrivals=_POINTER,
        eps=_FLOAT,
        each=_INT,
    )


class Mixture(ctypes.Structure):
    _fields_ = _fields(
        y=_POINTER,
        weights=_POINTER,
        logits=_POINTER,
        hidden=_POINTER,
        width=_INT,
        chosen=_INT,
        count=_INT,
        normalises=_INT,
    )


class Fill(ctypes.Structure):
    _fields_ = _fields(
        target=_POINTER,
        count=_LONG,
        seed=ctypes.c_uint64,
        pattern=ctypes.c_uint32,
        bound=_FLOAT,
        form=_INT,
        padding=_INT,
    )


class Reading(ctypes.Structure):
    _fields_ = _fields(source=_POINTER, found=_POINTER, count=_LONG)


class Embedding(ctypes.Structure):
    _fields_ = _fields(
        tokens=_POINTER,
        weights=_POINTER,
        scales=_POINTER,
        offsets=_POINTER,
        hidden=_POINTER,
        width=_INT,
        group=_INT,
        narrow_scales=_INT,
        padding=_INT,
    )


class Draw(ctypes.Structure):
    """In the card's memory, see `kernels/sample.cu`."""

    _fields_ = _fields(
        seed=ctypes.c_uint64,
        index=ctypes.c_uint64,
        results=_POINTER,
        top_p=ctypes.c_double,
        least_weight=ctypes.c_uint64,
        temperature=_FLOAT,
        penalty=_FLOAT,
        top_k=_INT,
        is_greedy=_INT,
    )


class Drawn(ctypes.Structure):
    """In the computer's memory, written by the card."""

    _fields_ = _fields(index=_LONG, token=_INT, fault=_INT)


class Draws(ctypes.Structure):
    _fields_ = _fields(
        draw=_POINTER,
        turn=_POINTER,
        logits=_POINTER,
        scratch=_POINTER,
        best=_POINTER,
        keys=_POINTER,
        nearest=_POINTER,
        vocabulary=_INT,
        rows=_INT,
    )
