"""How many logits of a router a block makes, and of how much shared memory: see kernels/router.cu."""

from __future__ import annotations

from engine.cuda.matrices import DeviceMatrix

_MOST_LOGITS, _MOST_BYTES = 8, 80 * 2**10  # of a block


def logits_a_block(router: DeviceMatrix) -> int:
    """Where one launch has all of a router; 0: its matrix is none for that."""
    if router.is_strip or router.columns % 8:
        return 0
    fitting = (each for each in range(_MOST_LOGITS, 0, -1) if router_bytes(router, each) <= _MOST_BYTES)
    return next(fitting, 0)


def router_bytes(router: DeviceMatrix, each: int) -> int:
    """Of a block's shared memory: weights of so many logits, and their sums. As in kernels/router.cu."""
    eights = each * router.columns // 8
    return 4 * (-(-eights // 4) * 4) + eights * (32 if router.kind == "float32" else 16)
