"""Small wheels made on the spot, and a pip that can reach nothing but them."""

from __future__ import annotations

import base64
import hashlib
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

MakeWheel = Callable[..., Path]


@pytest.fixture
def wheels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only place that pip knows of in this test: no index, no configuration, no cache."""
    folder = tmp_path / "wheels"
    folder.mkdir()
    for name, value in {
        "PIP_CONFIG_FILE": "/dev/null",
        "PIP_NO_INDEX": "1",
        "PIP_FIND_LINKS": str(folder),
        "PIP_NO_CACHE_DIR": "1",
    }.items():
        monkeypatch.setenv(name, value)
    return folder


@pytest.fixture
def make_wheel(wheels: Path) -> MakeWheel:
    """`make_wheel(name, version, files)` puts a valid wheel into `wheels` and returns its path."""

    def make(name: str, version: str, files: Mapping[str, bytes]) -> Path:
        info = f"{name}-{version}.dist-info"
        contents = {
            **files,
            f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n".encode(),
            f"{info}/WHEEL": b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        }
        rows = [f"{path},{_record_hash(data)},{len(data)}" for path, data in contents.items()]
        contents[f"{info}/RECORD"] = "\n".join([*rows, f"{info}/RECORD,,", ""]).encode()
        wheel = wheels / f"{name}-{version}-py3-none-any.whl"
        with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as archive:
            for path, data in contents.items():
                archive.writestr(path, data)
        return wheel

    return make


def _record_hash(data: bytes) -> str:
    digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=")
    return f"sha256={digest.decode()}"
