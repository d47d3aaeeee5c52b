"""`bench`: how fast a model computes here, or one of a configuration's shape with random weights."""

from __future__ import annotations

import argparse
import functools
import sys
from typing import TYPE_CHECKING, Any

from engine.bench.configuration import is_configuration
from engine.bench.load_times import LoadTimes
from engine.bench.plan import DEFAULT_DEPTHS, DEFAULT_PROMPT, make_plan, parse_depths
from engine.bench.progress_line import ProgressLine
from engine.checkpoints.foreign_files import shown
from engine.commands.loading import interrupt_as_event
from engine.commands.options import (
    add_common_options,
    engine_config,
    print_json,
    print_notices,
    terminal_text,
)
from engine.errors import Cancelled, SettingError
from engine.progress import LoadProgress, LoadStage
from engine.wording import format_tokens

if TYPE_CHECKING:
    from engine.bench.run import Figures


def add_parser(commands: Any) -> None:
    parser = commands.add_parser("bench", help="measure how fast a model computes on this machine")
    add_common_options(parser)
    parser.add_argument(
        "--random-weights",
        action="store_true",
        help="take only the configuration from PATH, which may be a file like config.json, and make weights",
    )
    measured = parser.add_argument_group("what is measured")
    usual = ",".join(map(str, DEFAULT_DEPTHS))
    measured.add_argument(
        "--depths",
        metavar="N,N",
        help=f"tokens that are cached when others are written (default: {usual}, as the context allows)",
    )
    measured.add_argument(
        "--prompt", type=int, metavar="N", help=f"tokens that are read at once (default: {DEFAULT_PROMPT:,})"
    )
    measured.add_argument(
        "--tokens", type=int, metavar="N", default=64, help="tokens that are written (default: 64)"
    )
    measured.add_argument(
        "--repeats", type=int, metavar="N", default=5, help="of which the median counts (default: 5)"
    )
    measured.add_argument(
        "--interleave",
        type=int,
        metavar="N",
        default=0,
        help="also measure so many conversations that take turns, token by token",
    )
    measured.add_argument(
        "--reused", type=int, metavar="N", default=0, help="also measure a turn behind so many cached tokens"
    )
    measured.add_argument(
        "--turn", type=int, metavar="N", default=32, help="new tokens of that turn (default: 32)"
    )
    measured.add_argument(
        "--phases", action="store_true", help="also measure each kind of work of a token by itself, on a card"
    )
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    config = engine_config(options)
    if is_configuration(options.path) and not options.random_weights:
        raise SettingError(
            f"{shown(options.path)} is a configuration, and no weights are with it.",
            "Add --random-weights, or give the folder of the whole model.",
        )
    plan_for = functools.partial(
        make_plan,
        depths=None if options.depths is None else parse_depths(options.depths),
        prompt=options.prompt,
        tokens=options.tokens,
        repeats=options.repeats,
        conversations=options.interleave,
        reused=options.reused,
        turn=options.turn,
        phases=options.phases,
    )
    with interrupt_as_event() as interrupted, ProgressLine(sys.stderr) as line:
        times = LoadTimes(line)
        times(LoadProgress(LoadStage.RUNTIME))
        from engine.bench.run import run_bench  # brings torch in

        try:
            figures = run_bench(
                options.path,
                config,
                plan_for,
                random_weights=options.random_weights,
                times=times,
                say=line.say,
                cancel=interrupted,
            )
        except Cancelled as error:
            raise KeyboardInterrupt from error
    _print(figures, as_json=options.json)
    return 0


def _print(figures: Figures, *, as_json: bool) -> None:
    if as_json:
        print_json({**figures.json, "notices": [notice.as_json() for notice in figures.notices]})
        return
    print_notices(figures.notices)
    print(terminal_text("\n".join(_lines(figures.json))))


def _lines(found: dict[str, Any]) -> list[str]:
    bandwidth = found["bandwidth_bytes_per_second"]
    lines = [
        f"{found['model']}: {found['weights']} weights, {found['activations']} activations, "
        f"{found['kv']} cache",
        f"on {found['device_description']}" + (f", driver {found['driver']}" if found["driver"] else ""),
        f"loaded in {found['load_seconds']:.2f} s ({_stages(found['load_stages'])})",
        "memory read at " + ("an unknown rate" if bandwidth is None else f"{bandwidth / 1e9:,.0f} GB/s"),
        f"first token {found['first_token']['cold_milliseconds']:,.1f} ms, then "
        f"{found['first_token']['warm_milliseconds']:,.1f} ms",
    ]
    lines += [
        f"prompt of {each['tokens']:,} at depth {each['depth']:,}: {each['tokens_per_second']:,.0f} tok/s"
        for each in found["prefill"]
    ]
    lines += [
        f"decode at depth {each['depth']:,}: {each['tokens_per_second']:,.1f} tok/s, "
        f"{each['milliseconds_per_token']:.3f} ms{_share(each['roofline_fraction'])}"
        for each in found["decode"]
    ]
    lines.append(f"copies a token: {found['h2d_per_token']:.3g} up, {found['d2h_per_token']:.3g} down")
    if "interleaved" in found:
        each = found["interleaved"]
        lines.append(
            f"{each['conversations']:,} conversations by turns: "
            f"{each['milliseconds_per_token']:.3f} ms a token, {100 * each['cost']:+.1f}%"
        )
    if "reused" in found:
        each = found["reused"]
        lines.append(
            f"a turn of {format_tokens(each['turn'])} behind {each['tokens']:,}: first token after "
            f"{each['first_token_milliseconds']:,.1f} ms"
        )
    for each in found.get("phases", ()):
        lines += _phase_lines(each)
    return lines


def _stages(stages: dict[str, float]) -> str:
    return ", ".join(f"{name} {seconds:.2f}" for name, seconds in stages.items())


def _share(fraction: float | None) -> str:
    return "" if fraction is None else f", {fraction:.0%} of what reading allows"


def _phase_lines(found: dict[str, Any]) -> list[str]:
    lost = found["lost_microseconds_per_launch"]
    lines = [
        f"phases at depth {found['depth']:,}: {found['launches']:,} launches, "
        f"{found['microseconds_of_phases']:,.0f} of {found['microseconds_of_a_token']:,.0f} µs"
        + ("" if lost is None else f", {lost:.2f} µs lost a launch")
    ]
    for each in found["phases"]:
        share = each["bandwidth_fraction"]
        lines.append(
            f"  {each['kernel']:36} {each['name']:16} {each['launches']:5,} x {each['microseconds']:8.2f} µs "
            f"{each['bytes'] / 1e6:9.3f} MB" + ("" if share is None else f" {share:6.0%}")
        )
    return lines
