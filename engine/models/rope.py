"""Rotary settings of a config, in every layout that checkpoints write them.

Old: `rope_theta` (and `partial_rotary_factor`) beside a `rope_scaling` object whose kind is `type` or
`rope_type`. New: everything in one `rope_parameters` object. Precedence and defaults are those of
transformers 5: `rope_scaling` before `rope_parameters` as a whole, the object's own `rope_theta` before the
one beside it. A kind that is not known here is refused by name: plain RoPE in its place reads short prompts
well and falls apart on long ones.
"""

from __future__ import annotations

import math

from engine.checkpoints.foreign_config import ConfigReader
from engine.checkpoints.foreign_files import shown
from engine.errors import ModelFileError, UnsupportedModelError
from engine.models.spec import RopeKind, RopeSpec
from engine.notices import Notice

MAX_CONTEXT = 2**30  # tokens
MAX_FACTOR = 1e6

_KINDS: dict[str, RopeKind] = {"default": "default", "linear": "linear", "llama3": "llama3", "yarn": "yarn"}


def read_rope(
    config: ConfigReader,
    *,
    head_dim: int,
    context_length: int,
    default_theta: float,
    multimodal: bool = False,
    partial: bool = False,
) -> RopeSpec:
    """The rotary settings of all layers. `multimodal` accepts the kind "mrope": plain RoPE on text.

    `partial` is for families that can rotate a part of each head. The classes of the others ignore such a
    setting or fail on it, so there is nothing that it could mean: it is refused.
    """
    settings = _settings(config)
    kind = _kind(settings, multimodal=multimodal)
    theta = _theta(config, settings, default_theta)
    dim = _rotated_dim(config, settings, head_dim, partial=partial)
    if kind == "linear":
        return RopeSpec(theta, dim, kind, factor=_factor(settings))
    if kind == "llama3":
        return _llama3(config, settings, theta=theta, dim=dim, context_length=context_length)
    if kind == "yarn":
        return _yarn(config, settings, theta=theta, dim=dim, context_length=context_length)
    return RopeSpec(theta, dim)


def extended_context(rope: RopeSpec, context_length: int) -> int:
    """Tokens that the model can really be given: YaRN configs often keep the length before stretching."""
    if rope.kind != "yarn":
        return context_length
    return max(context_length, min(int(rope.original_context_length * rope.factor), MAX_CONTEXT))


def _settings(config: ConfigReader) -> ConfigReader:
    scaling = config.section("rope_scaling")
    settings = scaling if scaling.values else config.section("rope_parameters")
    nested = [key for key, value in settings.values.items() if isinstance(value, dict)]
    if nested:
        raise UnsupportedModelError(
            f"{shown(config.file)}: {settings.name_of(nested[0])} has rotary settings for one kind of layer, "
            "which this engine can't do for this family.",
            "Pick another model.",
        )
    return settings


def _kind(settings: ConfigReader, *, multimodal: bool) -> RopeKind:
    named = [settings.text(key) for key in ("rope_type", "type") if key in settings]
    aliases = {"mrope": "default"} if multimodal else {}
    kinds = [aliases.get(name, name) for name in named] or ["default"]
    for name, kind in zip(named, kinds, strict=False):
        if kind not in _KINDS:
            raise UnsupportedModelError(
                f"{shown(settings.file)} asks for rotary embeddings of type {shown(name, 40)!r}, "
                "which this engine doesn't have.",
                f"Pick another model; this engine has {', '.join(_KINDS)}.",
            )
    if len(set(kinds)) > 1:
        raise settings.wrong("rope_type", f"is {named[0]!r} but type is {named[1]!r}")
    return _KINDS[kinds[0]]


def _theta(config: ConfigReader, settings: ConfigReader, default: float) -> float:
    for reader in (settings, config):
        if "rope_theta" in reader:
            return reader.number("rope_theta", above=1.0, at_most=1e12)
    config.notices.append(
        Notice(
            "rope-theta-assumed",
            f"{shown(config.file)} gives no rope_theta; {default:,.0f} is used, the default of this family.",
            "If long answers lose the thread, download config.json again.",
        )
    )
    return default


def _rotated_dim(config: ConfigReader, settings: ConfigReader, head_dim: int, *, partial: bool) -> int:
    reader = settings if "partial_rotary_factor" in settings else config
    factor = reader.number("partial_rotary_factor", 1.0, above=0.0, at_most=1.0)
    if factor < 1.0 and not partial:
        raise UnsupportedModelError(
            f"{shown(config.file)} has only a part of each head rotated "
            f"({reader.name_of('partial_rotary_factor')} {factor:g}), "
            "which this engine can't do for this family.",
            "Pick another model.",
        )
    dim = int(head_dim * factor)
    if dim < 2 or dim % 2:
        raise ModelFileError(
            f"{shown(config.file)}: {dim} of {head_dim} features of each head would be rotated; "
            "rotary embeddings need an even number.",
            "Download that file again.",
        )
    return dim


def _factor(settings: ConfigReader) -> float:
    return settings.number("factor", above=0.0, at_most=MAX_FACTOR)


def _original_context(config: ConfigReader, settings: ConfigReader, context_length: int) -> int:
    key = "original_max_position_embeddings"
    reader = config if key in config else settings
    return reader.integer(key, context_length, maximum=MAX_CONTEXT)


def _llama3(
    config: ConfigReader, settings: ConfigReader, *, theta: float, dim: int, context_length: int
) -> RopeSpec:
    low = settings.number("low_freq_factor", above=0.0)
    high = settings.number("high_freq_factor", above=0.0)
    if high <= low:
        raise settings.wrong(
            "high_freq_factor", f"is {high:g}; it must be greater than low_freq_factor ({low:g})"
        )
    return RopeSpec(
        theta,
        dim,
        "llama3",
        factor=_factor(settings),
        low_freq_factor=low,
        high_freq_factor=high,
        original_context_length=_original_context(config, settings, context_length),
    )


def _yarn(
    config: ConfigReader, settings: ConfigReader, *, theta: float, dim: int, context_length: int
) -> RopeSpec:
    original = _original_context(config, settings, context_length)
    # A factor of null means the ratio of the two lengths, as DeepSeek writes it; absent, it is an omission.
    factor = (
        context_length / original
        if settings.given("factor") and "factor" not in settings
        else _factor(settings)
    )
    return RopeSpec(
        theta,
        dim,
        "yarn",
        factor=factor,
        original_context_length=original,
        attention_factor=_yarn_attention_factor(settings, factor),
        beta_fast=_beta(settings, "beta_fast", 32.0),
        beta_slow=_beta(settings, "beta_slow", 1.0),
        truncate=settings.boolean("truncate", True),
    )


def _beta(settings: ConfigReader, key: str, default: float) -> float:
    """0 counts as absent, as it does in transformers."""
    return (
        settings.number(key, default, above=0.0, at_most=MAX_FACTOR) if settings.values.get(key) else default
    )


def _yarn_attention_factor(settings: ConfigReader, factor: float) -> float:
    """What cos and sin are multiplied by: as given, from `mscale` and `mscale_all_dim`, or from `factor`."""
    if "attention_factor" in settings:
        return settings.number("attention_factor", above=0.0, at_most=MAX_FACTOR)
    if settings.values.get("mscale") and settings.values.get("mscale_all_dim"):  # 0 counts as absent, too
        mscale, mscale_all_dim = (
            settings.number(key, above=0.0, at_most=MAX_FACTOR) for key in ("mscale", "mscale_all_dim")
        )
        return _mscale(factor, mscale) / _mscale(factor, mscale_all_dim)
    return _mscale(factor, 1.0)


def _mscale(factor: float, weight: float) -> float:
    """Section 3.4 of the YaRN paper (arXiv 2309.00071), with DeepSeek's weight."""
    return 1.0 if factor <= 1.0 else 0.1 * weight * math.log(factor) + 1.0
