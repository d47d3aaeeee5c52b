"""What keys and values are computed with, for the files that keep them: read by the program alone."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from engine.resolution import ResolvedConfig
from engine.weights.quantise import QUANTISER_VERSION


def numerics(config: ResolvedConfig, calibration_ids: Sequence[int]) -> str:
    """Words that change when the numbers do."""
    computed = f"{config.activations} activations" + (", on a card" if config.device == "cuda" else "")
    if config.weights == "native":
        return f"native weights, {computed}"
    return (
        f"{config.weights} weights in groups of {config.weight_group}, quantiser {QUANTISER_VERSION}, "
        f"calibration {ids_digest(calibration_ids) or 'none'}, {computed}"
    )


def ids_digest(ids: Sequence[int]) -> str:
    """Of a sequence of token ids; "" of none."""
    text = " ".join(map(str, ids)).encode()
    return hashlib.blake2b(text, digest_size=16).hexdigest() if ids else ""
