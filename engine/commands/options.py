"""Options that every command has, and what the commands share of printing."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any, get_args

from engine.config import (
    DEFAULT_SLOTS,
    ActivationsChoice,
    DeviceChoice,
    EngineConfig,
    KvChoice,
    WeightGroup,
    WeightsChoice,
)
from engine.notices import Notice
from engine.resolution import check_config


def add_common_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("path", metavar="PATH", type=Path, help="a model folder or a GGUF file")
    parser.add_argument("--json", action="store_true", help="print one JSON object on standard output")
    running = parser.add_argument_group("how the model runs")
    running.add_argument("--device", choices=get_args(DeviceChoice), default="auto")
    running.add_argument(
        "--weights",
        choices=get_args(WeightsChoice),
        default="auto",
        help="native: as stored; q8 and q4: packed to 8 or 4 bits; auto: q8 if it fits into memory, else q4",
    )
    running.add_argument(
        "--weight-group",
        type=int,
        choices=get_args(WeightGroup),
        default=EngineConfig.weight_group,
        help="inputs that share a scale in packed weights: with 256 these take a tenth (q8) or a sixth (q4) "
        f"less memory, and answers lose more (default: {EngineConfig.weight_group})",
    )
    running.add_argument("--kv", choices=get_args(KvChoice), default="auto", help="format of the cache")
    running.add_argument("--activations", choices=get_args(ActivationsChoice), default="auto")
    running.add_argument(
        "--context",
        type=int,
        metavar="N",
        help="tokens, prompt and answer together (default: the model's own)",
    )
    running.add_argument("--vram-budget", type=int, metavar="BYTES", help="most memory to use on the card")
    running.add_argument(
        "--window",
        type=int,
        metavar="K",
        default=EngineConfig.window,
        help="layers whose weights are on the card at a time; fewer than the model has take less of its "
        "memory, and each token takes longer (default: 0, all or as many as fit)",
    )
    running.add_argument(
        "--slots",
        type=int,
        metavar="N",
        default=DEFAULT_SLOTS,
        help=f"conversations whose caches are kept (default: {DEFAULT_SLOTS})",
    )
    running.add_argument(
        "--threads", type=int, metavar="N", help="threads to compute with (default: the machine's cores)"
    )


def engine_config(options: argparse.Namespace) -> EngineConfig:
    """Raises SettingError for numbers that make no sense."""
    config = EngineConfig(
        device=options.device,
        weights=options.weights,
        weight_group=options.weight_group,
        kv=options.kv,
        activations=options.activations,
        context=options.context,
        vram_budget=options.vram_budget,
        window=options.window,
        slots=options.slots,
        threads=options.threads,
        keep_states=False,  # what a command prints doesn't depend on what was said in the window
    )
    check_config(config)
    return config


def print_json(value: dict[str, Any]) -> None:
    print(json.dumps(value, ensure_ascii=False, allow_nan=False))


def print_notices(notices: Iterable[Notice]) -> None:
    """To standard error, one line each, so that standard output holds the result alone."""
    for notice in notices:
        print(terminal_text(f"note: {notice.message} {notice.hint}".strip()), file=sys.stderr)


_CONTROLS = {code: "\ufffd" for code in (*range(0x20), *range(0x7F, 0xA0)) if chr(code) not in "\t\n"}


def terminal_text(text: str) -> str:
    """Text of a model or its files with no control characters left, which could drive a terminal."""
    return text.translate(_CONTROLS)
