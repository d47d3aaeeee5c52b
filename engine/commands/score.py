"""`score`: how probable a model finds tokens that are already there."""

from __future__ import annotations

import argparse
import math
from pathlib import Path
from typing import Any

from engine.commands.files import read_id_lists, read_text
from engine.commands.loading import load_engine
from engine.commands.options import add_common_options, print_json, print_notices
from engine.engine import SequenceScore
from engine.wording import format_tokens


def add_parser(commands: Any) -> None:
    parser = commands.add_parser("score", help="log-probabilities of given tokens")
    add_common_options(parser)
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--ids", type=Path, metavar="FILE.json", help="a list of lists of token ids")
    source.add_argument("--text", type=Path, metavar="FILE", help="a UTF-8 text, scored as one sequence")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    id_lists = read_id_lists(options.ids) if options.ids is not None else []
    text = read_text(options.text) if options.text is not None else None
    engine = load_engine(options)
    if text is not None:
        id_lists.append(tuple(engine.encode(text)))
    scores = [engine.score(ids) for ids in id_lists]
    if options.json:
        notices = (*engine.summary.notices, *engine.late_notices(wait=True))
        print_json(
            {
                "sequences": [score.as_json() for score in scores],
                "device": engine.summary.device,
                "notices": [notice.as_json() for notice in notices],
            }
        )
        return 0
    print_notices(engine.summary.notices)
    for number, score in enumerate(scores):
        print(f"sequence {number}: {_line(score)}")
    print_notices(engine.late_notices(wait=True))
    return 0


def _line(score: SequenceScore) -> str:
    if not score.n:
        return "one token alone has nothing to be scored by"
    mean = score.nll / score.n
    perplexity = math.exp(mean) if mean < 700 else math.inf  # e to the 710 is past the largest float
    return f"{format_tokens(score.n)}, nll {score.nll:.4f}, {mean:.4f} a token, perplexity {perplexity:.4g}"
