"""Which files are mapped, and which are read because they may become unreachable."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from engine.weights.mapped_files import lies_elsewhere, map_of, mapped_bytes
from engine.weights.weight_file import WeightFile

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="there the path itself tells")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "home" / "cache" / "file"
    path.parent.mkdir(parents=True)
    path.write_bytes(bytes(5000))
    return path


def mount(monkeypatch: pytest.MonkeyPatch, **kinds: str) -> None:
    """kinds: by mount point, in the order in which they were mounted."""
    mounted = [SimpleNamespace(mountpoint=point, fstype=kind) for point, kind in kinds.items()]
    monkeypatch.setattr(psutil, "disk_partitions", lambda all: mounted)


def is_mapped(path: Path) -> bool:
    file = WeightFile(path)
    whole = map_of(file)
    file.close()
    assert mapped_bytes() >= (0 if whole is None else 5000)
    return whole is not None


@pytest.mark.parametrize("kind", ["ext4", "btrfs", "zfs", "xfs", "overlay", "tmpfs", "apfs", "fuseblk", ""])
def test_files_on_disks_of_this_computer_are_mapped(
    kind: str, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mount(monkeypatch, **{"/": kind})
    assert is_mapped(path)


@pytest.mark.parametrize("kind", ["nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "fuse.sshfs", "ceph"])
def test_files_on_other_computers_are_read(kind: str, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = str(path.parent.parent)
    mount(monkeypatch, **{"/": "ext4", home: kind})
    assert not is_mapped(path)
    mount(monkeypatch, **{home: kind, "/": "ext4"})
    assert not is_mapped(path), "the nearest counts"
    mount(monkeypatch, **{"/": "ext4", home: kind, str(path.parent): "ext4"})
    assert is_mapped(path), "a disk of one's own within"
    mount(monkeypatch, **{"/": "ext4", home[:-1]: kind})
    assert is_mapped(path), "a name that begins alike is another folder"


def test_what_is_mounted_last_at_a_place_counts(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = str(path.parent.parent)
    mounted = [SimpleNamespace(mountpoint=home, fstype=kind) for kind in ("autofs", "nfs4")]
    monkeypatch.setattr(psutil, "disk_partitions", lambda all: mounted)
    assert lies_elsewhere(path)


def test_links_are_followed(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    link = tmp_path / "link"
    link.symlink_to(path.parent)
    mount(monkeypatch, **{"/": "ext4", os.path.realpath(path.parent): "nfs4"})
    assert lies_elsewhere(link / "file")


def test_where_nothing_is_known_files_are_mapped(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(all: bool) -> list[object]:
        raise FileNotFoundError(2, "No such file or directory", "/proc/filesystems")

    monkeypatch.setattr(psutil, "disk_partitions", unknown)
    assert is_mapped(path)
