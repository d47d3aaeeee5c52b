"""Commands whose card fails: texts are scored on the CPU then, and the self-test says why it can't be."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from emulated_card import Counts, EmulatedCard, EmulatedCompiler

from engine.__main__ import main
from engine.commands.loading import load_engine
from engine.engine import Engine

MODEL = Path(__file__).resolve().parents[1] / "models" / "tiny-qwen2"
COMMON = (str(MODEL), "--json", "--weights", "q8", "--activations", "int8x2", "--context", "256")

MakeCard = Callable[..., EmulatedCard]
Command = Callable[..., tuple[int, str, str]]


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> Command:
    """Exit code, standard output and error."""

    def run(name: str, *arguments: str) -> tuple[int, str, str]:
        code = main([name, *COMMON, *arguments])
        return (code, *capsys.readouterr())

    return run


@pytest.fixture
def use(card_compiler: EmulatedCompiler, monkeypatch: pytest.MonkeyPatch) -> Callable[[EmulatedCard], None]:
    def use_card(card: EmulatedCard) -> None:
        monkeypatch.setattr("engine.card_loading.find_card", lambda: card.info)
        monkeypatch.setattr("engine.cuda.availability.open_card", lambda: card)
        monkeypatch.setattr("engine.cuda.nvrtc_compiler.NvrtcCompiler", lambda cache: card_compiler)

    return use_card


@pytest.fixture
def after_load(
    make_card: MakeCard,  # whose cards are looked at when the engines are closed
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Callable[[Callable[[], None]], None]]:
    """Has something happen between a command's load and its work."""
    engines: list[Engine] = []

    def do(action: Callable[[], None]) -> None:
        def load(options: argparse.Namespace) -> Engine:
            engines.append(load_engine(options))
            action()
            return engines[-1]

        for name in ("score", "selftest"):
            monkeypatch.setattr(f"engine.commands.{name}.load_engine", load)

    yield do
    for engine in engines:  # a command leaves that to the end of its process
        engine.close()


@pytest.fixture
def ids(tmp_path: Path) -> Path:
    path = tmp_path / "ids.json"
    path.write_text(json.dumps([list(range(5, 75)), list(range(90, 80, -1))]))
    return path


def test_texts_are_scored_on_the_cpu_once_the_card_is_lost(
    command: Command,
    use: Callable[[EmulatedCard], None],
    after_load: Callable[[Callable[[], None]], None],
    make_card: MakeCard,
    ids: Path,
) -> None:
    """A sequence is of one device: what was read of it is read again."""
    code, out, _ = command("score", "--device", "cpu", "--ids", str(ids))
    assert code == 0
    on_cpu = json.loads(out)["sequences"]

    card = make_card()
    use(card)
    after_load(lambda: setattr(card, "counts", Counts()))
    code, out, _ = command("score", "--device", "cuda", "--ids", str(ids))
    assert (code, json.loads(out)["device"]) == (0, "cuda")
    on_card = json.loads(out)["sequences"]
    last = card.counts.calls

    for call in (1, last // 3, last * 2 // 3, last - 4):
        card = make_card()
        use(card)
        after_load(lambda card=card, call=call: card.lose_at_call(call))
        code, out, _ = command("score", "--device", "cuda", "--ids", str(ids))
        found = json.loads(out)
        assert (code, found["device"]) == (0, "cpu")
        assert [notice["code"] for notice in found["notices"]].count("card-lost-meanwhile") == 1
        assert found["sequences"][1] == on_cpu[1]
        assert found["sequences"][0] in (on_cpu[0], on_card[0])
    assert found["sequences"][0] == on_card[0], "the first one was complete by then"


def test_the_self_test_ends_with_its_card_and_says_so(
    command: Command,
    use: Callable[[EmulatedCard], None],
    after_load: Callable[[Callable[[], None]], None],
    make_card: MakeCard,
) -> None:
    """Half of it on the CPU would compare bits of two devices."""
    for call in (1, 100):
        card = make_card()
        use(card)
        after_load(lambda card=card, call=call: card.lose_at_call(call))
        code, out, err = command("selftest", "--device", "cuda")
        assert (code, out) == (1, "")
        assert err.count("\n") == 1
        assert "The self-test ends, because runs on two devices can't be compared" in err
