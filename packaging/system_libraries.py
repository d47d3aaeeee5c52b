"""The shared libraries that Qt needs and a bare Linux lacks: which are missing, and how they get there.

What is missing is found by asking the dynamic linker about Qt's own files, not by a list of packages: the
table below only says which Debian package holds which library.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

# Found with `ldd` on the plugins of PySide6 6.12 in a Debian 12 that holds only Python. Newer releases that
# renamed a package (libglib2.0-0t64) still provide the old name.
DEBIAN_PACKAGES = {
    "libEGL.so.1": "libegl1",
    "libGL.so.1": "libgl1",
    "libGLX.so.0": "libglx0",
    "libOpenGL.so.0": "libopengl0",
    "libX11.so.6": "libx11-6",
    "libX11-xcb.so.1": "libx11-xcb1",
    "libdbus-1.so.3": "libdbus-1-3",
    "libfontconfig.so.1": "libfontconfig1",
    "libfreetype.so.6": "libfreetype6",
    "libglib-2.0.so.0": "libglib2.0-0",
    "libgthread-2.0.so.0": "libglib2.0-0",
    "libstdc++.so.6": "libstdc++6",
    "libwayland-client.so.0": "libwayland-client0",
    "libwayland-cursor.so.0": "libwayland-cursor0",
    "libwayland-egl.so.1": "libwayland-egl1",
    "libxcb.so.1": "libxcb1",
    "libxcb-cursor.so.0": "libxcb-cursor0",
    "libxcb-glx.so.0": "libxcb-glx0",
    "libxcb-icccm.so.4": "libxcb-icccm4",
    "libxcb-image.so.0": "libxcb-image0",
    "libxcb-keysyms.so.1": "libxcb-keysyms1",
    "libxcb-randr.so.0": "libxcb-randr0",
    "libxcb-render.so.0": "libxcb-render0",
    "libxcb-render-util.so.0": "libxcb-render-util0",
    "libxcb-shape.so.0": "libxcb-shape0",
    "libxcb-shm.so.0": "libxcb-shm0",
    "libxcb-sync.so.1": "libxcb-sync1",
    "libxcb-util.so.1": "libxcb-util1",
    "libxcb-xfixes.so.0": "libxcb-xfixes0",
    "libxcb-xinerama.so.0": "libxcb-xinerama0",
    "libxcb-xkb.so.1": "libxcb-xkb1",
    "libxkbcommon.so.0": "libxkbcommon0",
    "libxkbcommon-x11.so.0": "libxkbcommon-x11-0",
    "libz.so.1": "zlib1g",
}

# Qt's name of a platform -> files below the PySide6 folder that must load for it.
PLATFORM_FILES = {
    "offscreen": (
        "Qt/lib/libQt6Widgets.so.6",
        "Qt/lib/libQt6Svg.so.6",
        "Qt/plugins/platforms/libqoffscreen.so",
    ),
    "xcb": (
        "Qt/lib/libQt6Widgets.so.6",
        "Qt/lib/libQt6Svg.so.6",
        "Qt/plugins/platforms/libqxcb.so",
        "Qt/plugins/xcbglintegrations/libqxcb-glx-integration.so",
    ),
    "wayland": (
        "Qt/lib/libQt6Widgets.so.6",
        "Qt/lib/libQt6Svg.so.6",
        "Qt/plugins/platforms/libqwayland.so",
        "Qt/plugins/wayland-shell-integration/libxdg-shell.so",
        "Qt/plugins/wayland-decoration-client/libadwaita.so",  # the frame, where the desktop draws none
        "Qt/plugins/wayland-decoration-client/libbradient.so",
        "Qt/plugins/wayland-graphics-integration-client/libqt-plugin-wayland-egl.so",
    ),
}


@dataclass(frozen=True)
class Missing:
    """Libraries that the linker does not find: the packages that hold them, and those in no known package."""

    libraries: tuple[str, ...]

    @property
    def packages(self) -> tuple[str, ...]:
        return tuple(sorted({DEBIAN_PACKAGES[name] for name in self.libraries if name in DEBIAN_PACKAGES}))

    @property
    def unknown(self) -> tuple[str, ...]:
        return tuple(name for name in self.libraries if name not in DEBIAN_PACKAGES)

    def __bool__(self) -> bool:
        return bool(self.libraries)


def screen_platforms(environment: Mapping[str, str]) -> tuple[str, ...]:
    """Qt's platforms that can show a window here, the preferred one first; none without a screen (Linux)."""
    chosen = environment.get("QT_QPA_PLATFORM", "")
    if chosen:
        return tuple(name.split(":")[0] for name in chosen.split(";"))
    found = []
    if environment.get("WAYLAND_DISPLAY"):
        found.append("wayland")
    if environment.get("DISPLAY"):
        found.append("xcb")
    return tuple(found)


def missing_libraries(pyside: Path, platform: str) -> Missing:
    """What Qt's files for `platform` lack; nothing for a platform that the table does not know."""
    files = [str(pyside / name) for name in PLATFORM_FILES.get(platform, ()) if (pyside / name).exists()]
    ldd = shutil.which("ldd")
    if not files or ldd is None:
        return Missing(())
    listed = subprocess.run(
        [ldd, *files], stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", check=False
    )
    return Missing(parse_ldd(listed.stdout))


def parse_ldd(text: str) -> tuple[str, ...]:
    """Names that `ldd` marks "not found", sorted, without Qt's own (no system package brings those)."""
    names = {line.split("=>")[0].strip() for line in text.splitlines() if line.rstrip().endswith("not found")}
    return tuple(sorted(name for name in names if not name.startswith("libQt6")))


def is_debian(os_release: Path = Path("/etc/os-release")) -> bool:
    """Debian, Ubuntu or a relative of theirs, with apt-get."""
    if shutil.which("apt-get") is None:
        return False
    try:
        lines = os_release.read_text(encoding="utf-8").splitlines()
    except OSError:
        return False
    fields = dict(line.split("=", 1) for line in lines if "=" in line)
    words = f"{fields.get('ID', '')} {fields.get('ID_LIKE', '')}".replace('"', " ").split()
    return "debian" in words or "ubuntu" in words


def is_root() -> bool:
    return hasattr(os, "geteuid") and os.geteuid() == 0


def install_command(packages: Iterable[str]) -> str:
    """What a person would type; also what is run, less "sudo", when the person is root."""
    return "sudo apt-get update && sudo apt-get install -y --no-install-recommends " + shlex.join(packages)


def apt_install(packages: Sequence[str], log: Path) -> bool:
    """Installs Debian packages, as root. True on success; everything that apt-get says goes to `log`."""
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    apt = ["apt-get", "-o", "DPkg::Lock::Timeout=300"]  # a new machine often updates itself just then
    commands = ([*apt, "update"], [*apt, "install", "-y", "--no-install-recommends", *packages])
    returncode = 1
    with log.open("ab") as out:
        for command in commands:
            out.write(f"\n$ {shlex.join(command)}\n".encode())
            out.flush()
            # A failed update alone is not fatal: the lists may be good enough. A failed install is.
            returncode = subprocess.call(
                command, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT, env=environment
            )
    return returncode == 0
