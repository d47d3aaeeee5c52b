"""The commands of the bootstrap. What they start is replaced by small programs that tell what they got."""

from __future__ import annotations

import ast
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

import bootstrap
import setup_commands
import system_libraries
from system_libraries import Missing
from virtual_environment import SetupError

PACKAGING = Path(bootstrap.__file__).parent

# A module that prints its name and arguments, and the messages file if it is given one; it exits with CODE.
PROGRAM = """
import json, pathlib, sys
print(json.dumps([pathlib.Path(__file__).parent.name, sys.argv[1:]]))
if "--messages" in sys.argv:
    print(pathlib.Path(sys.argv[sys.argv.index("--messages") + 1]).read_text(encoding="utf-8"))
sys.exit(CODE)
"""


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkout that is set up already; the programs in it succeed unless a test says otherwise."""
    root = tmp_path / "checkout"
    monkeypatch.setattr(setup_commands, "ROOT", root)
    for name in ("app", "engine", "ruff", "mypy", "pytest"):
        program(root, name, code=0)
    environment = SimpleNamespace(python=Path(sys.executable), variables=lambda: dict(os.environ))
    monkeypatch.setattr(setup_commands, "_environment", lambda extras: environment)
    monkeypatch.setattr(setup_commands, "_provide_libraries", lambda *_: None)
    monkeypatch.setattr(setup_commands, "_provide_compiler", lambda _: None)
    monkeypatch.setattr(setup_commands.card_packages, "provide", lambda _: None)
    monkeypatch.setattr(setup_commands, "_starter", lambda _: Path("/cache/starter.gguf"))
    for name in ("DISPLAY", "WAYLAND_DISPLAY", "QT_QPA_PLATFORM"):
        monkeypatch.delenv(name, raising=False)
    return root


def program(root: Path, name: str, *, code: int) -> None:
    (root / name).mkdir(parents=True, exist_ok=True)
    (root / name / "__init__.py").touch()  # else the real package of that name wins
    (root / name / "__main__.py").write_text(PROGRAM.replace("CODE", str(code)))


def lines(capfd: pytest.CaptureFixture[str]) -> list[list[object]]:
    """What the programs said of themselves."""
    return [json.loads(line) for line in capfd.readouterr().out.splitlines() if line.startswith("[")]


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="elsewhere there is always a screen")
def test_without_a_screen_one_sentence_names_ask_and_nothing_is_installed(
    checkout: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(setup_commands, "_environment", None)  # calling it would raise
    assert bootstrap.main(["run"]) == 2
    error = capfd.readouterr().err
    assert error.count("\n") == 1
    assert 'run --ask "your question"' in error


def test_run_opens_the_window_on_the_starter_model(
    checkout: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("DISPLAY", ":0")
    assert bootstrap.main(["run"]) == 0
    assert lines(capfd) == [["app", ["/cache/starter.gguf"]]]


def test_model_is_found_from_the_persons_own_folder(
    checkout: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("DISPLAY", ":0")
    (tmp_path / "模型 one").mkdir()
    monkeypatch.chdir(tmp_path)
    assert bootstrap.main(["run", "模型 one"]) == 0
    assert lines(capfd) == [["app", [str(tmp_path / "模型 one")]]]


def test_absent_model_is_a_persons_mistake(checkout: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert bootstrap.main(["run", "nowhere", "--ask", "hello"]) == 2
    assert "There is no model folder or GGUF file at nowhere." in capfd.readouterr().err


@pytest.mark.parametrize(
    "question", ["Why is it so?", "--what", 'quotes " and \\ and\nlines', "天为什么是蓝的？"]
)
def test_question_reaches_the_engine_as_it_was_typed(
    checkout: Path, capfd: pytest.CaptureFixture[str], question: str
) -> None:
    assert bootstrap.main(["run", f"--ask={question}"]) == 0
    (name, arguments), message = lines(capfd)
    assert (name, arguments[:3]) == ("engine", ["generate", "/cache/starter.gguf", "--messages"])
    assert message == [{"role": "user", "content": question}]


def test_exit_code_of_the_answer_is_passed_on(checkout: Path) -> None:
    program(checkout, "engine", code=7)
    assert bootstrap.main(["run", "--ask", "hello"]) == 7


def test_empty_question_is_a_persons_mistake(checkout: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert bootstrap.main(["run", "--ask", "  "]) == 2
    assert "question is empty" in capfd.readouterr().err


def test_all_checks_run_and_pytest_comes_last_with_its_arguments(
    checkout: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert bootstrap.main(["test", "tests/engine", "-k", "stream", "-x"]) == 0
    assert lines(capfd) == [
        ["ruff", ["check", "."]],
        ["ruff", ["format", "--check", "."]],
        ["mypy", []],
        ["pytest", ["tests/engine", "-k", "stream", "-x"]],
    ]


def test_all_tests_run_in_several_processes(checkout: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert bootstrap.main(["test"]) == 0
    assert lines(capfd)[-1] == ["pytest", ["-n", "auto", "--dist", "worksteal"]]


@pytest.mark.parametrize(
    ("codes", "expected"),
    [
        ({"ruff": 1}, 1),
        ({"mypy": 2}, 2),
        ({"pytest": 5}, 5),
        ({"mypy": 2, "pytest": 1}, 2),
        ({"ruff": 3, "mypy": 2, "pytest": 1}, 3),
    ],
)
def test_exit_code_is_that_of_the_first_failure_and_the_rest_runs_all_the_same(
    checkout: Path, capfd: pytest.CaptureFixture[str], codes: dict[str, int], expected: int
) -> None:
    for name, code in codes.items():
        program(checkout, name, code=code)
    assert bootstrap.main(["test"]) == expected
    assert [name for name, _ in lines(capfd)] == ["ruff", "ruff", "mypy", "pytest"]


@pytest.mark.parametrize("arguments", [[], ["start"], ["run", "--asks", "x"], ["run", "a", "b"]])
def test_unknown_commands_and_options_are_refused(arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        bootstrap.main(arguments)
    assert stop.value.code == 2


@pytest.mark.parametrize("version", [(3, 10), (3, 14), (2, 7), (4, 0)])
def test_unfitting_python_gets_one_sentence(
    version: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bootstrap.shutil, "which", {"python3.12": "/usr/bin/python3.12"}.get)
    problem = bootstrap.version_problem(version)
    assert problem is not None
    assert "needs Python 3.11, 3.12 or 3.13" in problem
    assert "use python3.12 instead" in problem


@pytest.mark.parametrize("version", [(3, 11), (3, 12), (3, 13)])
def test_fitting_python_has_no_problem(version: tuple[int, int]) -> None:
    assert bootstrap.version_problem(version) is None


def test_bootstrap_itself_needs_nothing_newer_than_its_sentence_about_old_pythons() -> None:
    """Compiled as for Python 3.7: a syntax error there would come before the sentence."""
    ast.parse((PACKAGING / "bootstrap.py").read_text(encoding="utf-8"), feature_version=(3, 7))


@pytest.mark.skipif(os.name != "posix", reason="signals to a process group")
def test_ctrl_c_ends_the_program_by_its_own_way_and_passes_its_code_on(tmp_path: Path) -> None:
    program_text = """
import signal, sys
try:
    print("ready", flush=True)
    signal.pause()
except KeyboardInterrupt:
    print("saved", flush=True)
    sys.exit(130)
"""
    (tmp_path / "program.py").write_text(program_text)
    caller = (
        f"import sys, os; sys.path.insert(0, {str(PACKAGING)!r}); import setup_commands;"
        f"sys.exit(setup_commands.call([sys.executable, {str(tmp_path / 'program.py')!r}], os.environ))"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", caller],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    os.killpg(process.pid, signal.SIGINT)
    out, error = process.communicate(timeout=60)
    assert (out, error, process.returncode) == ("saved\n", "", 130)


class TestLibraries:
    """What happens when Qt lacks libraries, by who asks and on which system."""

    @pytest.fixture
    def environment(self, tmp_path: Path) -> SimpleNamespace:
        (tmp_path / "setup.log").write_text("E: no such package\n")
        return SimpleNamespace(site_packages=lambda: tmp_path, log=tmp_path / "setup.log")

    @staticmethod
    def on(
        monkeypatch: pytest.MonkeyPatch,
        *,
        lacking: dict[str, tuple[str, ...]],
        root: bool,
        debian: bool,
        apt_works: bool = True,
    ) -> list[tuple[str, ...]]:
        """A system on which platforms lack these libraries; returns the list of what apt was asked for."""
        asked: list[tuple[str, ...]] = []

        def apt(packages: tuple[str, ...], log: Path) -> bool:
            asked.append(packages)
            if apt_works:
                lacking.clear()
            return apt_works

        monkeypatch.setattr(
            system_libraries, "missing_libraries", lambda _, platform: Missing(lacking.get(platform, ()))
        )
        monkeypatch.setattr(system_libraries, "is_root", lambda: root)
        monkeypatch.setattr(system_libraries, "is_debian", lambda: debian)
        monkeypatch.setattr(system_libraries, "apt_install", apt)
        return asked

    def test_root_on_debian_has_them_installed(
        self, environment: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        asked = self.on(monkeypatch, lacking={"xcb": ("libxcb-cursor.so.0",)}, root=True, debian=True)
        setup_commands._provide_libraries(environment, ("xcb",))
        assert asked == [("libxcb-cursor0",)]

    def test_another_user_is_told_the_exact_command(
        self, environment: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        asked = self.on(monkeypatch, lacking={"xcb": ("libxcb-cursor.so.0",)}, root=False, debian=True)
        with pytest.raises(SetupError, match=r"sudo apt-get install .* libxcb-cursor0"):
            setup_commands._provide_libraries(environment, ("xcb",))
        assert asked == []

    def test_one_platform_that_works_is_enough(
        self, environment: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        asked = self.on(monkeypatch, lacking={"xcb": ("libxcb-cursor.so.0",)}, root=True, debian=True)
        setup_commands._provide_libraries(environment, ("wayland", "xcb"))
        assert asked == []

    def test_other_systems_are_told_the_names_of_the_libraries(
        self, environment: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        self.on(monkeypatch, lacking={"xcb": ("libEGL.so.1", "libX11.so.6")}, root=True, debian=False)
        with pytest.raises(SetupError, match=r"libEGL\.so\.1, libX11\.so\.6"):
            setup_commands._provide_libraries(environment, ("xcb",))

    def test_failed_apt_shows_its_last_words_and_the_command(
        self, environment: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        lacking = {"offscreen": ("libEGL.so.1",)}
        self.on(monkeypatch, lacking=lacking, root=True, debian=True, apt_works=False)
        with pytest.raises(SetupError, match=r"(?s)libegl1.*no such package"):
            setup_commands._provide_libraries(environment, ("offscreen",))


class TestCompiler:
    """Who gets the compiler that some tests need. Without it everything else is tested all the same."""

    @pytest.fixture
    def asked(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
        """What apt was asked for, by root on a Debian that has no compiler."""
        asked: list[list[str]] = []
        monkeypatch.setattr(system_libraries, "is_root", lambda: True)
        monkeypatch.setattr(system_libraries, "is_debian", lambda: True)
        monkeypatch.setattr(system_libraries, "apt_install", lambda names, log: asked.append(names) or True)
        monkeypatch.delenv("CXX", raising=False)
        monkeypatch.setenv("PATH", str(tmp_path))
        return asked

    @pytest.fixture
    def environment(self, tmp_path: Path) -> SimpleNamespace:
        return SimpleNamespace(log=tmp_path / "setup.log")

    def test_root_on_debian_has_it_installed(
        self, asked: list[list[str]], environment: SimpleNamespace, capfd: pytest.CaptureFixture[str]
    ) -> None:
        setup_commands._provide_compiler(environment)
        assert asked == [["g++"]]
        assert "skipped" not in capfd.readouterr().err

    @pytest.mark.parametrize("name", ["g++", "clang++"])
    def test_one_that_is_there_is_taken(
        self, asked: list[list[str]], environment: SimpleNamespace, tmp_path: Path, name: str
    ) -> None:
        (tmp_path / name).touch(mode=0o755)
        setup_commands._provide_compiler(environment)
        assert asked == []

    @pytest.mark.parametrize("lacks", ["is_root", "is_debian"])
    def test_others_are_told_what_is_skipped(
        self,
        asked: list[list[str]],
        environment: SimpleNamespace,
        monkeypatch: pytest.MonkeyPatch,
        capfd: pytest.CaptureFixture[str],
        lacks: str,
    ) -> None:
        monkeypatch.setattr(system_libraries, lacks, lambda: False)
        setup_commands._provide_compiler(environment)
        assert asked == []
        assert "no C++ compiler here (g++)" in capfd.readouterr().err

    def test_failed_apt_ends_nothing(
        self,
        asked: list[list[str]],
        environment: SimpleNamespace,
        monkeypatch: pytest.MonkeyPatch,
        capfd: pytest.CaptureFixture[str],
    ) -> None:
        monkeypatch.setattr(system_libraries, "apt_install", lambda *_: False)
        setup_commands._provide_compiler(environment)
        assert "skipped" in capfd.readouterr().err
