"""How a chat draws tokens when its model doesn't say."""

from __future__ import annotations

import secrets
from dataclasses import replace

from engine.generation import SamplingParams

CHAT_SAMPLING = SamplingParams(temperature=0.3, top_p=0.9, min_p=0.05, repetition_penalty=1.05)
"""For models without recommendations, GGUF files above all. Always taking the likeliest token makes small
models repeat one line for ever; min-p keeps the tail out, and the slight penalty leaves code alone.
"""


def chat_sampling(recommended: SamplingParams) -> SamplingParams:
    """The model's own recommendation, or `CHAT_SAMPLING` where it has none."""
    return CHAT_SAMPLING if recommended == SamplingParams() else recommended


def other_sampling(recommended: SamplingParams) -> SamplingParams:
    """For another version of an answer: a new seed, and never the likeliest token alone, which would write
    the same answer again.
    """
    sampling = chat_sampling(recommended)
    if sampling.temperature == 0:
        sampling = replace(sampling, temperature=CHAT_SAMPLING.temperature, top_p=CHAT_SAMPLING.top_p)
    return replace(sampling, seed=secrets.randbits(31))
