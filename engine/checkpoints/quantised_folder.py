"""From what a config says of quantised weights, and what the files hold, to a source of the model's matrices.

The two may disagree. Folders whose weights were merged or converted back often keep the words of the form
that they had; others lost them.
"""

from __future__ import annotations

from collections.abc import Sequence

from engine.checkpoints.foreign_files import shown, some_names
from engine.checkpoints.quantisation_config import OTHER_FORM, QuantisationSettings, read_quantisation
from engine.errors import ModelFileError
from engine.notices import Notice
from engine.weights.quantised_source import QuantisedFolderSource, quantised_tensors
from engine.weights.safetensors_source import SafetensorsSource
from engine.weights.source import TensorInfo

FolderSource = SafetensorsSource | QuantisedFolderSource


def dequantised_source(
    plain: SafetensorsSource | None, settings: QuantisationSettings | None, notices: list[Notice]
) -> FolderSource | None:
    """The source to read the model from; None without files. Raises UnsupportedModelError with the method's
    name, and ModelFileError where config and files contradict each other.
    """
    if plain is None:
        if settings is not None:
            read_quantisation(settings)
        return None
    packed = quantised_tensors(plain)
    if settings is None:
        if packed and _has_scales(plain):
            raise ModelFileError(
                f"{_listed(packed)}, but the folder's config.json doesn't say by which method.",
                f"Download config.json again. {OTHER_FORM}",
            )
        return plain
    if not packed and settings.method != "bitnet":  # which quantises plain weights while it computes
        notices.append(
            Notice(
                "quantisation-absent",
                f"{shown(settings.reader.file)} says that the weights are quantised by "
                f"{settings.described()}, but the files hold plain numbers; those are used.",
            )
        )
        return plain
    quantisation = read_quantisation(settings)
    source = QuantisedFolderSource(plain, quantisation)
    if not source.num_matrices:
        raise ModelFileError(
            f"{shown(settings.reader.file)} says that the weights are quantised by {settings.described()}, "
            f"but in the files {_listed(packed)}.",
            "Download the model again; config.json and weights belong to different models.",
        )
    if quantisation.beyond_weights:
        notices.append(
            Notice(
                "weights-only",
                f"The folder asks to quantise {quantisation.beyond_weights}, too, while the model computes; "
                "this engine leaves them as they are, which is more exact.",
            )
        )
    if source.packed_anew:
        notices.append(packed_anew(source.packed_anew, source.num_matrices))
    return source


def _listed(packed: Sequence[TensorInfo]) -> str:
    types = ", ".join(sorted({info.dtype for info in packed}))
    names = some_names([info.stored_name for info in packed])
    if len(packed) == 1:
        return f"1 tensor is stored as {types} ({names})"
    return f"{len(packed)} tensors are stored as {types} ({names})"


def packed_anew(count: int, total: int) -> Notice:
    return Notice(
        "matrices-packed-anew",
        f"{count} of {total} quantised matrices can't be kept as they are stored (inputs in an order of "
        "their own, called act-order or desc_act, groups that aren't multiples of 32, or 8 bits with zero "
        "points); packing them anew loses next to nothing with 8 bits and a little with 4, and native "
        "weights hold them as float32.",
        "Choose 8 bits, or a version of the model that was made without act-order.",
    )


def _has_scales(plain: SafetensorsSource) -> bool:
    """Whether it looks like weights with scales, and not like one tensor of a type that nobody reads."""
    endings = (".scales", "_scale", "_scale_inv", ".SCB", ".absmax", ".qzeros")
    return any(name.endswith(endings) for name in plain.tensors())
