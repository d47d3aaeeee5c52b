"""What Qt lacks is read off the linker's answer, and turned into a command that a person can type."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import PySide6
import pytest

import system_libraries
from system_libraries import (
    DEBIAN_PACKAGES,
    PLATFORM_FILES,
    Missing,
    apt_install,
    install_command,
    is_debian,
    missing_libraries,
    parse_ldd,
    screen_platforms,
)

linux_only = pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="only Linux shares these libraries"
)


def test_names_come_from_the_lines_marked_not_found() -> None:
    answer = """
/venv/Qt/plugins/platforms/libqxcb.so:
\tlinux-vdso.so.1 (0x00007ffd0a5f0000)
\tlibQt6XcbQpa.so.6 => /venv/Qt/plugins/platforms/../../lib/libQt6XcbQpa.so.6 (0x00007f)
\tlibxcb-cursor.so.0 => not found
\tlibEGL.so.1 => not found
\tlibc.so.6 => /lib/x86_64-linux-gnu/libc.so.6 (0x00007f)
/venv/Qt/lib/libQt6Widgets.so.6:
\tlibEGL.so.1 => not found
\tlibQt6Pdf.so.6 => not found
"""
    assert parse_ldd(answer) == ("libEGL.so.1", "libxcb-cursor.so.0")


def test_packages_are_named_once_and_unknown_libraries_by_their_own_name() -> None:
    missing = Missing(("libglib-2.0.so.0", "libgthread-2.0.so.0", "libnever-heard-of.so.7"))
    assert missing.packages == ("libglib2.0-0",)
    assert missing.unknown == ("libnever-heard-of.so.7",)
    assert not Missing(())


def test_command_is_complete() -> None:
    command = install_command(["libegl1", "libxcb-cursor0"])
    assert command.startswith("sudo apt-get update && sudo apt-get install -y")
    assert command.endswith("libegl1 libxcb-cursor0")


@linux_only
@pytest.mark.parametrize("platform", PLATFORM_FILES)
def test_installed_qt_has_the_files_that_are_asked_about(platform: str) -> None:
    """A file that a new Qt has renamed would make the question, and so the answer, empty."""
    folder = Path(PySide6.__file__).parent
    assert [name for name in PLATFORM_FILES[platform] if not (folder / name).exists()] == []


@linux_only
def test_nothing_is_missing_for_the_platform_that_the_tests_run_on() -> None:
    assert missing_libraries(Path(PySide6.__file__).parent, "offscreen") == Missing(())


@linux_only
def test_every_library_that_the_linker_finds_missing_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ldd = tmp_path / "ldd"
    ldd.write_text(
        '#!/bin/sh\nfor f in "$@"; do echo "$f:"; echo "\tlibEGL.so.1 => not found"; done\nexit 1\n'
    )
    ldd.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    missing = missing_libraries(Path(PySide6.__file__).parent, "xcb")
    assert missing.packages == ("libegl1",)


def test_unknown_platform_is_not_judged() -> None:
    assert missing_libraries(Path(PySide6.__file__).parent, "vnc") == Missing(())


@pytest.mark.parametrize(
    ("variables", "platforms"),
    [
        ({}, ()),
        ({"DISPLAY": "", "WAYLAND_DISPLAY": ""}, ()),
        ({"DISPLAY": ":0"}, ("xcb",)),
        ({"WAYLAND_DISPLAY": "wayland-0", "DISPLAY": ":0"}, ("wayland", "xcb")),
        ({"QT_QPA_PLATFORM": "offscreen"}, ("offscreen",)),
        ({"QT_QPA_PLATFORM": "wayland;xcb", "DISPLAY": ":0"}, ("wayland", "xcb")),
        ({"QT_QPA_PLATFORM": "vnc:size=800x600"}, ("vnc",)),
    ],
)
def test_screen_is_found_the_way_qt_finds_it(variables: dict[str, str], platforms: tuple[str, ...]) -> None:
    assert screen_platforms(variables) == platforms


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("ID=debian\n", True),
        ('ID=linuxmint\nID_LIKE="ubuntu debian"\n', True),
        ("ID=fedora\nID_LIKE=rhel\n", False),
        ("", False),
    ],
)
def test_debian_and_its_relatives_are_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, expected: bool
) -> None:
    monkeypatch.setattr(system_libraries.shutil, "which", lambda _: "/usr/bin/apt-get")
    (tmp_path / "os-release").write_text(text)
    assert is_debian(tmp_path / "os-release") is expected
    assert is_debian(tmp_path / "absent") is False


@linux_only
@pytest.mark.parametrize(("update", "install", "success"), [(0, 0, True), (100, 0, True), (0, 100, False)])
def test_only_the_install_decides_whether_apt_succeeded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, update: int, install: int, success: bool
) -> None:
    script = (
        f'#!/bin/sh\necho "$DEBIAN_FRONTEND $*"\ncase "$*" in *update*) exit {update}; esac; exit {install}\n'
    )
    (tmp_path / "apt-get").write_text(script)
    (tmp_path / "apt-get").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    log = tmp_path / "log"
    assert apt_install(["libegl1"], log) is success
    lines = log.read_text().splitlines()
    assert sum(line.startswith("noninteractive") for line in lines) == 2
    assert lines[-1].endswith("libegl1")


@linux_only
@pytest.mark.skipif(not is_debian(), reason="dpkg knows Debian's packages only")
def test_libraries_of_this_system_are_in_the_packages_that_the_table_names() -> None:
    """Where a package is installed here, it really holds the library that the table says it holds."""
    listed = subprocess.run(
        ["dpkg-query", "--listfiles", *sorted(set(DEBIAN_PACKAGES.values()))],
        capture_output=True,
        text=True,
        check=False,  # it fails for the packages that aren't installed
    )
    files = {Path(line).name for line in listed.stdout.splitlines()}
    status = subprocess.run(
        ["dpkg-query", "--show", "--showformat", "${Package} ${Status}\n"],
        capture_output=True,
        text=True,
        check=True,
    )
    present = {line.split()[0] for line in status.stdout.splitlines() if line.endswith("ok installed")}
    assert "libc6" in present
    wrong = [name for name, package in DEBIAN_PACKAGES.items() if package in present and name not in files]
    assert wrong == []
