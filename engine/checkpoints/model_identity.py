"""What tells one model's files from another's, without reading tens of gigabytes."""

from __future__ import annotations

import hashlib
import os

from engine.checkpoints.foreign_files import path_kind, read_bytes
from engine.checkpoints.model_folder import ModelFolder
from engine.checkpoints.quantisation_config import OWN_FILES
from engine.weights.weight_file import WeightFile

_SAMPLES = 8  # of each file, evenly spread from its first byte to its last
_SAMPLE_BYTES = 64 * 2**10
_CONFIG = "config.json"


def model_identity(folder: ModelFolder) -> str:
    """32 hexadecimal digits that change when the weights do, or the way in which the engine reads them.

    They are made of the files' names, sizes and times of change, of what the headers say, of config.json and
    what else may say how weights are quantised, and of the parameters. Where a model lies makes no
    difference. Times alone would not do: archives and images often give all files the same one. So samples of
    the content count, too; another training of the same model differs in every one of them.

    The files are asked through the handles that the weights are read from: a file that was replaced since
    it was opened does not count, one that was changed in place does. So who stores something under an
    identity asks for it again when everything is read, and stores nothing when it has changed.

    Raises ModelFileError.
    """
    digest = hashlib.blake2b(digest_size=16)

    def add(*values: object) -> None:
        digest.update(repr(values).encode("utf-8", "backslashreplace"))

    for file in folder.tensors.files():
        status = os.fstat(file.handle.fileno())
        add(file.path.name, status.st_size, status.st_mtime_ns)
        for sample in _samples(file, status.st_size):
            digest.update(sample)
    for name, info in sorted(folder.tensors.tensors().items()):
        add(name, info.shape, info.dtype, info.num_bytes, info.stored_name)
    for parameter in folder.parameters:
        add(parameter.name, parameter.shape)
        for piece in parameter.pieces:
            add(piece.source, piece.shape, piece.transpose)
    if folder.kind == "safetensors":
        for name in (_CONFIG, *OWN_FILES):
            if name == _CONFIG or path_kind(folder.path / name):
                digest.update(read_bytes(folder.path / name))
    return digest.hexdigest()


def _samples(file: WeightFile, size: int) -> list[bytearray]:
    """Pieces of the file, all of it where it is small. It may have been cut since it was opened."""
    length = min(size, _SAMPLE_BYTES)
    starts = {(size - length) * i // (_SAMPLES - 1) for i in range(_SAMPLES)}
    samples = []
    for start in sorted(starts):
        sample = bytearray(length)
        file.read_into(memoryview(sample), start)
        samples.append(sample)
    return samples
