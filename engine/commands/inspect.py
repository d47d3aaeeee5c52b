"""`inspect`: what is known of a model without loading it, and what keeps it from being loaded."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from engine.commands.options import (
    add_common_options,
    engine_config,
    print_json,
    print_notices,
    terminal_text,
)
from engine.inspection import ModelReport, inspect_model
from engine.wording import format_tokens

_LOADABLE, _NOT_LOADABLE = 0, 2


def add_parser(commands: Any) -> None:
    """`commands` is what argparse gives for a program with subcommands; it has no public type."""
    parser = commands.add_parser("inspect", help="say what a model is, and whether it can be loaded")
    add_common_options(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    report = inspect_model(options.path, engine_config(options))
    if options.json:
        print_json(report.as_json())
    else:
        print(terminal_text(_card(report)))
        print_notices(report.notices)
    if not report.problems:
        return _LOADABLE
    first = report.problems[0]
    more = f" ({len(report.problems) - 1} more)" if len(report.problems) > 1 else ""
    print(terminal_text(f"error: {first.message} {first.hint}".strip() + more), file=sys.stderr)
    return _NOT_LOADABLE


def _card(report: ModelReport) -> str:
    weights = report.weight_bytes
    rows = [
        ("name", report.name),
        ("family", f"{report.family or 'unknown'} ({report.architecture or 'no architecture'})"),
        ("files", f"{report.kind}, {_mebibytes(report.file_bytes)}"),
        ("parameters", f"{report.parameters:,}"),
        ("layers", str(report.layers)),
        ("context", format_tokens(report.context_length)),
        (
            "weights",
            f"native {_mebibytes(weights.native)}, q8 {_mebibytes(weights.q8)}, q4 {_mebibytes(weights.q4)}",
        ),
        (
            "cache",
            f"{report.kv_bytes_per_token:,} bytes a token, {report.kv_bytes_per_token_native:,} as float32",
        ),
        *(
            (f"fits in {memory.upper()}", f"native {_yes(fit.native)}, q8 {_yes(fit.q8)}, q4 {_yes(fit.q4)}")
            for memory, fit in report.fits.items()
        ),
        *(("problem", f"{problem.message} {problem.hint}".strip()) for problem in report.problems),
    ]
    return "\n".join(f"{label:<13}{value}" for label, value in rows)


def _mebibytes(num_bytes: int) -> str:
    return f"{num_bytes / 2**20:,.1f} MiB"


def _yes(value: bool) -> str:
    return "yes" if value else "no"
