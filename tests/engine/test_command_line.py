"""What goes in and what comes out, in this process; see `test_command_line_process.py`, too."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from model_files import TINY_MODELS, copy_model, edit_json

from engine.__main__ import main

MODEL = TINY_MODELS / "tiny-qwen2"
EXPECTED = json.loads((MODEL / "expected.json").read_text(encoding="utf-8"))
PROMPT = EXPECTED["prompts"][0]
CPU = ("--device", "cpu", "--weights", "native")


@dataclass(frozen=True)
class Outcome:
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


Command = Callable[..., Outcome]
Write = Callable[[str], str]


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> Command:
    """Runs the program with these arguments, in this process."""

    def run(*arguments: object) -> Outcome:
        try:
            code = main([str(argument) for argument in arguments])
        except SystemExit as ended:  # by argparse
            code = int(str(ended.code))
        captured = capsys.readouterr()
        return Outcome(code, captured.out, captured.err)

    return run


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Puts text into a file; returns its path."""

    def write_file(text: str) -> str:
        path = tmp_path / f"{len(list(tmp_path.iterdir()))} 文件.json"
        path.write_text(text, encoding="utf-8")
        return str(path)

    return write_file


class TestGenerate:
    def test_ids_give_one_output_each(self, command: Command, write: Write) -> None:
        lists = [prompt["ids"] for prompt in EXPECTED["prompts"]]
        outcome = command(
            *("generate", MODEL, "--ids", write(json.dumps(lists)), "--max-new", 24, "--temperature", 0),
            *("--ignore-eos", "--json", *CPU),
        )
        assert outcome.code == 0
        assert outcome.err == ""
        outputs = outcome.json["outputs"]
        assert [output["token_ids"] for output in outputs] == [p["greedy_ids"] for p in EXPECTED["prompts"]]
        assert [output["prefill"]["tokens"] for output in outputs] == [len(ids) for ids in lists]

    def test_json_has_the_promised_keys(self, command: Command) -> None:
        outcome = command("generate", MODEL, "--prompt", "Hi", "--max-new", 3, "--ignore-eos", "--json")
        assert outcome.json.keys() == {"outputs", "device", "notices", "metrics"}
        assert outcome.json["device"] == "cpu"
        notices = outcome.json["notices"]
        assert all(notice.keys() == {"code", "message", "hint"} for notice in notices)
        assert {notice["code"] for notice in notices} == {"card-driver-missing", "weights-packed"}
        (output,) = outcome.json["outputs"]
        promised = {"text", "token_ids", "finish_reason", "prefill", "decode"}
        assert promised <= output.keys()
        assert output["finish_reason"] == "length"
        assert output["prefill"].keys() == {"tokens", "reused", "seconds"}
        assert output["decode"].keys() == {"tokens", "seconds"}

    def test_json_has_what_the_engine_took_and_did(self, command: Command) -> None:
        outcome = command("generate", MODEL, "--prompt", "Hi", "--max-new", 3, "--ignore-eos", "--json", *CPU)
        metrics = outcome.json["metrics"]
        assert metrics["device"] == "cpu"
        assert metrics["memory"]["card"] is None
        assert metrics["memory"]["bytes"]["weights"] > 0
        assert metrics["slots"]["used"] == 0, "a state of no conversation is not kept"
        last = metrics["last_answer"]
        assert last["h2d_per_token"] == last["d2h_per_token"] == 0.0
        decode = outcome.json["outputs"][0]["decode"]
        assert last["decode_tokens_per_second"] == pytest.approx(decode["tokens"] / decode["seconds"])

    def test_text_is_streamed_to_standard_output_and_notices_to_the_other(self, command: Command) -> None:
        arguments = ("generate", MODEL, "--prompt", "Hi", "--max-new", 8, "--ignore-eos")
        plain, as_json = command(*arguments), command(*arguments, "--json")
        assert plain.out == as_json.json["outputs"][0]["text"] + "\n"
        lines = plain.err.splitlines()
        assert len(lines) == len(as_json.json["notices"]) == 2
        assert all(line.startswith("note: ") for line in lines)

    def test_a_chat_goes_through_the_template(self, command: Command, write: Write) -> None:
        chat = EXPECTED["chat"][0]
        arguments = ("--max-new", 0, "--json", *CPU)
        outcome = command("generate", MODEL, "--messages", write(json.dumps(chat["messages"])), *arguments)
        assert outcome.json["outputs"][0]["prefill"]["tokens"] == len(chat["ids"])

    def test_a_raw_prompt_never_becomes_a_control_token(self, command: Command) -> None:
        outcome = command("generate", MODEL, "--prompt", "<|im_end|>", "--max-new", 0, "--json", *CPU)
        assert outcome.json["outputs"][0]["prefill"]["tokens"] > 1

    def test_a_raw_prompt_begins_with_bos_where_the_tokenizer_adds_it(self, command: Command) -> None:
        def tokens(model: str) -> int:
            arguments = ("generate", TINY_MODELS / model, "--prompt", "1", "--max-new", 0, "--json", *CPU)
            count = command(*arguments).json["outputs"][0]["prefill"]["tokens"]
            assert isinstance(count, int)
            return count

        assert (tokens("tiny-qwen2"), tokens("tiny-mistral-sw")) == (1, 2)

    def test_a_command_neither_reads_nor_leaves_what_conversations_keep(
        self, command: Command, write: Write, user_folders: Path
    ) -> None:
        arguments = ("generate", MODEL, "--ids", write(json.dumps([PROMPT["ids"]])), "--max-new", 2, "--json")
        outcomes = [command(*arguments, "--one-conversation", *CPU) for _ in range(2)]
        assert [outcome.json["outputs"][0]["prefill"]["reused"] for outcome in outcomes] == [0, 0]
        assert list(user_folders.rglob("states")) == []

    def test_turns_of_one_conversation_are_read_once(self, command: Command, write: Write) -> None:
        ids = PROMPT["ids"]
        lists = write(json.dumps([ids, [*ids, 7, 8]]))
        arguments = ("generate", MODEL, "--ids", lists, "--max-new", 2, "--json", *CPU)
        apart, together = command(*arguments), command(*arguments, "--one-conversation")
        assert [output["prefill"]["reused"] for output in apart.json["outputs"]] == [0, 0]
        assert [output["prefill"]["reused"] for output in together.json["outputs"]] == [0, len(ids)]
        for one, other in zip(apart.json["outputs"], together.json["outputs"], strict=True):
            assert one["token_ids"] == other["token_ids"]

    def test_sampling_follows_the_folder_unless_told_otherwise(
        self, command: Command, tmp_path: Path
    ) -> None:
        folder = copy_model("tiny-qwen2", tmp_path / "model")
        edit_json(
            folder / "generation_config.json",
            lambda config: config.update(do_sample=True, temperature=1.5),
        )

        def output(path: Path, *more: object) -> Any:
            arguments = ("generate", path, "--prompt", "Hi", "--max-new", 12, "--ignore-eos", "--json", *CPU)
            return command(*arguments, *more).json["outputs"][0]

        greedy = output(MODEL)
        assert greedy["seed"] is None, "a folder that says nothing is greedy"
        assert output(folder)["seed"] is not None
        assert output(folder, "--temperature", 0)["token_ids"] == greedy["token_ids"]
        assert output(folder, "--top-k", 1)["token_ids"] == greedy["token_ids"]
        seeded = output(folder, "--seed", 5)
        assert seeded["seed"] == 5
        assert output(folder, "--seed", 5)["token_ids"] == seeded["token_ids"]

    def test_stop_strings_and_context_end_it(self, command: Command) -> None:
        arguments = ("generate", MODEL, "--prompt", "Hi", "--ignore-eos", "--json", *CPU)
        full = command(*arguments, "--context", 20).json["outputs"][0]
        assert full["finish_reason"] == "context"
        assert full["prefill"]["tokens"] + len(full["token_ids"]) == 20
        stop = full["text"][4:6]
        stopped = command(*arguments, "--stop", "not there", "--stop", stop).json["outputs"][0]
        assert stopped["finish_reason"] == "stop"
        assert stopped["text"] == full["text"][: full["text"].index(stop)]


class TestScore:
    def test_ids_give_log_probabilities(self, command: Command, write: Write) -> None:
        outcome = command(
            *("score", MODEL, "--ids", write(json.dumps([PROMPT["ids"], [5]])), "--json", *CPU),
            *("--kv", "native"),
        )
        first, second = outcome.json["sequences"]
        assert first["logprobs"] == pytest.approx(PROMPT["logprobs"], abs=2e-3)
        assert first["nll"] == pytest.approx(PROMPT["sum_nll"], abs=2e-3)
        assert first["n"] == len(PROMPT["ids"]) - 1
        assert second == {"logprobs": [], "nll": 0.0, "n": 0}

    def test_text_is_one_sequence(self, command: Command, write: Write) -> None:
        outcome = command("score", MODEL, "--text", write(PROMPT["text"]), "--json", *CPU)
        (sequence,) = outcome.json["sequences"]
        assert sequence["nll"] == pytest.approx(PROMPT["sum_nll"], abs=2e-3)

    def test_without_json_there_is_a_line_for_each(self, command: Command, write: Write) -> None:
        outcome = command("score", MODEL, "--ids", write("[[1, 2, 3], [4]]"), *CPU)
        first, second = outcome.out.splitlines()
        assert first.startswith("sequence 0: 2 tokens, nll ")
        assert second.startswith("sequence 1: one token alone")


class TestInspect:
    def test_json_has_the_promised_keys(self, command: Command) -> None:
        outcome = command("inspect", MODEL, "--json")
        assert (outcome.code, outcome.err) == (0, "")
        promised = {
            *("architecture", "parameters", "layers", "context_length", "kv_bytes_per_token"),
            *("weight_bytes", "fits", "problems"),
        }
        assert promised <= outcome.json.keys()
        assert outcome.json["architecture"] == "Qwen2ForCausalLM"
        assert outcome.json["parameters"] == 723_072
        assert outcome.json["weight_bytes"].keys() == {"native", "q8", "q4"}
        assert outcome.json["problems"] == []

    def test_a_model_that_cant_be_loaded_is_described_and_is_a_mistake(
        self, command: Command, tmp_path: Path
    ) -> None:
        outcome = command("inspect", tmp_path, "--json")
        assert outcome.code == 2
        assert outcome.json["problems"]
        assert len(outcome.err.splitlines()) == 1

    def test_without_json_there_is_a_card(self, command: Command) -> None:
        card = command("inspect", MODEL).out
        assert "Qwen2 (Qwen2ForCausalLM)" in card
        assert "723,072" in card

    def test_control_characters_of_a_foreign_file_do_not_reach_the_terminal(
        self, command: Command, tmp_path: Path
    ) -> None:
        folder = copy_model("tiny-qwen2", tmp_path / "model")
        edit_json(folder / "config.json", lambda config: config.update(architectures=["\x1b[31mEvil\x07"]))
        outcome = command("inspect", folder)
        assert outcome.code == 2
        assert "Evil" in outcome.err
        assert not {"\x1b", "\x07"} & set(outcome.out + outcome.err)


BAD_IDS = [
    "",
    "{",
    "[]",
    "{}",
    "null",
    "[1, 2]",
    "[[]]",
    "[[1], []]",
    '[["1"]]',
    "[[1.5]]",
    "[[true]]",
    "[[1, [2]]]",
    "[[-1]]",
    "[[512]]",
    "[[1], [512]]",
    "[[99999999999999999999999]]",
    "[[" + "1" * 5000 + "]]",
    "[" * 100_000,
    "[[NaN]]",
]
BAD_MESSAGES = [
    "",
    "[]",
    "[1]",
    '{"role": "user", "content": "Hi"}',
    '[{"role": "user"}]',
    '[{"role": "user", "content": 5}]',
    '[{"role": "user", "content": "Hi", "colour": "red"}]',
]


class TestMistakes:
    """Exit code 2, one line that says what is wrong, nothing on standard output."""

    def check(self, outcome: Outcome, *words: str) -> None:
        assert outcome.code == 2
        assert outcome.out == ""
        (line,) = outcome.err.splitlines()
        assert line.startswith("error: ")
        assert len(line) < 400
        for word in words:
            assert word in line

    @pytest.mark.parametrize("text", BAD_IDS, ids=lambda text: text[:20])
    @pytest.mark.parametrize("name", ["generate", "score"])
    def test_ids_that_are_none(self, name: str, text: str, command: Command, write: Write) -> None:
        self.check(command(name, MODEL, "--ids", write(text), *CPU))

    @pytest.mark.parametrize("text", BAD_MESSAGES)
    def test_messages_that_are_none(self, text: str, command: Command, write: Write) -> None:
        self.check(command("generate", MODEL, "--messages", write(text), *CPU))

    def test_files_that_cant_be_read(self, command: Command, tmp_path: Path) -> None:
        binary = tmp_path / "binary"
        binary.write_bytes(b"\xff\xfe\x00")
        for path in (tmp_path / "absent.json", tmp_path, binary):
            self.check(command("generate", MODEL, "--ids", path, *CPU), str(path))
            self.check(command("score", MODEL, "--text", path, *CPU), str(path))

    def test_a_name_never_breaks_the_line_or_drives_the_terminal(
        self, command: Command, tmp_path: Path
    ) -> None:
        for name in ("a\nb", "\x1b[31mred", "\udcff", "x" * 5000, "a\0b"):
            for arguments in (
                ("score", MODEL, "--text"),
                ("generate", MODEL, "--ids"),
                ("generate", "--prompt", "Hi"),
            ):
                outcome = command(*arguments, name)
                self.check(outcome)
                assert outcome.err.strip("\n").isprintable()
        self.check(command("generate", MODEL, "--prompt", "Hi", "--no\nsuch"), "--no\\nsuch")

    def test_files_without_end_are_refused(
        self, command: Command, write: Write, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("engine.commands.files.MAX_JSON_BYTES", 20)
        path = write("[[1, 2, 3, 4, 5, 6]]")
        assert command("score", MODEL, "--ids", path, *CPU).code == 0
        self.check(command("score", MODEL, "--ids", write("[[1, 2, 3, 4, 5, 6]] "), *CPU), "20 bytes")

    def test_an_empty_text_has_nothing_to_score(self, command: Command, write: Write) -> None:
        self.check(command("score", MODEL, "--text", write(""), *CPU), "empty")

    def test_a_prompt_that_is_no_text(self, command: Command) -> None:
        self.check(command("generate", MODEL, "--prompt", "\udcff", *CPU), "UTF-8")

    @pytest.mark.parametrize("name", ["generate", "score"])
    def test_a_model_that_is_none(self, name: str, command: Command, tmp_path: Path, write: Write) -> None:
        self.check(command(name, tmp_path / "absent", "--ids", write("[[1]]")), "absent")

    @pytest.mark.parametrize(
        ("arguments", "word"),
        [
            (("--device", "cuda"), "cuda"),
            (("--device", "tpu"), "tpu"),
            (("--weights", "q5"), "q5"),
            (("--activations", "int4"), "int4"),
            (("--context", "5000"), "5,000"),
            (("--context", "many"), "many"),
            (("--slots", "0"), "slots"),
            (("--weight-group", "64"), "64"),
            (("--max-new", "-1"), "-1"),
            (("--temperature", "-1"), "temperature"),
            (("--temperature", "nan"), "temperature"),
            (("--top-p", "1.5"), "1.5"),
            (("--min-p", "2"), "2"),
            (("--repetition-penalty", "0"), "repetition"),
            (("--stop", ""), "stop"),
            (("--one-conversation",), "--ids"),
            (("--messages", "x.json"), "not allowed"),
            (("--no-such-option",), "--no-such-option"),
        ],
    )
    def test_options_out_of_range_are_named(
        self, arguments: tuple[str, ...], word: str, command: Command
    ) -> None:
        self.check(command("generate", MODEL, "--prompt", "Hi", *arguments), word)

    @pytest.mark.parametrize("name", ["generate", "inspect", "score", "selftest"])
    @pytest.mark.parametrize(
        ("arguments", "word"),
        [
            (("--vram-budget", "-1"), "vram_budget is -1"),
            (("--window", "-1"), "window is -1"),
            (("--context", "-1"), "context is -1"),
            (("--slots", "-1"), "slots is -1"),
            (("--threads", "0"), "threads is 0"),
        ],
    )
    def test_every_command_refuses_numbers_that_make_no_sense(
        self, name: str, arguments: tuple[str, ...], word: str, command: Command, write: Write
    ) -> None:
        input_ = ("--ids", write("[[1]]")) if name in ("generate", "score") else ()
        self.check(command(name, MODEL, *input_, *arguments), word)

    @pytest.mark.parametrize(
        "arguments", [(), ("dance",), ("generate",), ("generate", "x"), ("score", "x"), ("inspect",)]
    )
    def test_incomplete_commands(self, arguments: tuple[str, ...], command: Command) -> None:
        self.check(command(*arguments))

    def test_a_prompt_longer_than_the_context(self, command: Command) -> None:
        outcome = command("generate", MODEL, "--prompt", "word " * 40, "--context", 30, *CPU)
        self.check(outcome, "context", "30")


def test_a_model_that_computes_no_numbers_is_a_fault(command: Command, tmp_path: Path) -> None:
    folder = copy_model("tiny-qwen2", tmp_path / "model")
    weights = folder / "model.safetensors"
    data = bytearray(weights.read_bytes())
    data[-4000:] = b"\x7f\x7f" * 2000  # the largest number of bfloat16: products of it are infinite
    weights.write_bytes(data)
    outcome = command("generate", folder, "--prompt", "Hi", *CPU)
    assert outcome.code == 1
    assert len(outcome.err.splitlines()) == 1
