"""Whether the tensors of the files are those that the model is made of: every one exactly once, in its
shape.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from engine.checkpoints.foreign_files import shown, some_names
from engine.errors import EngineError, ModelFileError, UnsupportedModelError
from engine.models.spec import Parameter
from engine.weights.source import TensorInfo

HEAD = "lm_head.weight"


def check_tensors(
    parameters: Sequence[Parameter],
    tensors: Mapping[str, TensorInfo],
    *,
    readable: frozenset[str],
    config_file: str,
) -> None:
    """Raises one error that names what is missing, unexpected or of another shape, or has an unreadable type.

    `readable` are the types (`TensorInfo.dtype`) that the source can turn into numbers.
    """
    pieces = {piece.source: piece.shape for parameter in parameters for piece in parameter.pieces}
    unreadable = [info for name, info in tensors.items() if name in pieces and info.dtype not in readable]
    if unreadable:
        raise _unreadable(unreadable)
    missing = [name for name in pieces if name not in tensors]
    unexpected = [info.stored_name for name, info in tensors.items() if name not in pieces]
    misshaped = [
        f"{info.stored_name} ({_shape(info.shape)}, not {_shape(pieces[name])})"
        for name, info in tensors.items()
        if name in pieces and info.shape != pieces[name]
    ]
    faults = _told(missing=missing, unexpected=unexpected, misshaped=misshaped)
    if faults:
        hint = "Download the model again; if it stays so, the files belong to different models."
        if len(faults) == 1 and missing == [HEAD]:
            hint = f"If its head is the embedding, set tie_word_embeddings in {config_file} to true."
        raise ModelFileError(
            f"The tensors of this model don't fit {shown(config_file)}: {'; '.join(faults)}.", hint
        )


def _unreadable(infos: Sequence[TensorInfo]) -> EngineError:
    types = ", ".join(sorted({info.dtype for info in infos}))
    names = some_names([info.stored_name for info in infos])
    return UnsupportedModelError(
        f"1 tensor is stored as {types}, which can't be read here ({names})."
        if len(infos) == 1
        else f"{len(infos)} tensors are stored as {types}, which can't be read here ({names}).",
        "Pick the model's bf16, fp16 or fp32 files, or a GGUF file.",
    )


def _told(*, missing: list[str], unexpected: list[str], misshaped: list[str]) -> list[str]:
    faults = []
    if (count := len(missing)) == 1:
        faults.append(f"1 is missing ({some_names(missing)})")
    elif count:
        faults.append(f"{count} are missing ({some_names(missing)})")
    if (count := len(unexpected)) == 1:
        faults.append(f"1 is unexpected ({some_names(unexpected)})")
    elif count:
        faults.append(f"{count} are unexpected ({some_names(unexpected)})")
    if (count := len(misshaped)) == 1:
        faults.append(f"1 is of another shape ({some_names(misshaped)})")
    elif count:
        faults.append(f"{count} are of another shape ({some_names(misshaped)})")
    return faults


def _shape(shape: tuple[int, ...]) -> str:
    return " x ".join(str(size) for size in shape) or "a single number"
