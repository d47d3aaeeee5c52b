"""Many tokens and operations on conversations, and what they leave of the card's memory. Needs a card.

    python benchmarks/card_endurance.py MODEL [--weights q4] [--tokens 10000] [--operations 500]

First a warm-up with conversations as long as any later, so that all that is taken once has been taken.
Then the tokens, in answers of 1,000 in two conversations that take turns; then the operations, drawn at
random with a fixed seed: an answer that goes on, one that goes back to an earlier place, a fork, one
that is forgotten, more conversations than there are slots. What the driver says is free is compared
before and after.

One JSON object on the last line.
"""

from __future__ import annotations

import argparse
import json
import random
import tempfile
import time
from pathlib import Path
from typing import Any

from engine.checkpoints.model_folder import open_model
from engine.config import EngineConfig
from engine.cuda.availability import NoCard, find_card
from engine.engine import Engine
from engine.generation import Finished, GenerationRequest, SamplingParams
from engine.runtime import default_threads, prepare_runtime

ANSWER = 1000  # tokens of the long answers
LONGEST = 5  # of these, of one conversation
PROMPT = tuple(range(100, 300))
CONVERSATIONS = 12  # more than there are slots


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", type=Path)
    parser.add_argument("--weights", default="q4", choices=["native", "q8", "q4"])
    parser.add_argument("--tokens", type=int, default=10_000)
    parser.add_argument("--operations", type=int, default=500)
    options = parser.parse_args()
    card = find_card()
    if isinstance(card, NoCard):
        raise SystemExit(f"There is no card: {card.reason}.")
    prepare_runtime(default_threads())
    with tempfile.TemporaryDirectory() as folder:
        config = EngineConfig(
            device="cuda", weights=options.weights, states_folder=Path(folder), context=8192, slots=8
        )
        engine = Engine.load(open_model(options.model), config)
        try:
            result = measured(engine, options.tokens, options.operations)
        finally:
            engine.close()
    print(json.dumps({"card": card.name, "driver": card.driver, "weights": options.weights, **result}))


def measured(engine: Engine, tokens: int, operations: int) -> dict[str, Any]:
    life = Life(engine)
    for name in ("long 0", "long 1"):
        for _ in range(LONGEST):
            life.answer(name, ANSWER)
    for name in range(CONVERSATIONS):
        life.answer(str(name), 8)
    life.forget_all()
    start = used_bytes(engine)
    began = time.perf_counter()
    for turn in range(-(-tokens // ANSWER)):
        if turn % (2 * LONGEST) == 0:
            life.forget_all()  # before a context is full
        life.answer(f"long {turn % 2}", ANSWER)
    seconds = time.perf_counter() - began
    life.forget_all()
    after_tokens = used_bytes(engine)
    counts = life.operate(operations)
    life.forget_all()
    after_operations = used_bytes(engine)
    return {
        "tokens": life.tokens,
        "seconds_of_the_long_answers": round(seconds, 1),
        "operations": counts,
        "used_before": start,
        "grown_after_tokens": after_tokens - start,
        "grown_after_operations": after_operations - start,
        "devices": sorted(life.devices),
        "notices": sorted(life.notices),
    }


class Life:
    """What conversations there are, and what became of them."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._ids: dict[str, tuple[int, ...]] = {}
        self._random = random.Random(1)
        self.tokens = 0
        self.devices: set[str] = set()
        self.notices: set[str] = set()

    def answer(self, name: str, count: int) -> None:
        prompt = self._ids.get(name, PROMPT)
        request = GenerationRequest(
            prompt, SamplingParams(), max_new_tokens=count, ignore_eos=True, conversation=name
        )
        last = list(self._engine.generate(request))[-1]
        assert isinstance(last, Finished)
        assert len(last.token_ids) == count, last.finish_reason
        self._ids[name] = prompt + last.token_ids
        self.tokens += count
        self.devices.add(self._engine.summary.device)
        self.notices |= {notice.code for notice in last.notices}

    def forget(self, name: str) -> None:
        self._engine.forget(name)
        del self._ids[name]

    def forget_all(self) -> None:
        for name in list(self._ids):
            self.forget(name)

    def operate(self, count: int) -> dict[str, int]:
        done: dict[str, int] = dict.fromkeys(["go on", "go back", "fork", "forget", "begin"], 0)
        for number in range(count):
            what = self._random.choice(list(done))
            names = list(self._ids)
            if not names or (what == "begin" and len(names) < CONVERSATIONS):
                what = "begin"
                self.answer(f"number {number}", 4)
            elif what == "forget" or len(names) >= CONVERSATIONS:
                what = "forget"
                self.forget(self._random.choice(names))
            elif what == "fork":
                source = self._random.choice(names)
                self._engine.fork(f"number {number}", self._ids[source])
                self._ids[f"number {number}"] = self._ids[source]
                self.answer(f"number {number}", 4)
            else:
                what = "go back" if what == "go back" else "go on"
                name = self._random.choice(names)
                if what == "go back":
                    ids = self._ids[name]
                    self._ids[name] = ids[: self._random.randrange(len(PROMPT) // 2, len(ids))]
                self.answer(name, 4)
            done[what] += 1
        return done


def used_bytes(engine: Engine) -> int:
    """Of the card's memory, by whomever."""
    time.sleep(1.1)  # what the driver said is believed for a second
    card = engine.metrics().memory.card
    assert card is not None
    return card.total_bytes - card.free_bytes


if __name__ == "__main__":
    main()
