"""`generate`: answers to a text, a chat, or lists of token ids; streamed as text, or as one JSON object."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from engine.commands.files import read_id_lists, read_messages
from engine.commands.loading import load_engine
from engine.commands.options import add_common_options, print_json, print_notices, terminal_text
from engine.engine import Engine
from engine.errors import SettingError
from engine.generation import (
    DeviceChanged,
    Finished,
    GenerationEvent,
    GenerationRequest,
    SamplingParams,
    TextDelta,
)
from engine.notices import Notice
from engine.templates.chat_template import ChatMessage, ChatPrompt

_SAMPLING_OPTIONS = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty", "seed")


def add_parser(commands: Any) -> None:
    parser = commands.add_parser(
        "generate",
        help="let a model write",
        description="How tokens are drawn follows the model's generation_config.json unless an option says "
        "otherwise; a model without one is greedy, and --temperature 0 always is.",
    )
    add_common_options(parser)
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--prompt", metavar="TEXT", help="a text to go on with, as it is")
    source.add_argument(
        "--messages", type=Path, metavar="FILE.json", help='a chat: [{"role": "user", "content": "Hi"}, ...]'
    )
    source.add_argument("--ids", type=Path, metavar="FILE.json", help="a list of lists of token ids")
    parser.add_argument(
        "--one-conversation",
        action="store_true",
        help="take the lists of --ids as turns of one conversation: what they share is read once",
    )
    ending = parser.add_argument_group("what ends an answer")
    ending.add_argument(
        "--max-new", type=int, metavar="N", help="tokens (default: until the context is full)"
    )
    ending.add_argument("--stop", action="append", default=[], metavar="TEXT", help="may be given repeatedly")
    ending.add_argument("--ignore-eos", action="store_true", help="go on after an end token")
    sampling = parser.add_argument_group("how tokens are drawn")
    sampling.add_argument("--temperature", type=float, metavar="T")
    sampling.add_argument("--top-k", type=int, metavar="N")
    sampling.add_argument("--top-p", type=float, metavar="P")
    sampling.add_argument("--min-p", type=float, metavar="P")
    sampling.add_argument("--repetition-penalty", type=float, metavar="R")
    sampling.add_argument("--seed", type=int, metavar="N", help="the same seed gives the same answer")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    if options.one_conversation and options.ids is None:
        raise SettingError("--one-conversation is meant for --ids.", "Leave it out.")
    id_lists = read_id_lists(options.ids) if options.ids is not None else []
    messages = read_messages(options.messages) if options.messages is not None else []
    engine = load_engine(options)
    notices = list(engine.summary.notices)
    stop = tuple(options.stop)
    if not id_lists:
        prompt = _prompt(engine, options.prompt, messages)
        id_lists = [prompt.ids]
        notices += prompt.notices
        stop += prompt.stop
    # Requests are checked when they are handed over: a mistake in the last list is told before the first one
    # runs.
    answers = [engine.generate(_request(options, engine, ids, stop)) for ids in id_lists]
    if options.json:
        _print_outputs(engine, answers, notices)
    else:
        print_notices(notices)
        for answer in answers:
            _stream(answer)
        print_notices(engine.late_notices(wait=True))
    return 0


def _prompt(engine: Engine, prompt: str | None, messages: list[ChatMessage]) -> ChatPrompt:
    if prompt is None:
        return engine.chat_prompt(messages)
    try:
        prompt.encode()
    except UnicodeEncodeError as error:  # bytes that are no text come from the shell as lone surrogates
        raise SettingError("The prompt is not UTF-8 text.") from error
    return ChatPrompt(tuple(engine.encode(prompt)), prompt, ())


def _request(
    options: argparse.Namespace, engine: Engine, ids: tuple[int, ...], stop: tuple[str, ...]
) -> GenerationRequest:
    return GenerationRequest(
        prompt_ids=ids,
        sampling=_sampling(options, engine.summary.sampling_defaults),
        max_new_tokens=options.max_new,
        stop=stop,
        ignore_eos=options.ignore_eos,
        conversation="command line" if options.one_conversation else "",
    )


def _sampling(options: argparse.Namespace, defaults: SamplingParams) -> SamplingParams:
    given = {name: getattr(options, name) for name in _SAMPLING_OPTIONS}
    return replace(defaults, **{name: value for name, value in given.items() if value is not None})


def _print_outputs(engine: Engine, answers: list[Iterator[GenerationEvent]], notices: list[Notice]) -> None:
    outputs = []
    for answer in answers:
        for event in answer:
            if isinstance(event, DeviceChanged):
                notices.append(event.notice)
            elif isinstance(event, Finished):
                outputs.append(event.as_json())
                notices += event.notices
    notices += engine.late_notices(wait=True)
    print_json(
        {
            "outputs": outputs,
            "device": engine.summary.device,
            "metrics": engine.metrics().as_json(),
            "notices": [notice.as_json() for notice in notices],
        }
    )


def _stream(answer: Iterator[GenerationEvent]) -> None:
    """Text as it comes, and a line break behind it."""
    clean = terminal_text if sys.stdout.isatty() else str
    for event in answer:
        if isinstance(event, TextDelta):
            print(clean(event.text), end="", flush=True)
        elif isinstance(event, DeviceChanged):
            print_notices([event.notice])
        elif isinstance(event, Finished):
            print(flush=True)
            print_notices(event.notices)
