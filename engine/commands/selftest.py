"""`selftest`: whether every shortcut computes what a cold run computes, on this machine, with this model."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from engine.calibration_text import calibration_text
from engine.commands.files import read_text
from engine.commands.loading import load_engine
from engine.commands.options import add_common_options, print_json, print_notices


def add_parser(commands: Any) -> None:
    parser = commands.add_parser(
        "selftest", help="compare every shortcut of the cache with a cold run, bit for bit"
    )
    add_common_options(parser)
    parser.add_argument("--text", type=Path, metavar="FILE", help="a UTF-8 text to do it with")
    parser.add_argument(
        "--dump",
        action="store_true",
        help="compare keys and values too, and name the first layer that differs",
    )
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """1 when a check failed."""
    text = read_text(options.text) if options.text is not None else calibration_text()
    engine = load_engine(options)
    if not options.json:
        print_notices(engine.summary.notices)
    checks = []
    for check in engine.selftest(engine.encode(text), dump=options.dump):
        checks.append(check)
        if not options.json:
            verdict = "ok" if check.ok else f"DIFFERS{' in ' + check.apart if check.apart else ''}"
            print(f"{check.name:48} {check.a_nll:14.6f} {check.b_nll:14.6f} {check.diff:10.3e}  {verdict}")
    failed = sum(not check.ok for check in checks)
    if options.json:
        notices = (*engine.summary.notices, *engine.late_notices(wait=True))
        print_json(
            {
                "checks": [check.as_json() for check in checks],
                "device": engine.summary.device,
                "notices": [notice.as_json() for notice in notices],
            }
        )
    else:
        print(f"{len(checks)} checks, {failed} failed")
    return 1 if failed else 0
