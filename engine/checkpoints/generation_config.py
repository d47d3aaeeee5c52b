"""What `generation_config.json` says: which ids end an answer, and how tokens are to be drawn."""

from __future__ import annotations

from engine.checkpoints.foreign_config import ConfigReader
from engine.checkpoints.foreign_files import json_type, shown
from engine.generation import SamplingParams
from engine.notices import Notice
from engine.sampling import MAX_PENALTY, MIN_PENALTY

MAX_TOKEN_ID = 2**31 - 1
MAX_TOP_K = 2**24


def read_eos_ids(config: ConfigReader) -> frozenset[int]:
    """`eos_token_id`: one id, a list of ids, null or absent. Ids below 0, which some configs write, mean
    none.
    """
    value = config.values.get("eos_token_id")
    ids = value if isinstance(value, list) else [] if value is None else [value]
    for token_id in ids:
        if type(token_id) is not int or token_id > MAX_TOKEN_ID:
            raise config.wrong("eos_token_id", f"holds {_described(token_id)}; token ids belong there")
    return frozenset(token_id for token_id in ids if token_id >= 0)


def read_sampling(config: ConfigReader) -> SamplingParams:
    """The defaults for drawing tokens; neutral values where the file is silent.

    A value that makes no sense is left out with a notice: it is only a default, and the model runs without
    it.
    """
    samples = config.values.get("do_sample")
    temperature = _number(config, "temperature", 1.0 if samples is True else 0.0, above=-1e-9, at_most=100.0)
    return SamplingParams(
        temperature=0.0 if samples is False else max(0.0, temperature),
        top_k=int(_number(config, "top_k", 0, above=-1e-9, at_most=MAX_TOP_K)),
        top_p=_number(config, "top_p", 1.0, above=0.0, at_most=1.0),
        min_p=_number(config, "min_p", 0.0, above=-1e-9, at_most=1.0 - 1e-9),
        repetition_penalty=_number(
            config, "repetition_penalty", 1.0, above=MIN_PENALTY - 1e-9, at_most=MAX_PENALTY
        ),
    )


def _number(config: ConfigReader, key: str, neutral: float, *, above: float, at_most: float) -> float:
    value = config.values.get(key)
    if value is None:
        return neutral
    if isinstance(value, int | float) and not isinstance(value, bool) and above < value <= at_most:
        return float(value)
    config.notices.append(
        Notice(
            "sampling-default-ignored",
            f"{shown(config.file)} sets {key} to {_described(value)}, which is not possible; it is left out.",
            "Choose how answers are drawn yourself, or correct that file.",
        )
    )
    return neutral


def _described(value: object) -> str:
    return json_type(value) if isinstance(value, dict | list) or value is None else shown(value, 40)
