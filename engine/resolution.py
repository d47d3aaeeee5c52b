"""Turns the choices of a person ("auto", nothing) into what a load really does. The one place where that
happens.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from engine.config import Activations, ActivationsChoice, EngineConfig, WeightFormat, WeightGroup
from engine.cpu.memory import RESERVE_BYTES
from engine.cuda.availability import NoCard
from engine.cuda.driver import CardInfo
from engine.errors import SettingError
from engine.kv_geometry import KvFormat
from engine.models.spec import ModelSpec
from engine.notices import Notice
from engine.runtime import default_threads
from engine.weights.sizes import WeightBytes
from engine.wording import format_tokens

_MAX_THREADS = 1024
_CARD_FRACTION = 0.8  # of the card's memory, for weights; the rest is for conversations and other programs
_LEAST = {
    "context": 1,
    "slots": 1,
    "threads": 1,
    "vram_budget": 0,
    "window": 0,
    "state_ram_budget": 0,
    "state_disk_budget": 0,
}


@dataclass(frozen=True)
class ResolvedConfig:
    """What holds for one loaded model; nothing is left to be decided."""

    device: Literal["cpu", "cuda"]
    weights: WeightFormat
    weight_group: WeightGroup
    kv: KvFormat
    activations: Activations
    context: int  # tokens, prompt and answer together
    slots: int  # conversations whose caches are kept
    threads: int


def resolve_config(
    config: EngineConfig,
    spec: ModelSpec,
    *,
    sizes: WeightBytes,
    available: int,
    card: CardInfo | NoCard | None,
    stored_packed: bool = False,
) -> tuple[ResolvedConfig, tuple[Notice, ...]]:
    """Raises SettingError for what makes no sense.

    sizes: of the model's weights in each format. available: bytes of memory that are free. card: see
    `engine.card_loading.card_for`. stored_packed: the
    files have most weights packed already.
    """
    check_config(config)
    on_card = isinstance(card, CardInfo)
    resolved = ResolvedConfig(
        device="cuda" if on_card else "cpu",
        weights=_weights(config, sizes, _room(config, available, card)),
        weight_group=weight_group(config),
        kv="int8" if config.kv == "auto" else config.kv,
        activations=_activations(config.activations, on_card=on_card),
        context=_context(config.context, spec),
        slots=config.slots,
        threads=default_threads() if config.threads is None else config.threads,
    )
    notices = _notices(config, resolved, stored_packed=stored_packed)
    if isinstance(card, NoCard):
        notices.append(card.as_notice())
    return resolved, tuple(notices)


def check_config(config: EngineConfig) -> None:
    """Raises SettingError for numbers that make no sense with any model."""
    weight_group(config)
    for name, least in _LEAST.items():
        value = getattr(config, name)
        if value is not None and value < least:
            raise SettingError(f"The setting {name} is {value}; it must be at least {least}.")
    if config.threads is not None and config.threads > _MAX_THREADS:
        raise SettingError(f"The setting threads is {config.threads}; at most {_MAX_THREADS} make sense.")


def weight_group(config: EngineConfig) -> WeightGroup:
    """Raises SettingError."""
    if config.weight_group not in get_args(WeightGroup):
        raise SettingError(
            f"The setting weight_group is {config.weight_group}, which there isn't.", "Choose 32 or 256."
        )
    return config.weight_group


def _room(config: EngineConfig, available: int, card: CardInfo | NoCard | None) -> int:
    """Bytes for weights: of the computer's memory, where they always are too, and of the card's."""
    room = available - RESERVE_BYTES
    if isinstance(card, CardInfo):
        room = min(room, room_for_weights(card, config.vram_budget))
    return room


def room_for_weights(card: CardInfo, vram_budget: int | None) -> int:
    """Bytes of the card's memory, of which the model may have the budget."""
    return int(_CARD_FRACTION * most_of_card(card, vram_budget))


def most_of_card(card: CardInfo, vram_budget: int | None) -> int:
    """Bytes that a model may have of it in all."""
    return card.total_bytes if vram_budget is None else min(card.total_bytes, vram_budget)


def _weights(config: EngineConfig, sizes: WeightBytes, room: int) -> WeightFormat:
    """By itself, 8 bits if they fit: answers hardly differ from those of the weights as stored, and a token
    takes about half as long. Else 4 bits, whether they fit or not: the load says so if they don't.
    """
    if config.weights != "auto":
        return config.weights
    return "q8" if sizes.q8 <= room else "q4"


def _activations(choice: ActivationsChoice, *, on_card: bool) -> Activations:
    """By itself what costs answers next to nothing: on the card two planes of 8 bits, which its integer
    products read as they are.
    """
    if choice != "auto":
        return choice
    return "int8x2" if on_card else "float"


def _notices(config: EngineConfig, resolved: ResolvedConfig, *, stored_packed: bool) -> list[Notice]:
    notices = []
    which = "Weights that the files don't hold packed" if stored_packed else "The weights"
    if config.weights == "auto":
        notices.append(
            Notice("weights-packed", f"{which} are packed to 8 bits, which answers hardly show.")
            if resolved.weights == "q8"
            else Notice(
                "weights-packed-to-fit",
                f"{which} are packed to 4 bits, because with 8 they don't fit into memory; answers lose a "
                "little.",
                "Close other programs and load the model again to have it run with 8 bits.",
            )
        )
    if config.weight_group != EngineConfig.weight_group and resolved.weights == "native":
        notices.append(
            Notice("weight-group-unused", "The group of the weights has no effect: they are not packed.")
        )
    if config.activations not in ("auto", "float") and resolved.weights == "native" and not stored_packed:
        notices.append(
            Notice(
                "activations-unused",
                f"Activations of {config.activations} have no effect: the weights are not packed.",
                "Choose 8 or 4 bits for the weights as well.",
            )
        )
    if config.vram_budget is not None and resolved.device == "cpu":
        notices.append(
            Notice("vram-budget-unused", "The VRAM budget has no effect: the model runs on the CPU.")
        )
    if config.window and resolved.device == "cpu":
        notices.append(Notice("window-unused", "The window has no effect: the model runs on the CPU."))
    return notices


def _context(context: int | None, spec: ModelSpec) -> int:
    if context is None:
        return spec.context_length
    if context > spec.context_length:
        raise SettingError(
            f"The context is set to {format_tokens(context)}, but the model was made for "
            f"{spec.context_length:,}.",
            f"Choose at most {spec.context_length:,}.",
        )
    return context
