"""Which form each parameter takes when a model is packed: told by the headers alone, for the model card and
the load alike.

Embedding, norms, biases and routers stay as they are, and so do matrices whose rows don't divide into groups;
everything else becomes strips, the head also where it is the embedding. What a file has as strips already is
taken as it is.

`bits` are those that are asked for; None asks for nothing to be packed ("native"). Then matrices that a
folder has as whole numbers stay so, and everything else is as plain as it can be: GGUF blocks become float32,
which is what every packed form is measured against.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import Enum, auto

from engine.models.spec import ModelSpec, Parameter
from engine.weights.source import StoredStrip, TensorInfo
from engine.weights.strips import BLOCK, Bits, Group, fits

STRIP_PARAMETERS = ("qkv", "output", "gate_up", "down", "experts.gate_up", "experts.down", "head")
HALF_TYPES = ("BF16", "F16")
ROWS_AT_ONCE = 4  # that kernels take: a member of a fused matrix begins at a multiple of it
_WHOLE_NUMBERS = ("INT4", "INT8")  # of `quantised_matrices`


class EmbeddingForm(Enum):
    STORED = auto()  # numbers as in the file; float32 where these have no plain type
    BLOCKS = auto()  # a GGUF type's own blocks: see `gguf_blocks`
    HEAD = auto()  # rows of the head's strip, which has every bit of it


def is_strip(name: str) -> bool:
    """Whether a parameter of this name is kept as strips, where its rows can be cut into groups."""
    return name.split(".", 2)[-1] in STRIP_PARAMETERS


def group_of(num_inputs: int, wanted: Group) -> Group | None:
    """Of a matrix with so many inputs: `wanted` where they divide by it, else 32, None where not by that."""
    return next((group for group in (wanted, BLOCK) if fits(num_inputs, group)), None)


def strip_rows(spec: ModelSpec, parameter: Parameter) -> tuple[int, ...]:
    """Rows of the strips that each matrix of a parameter is held as: Q, K and V are one, and so are gate and
    up, if each of them has a multiple of ROWS_AT_ONCE; otherwise each is by itself.

    Rows that are left over at a strip's end are the backend's affair: those of the CPU take them one by one.
    """
    members = _members(spec, parameter)
    return members if any(rows % ROWS_AT_ONCE for rows in members) else (sum(members),)


def _members(spec: ModelSpec, parameter: Parameter) -> tuple[int, ...]:
    """Rows of what is fused in each matrix of a parameter."""
    layer, _, kind = parameter.name.removeprefix("layers.").partition(".")
    rows = parameter.shape[-2]
    if kind.endswith("gate_up"):
        return (rows // 2, rows // 2)
    if kind == "qkv":
        attention = spec.layers[int(layer)].attention
        return (attention.q_dim, attention.kv_dim, attention.kv_dim)
    return (rows,)


def tied_head(parameters: Mapping[str, Parameter]) -> Parameter:
    """The embedding as the head."""
    embed = parameters["embed"]
    return Parameter("head", embed.shape, embed.pieces)


def stored_strip(
    parameter: Parameter, tensors: Mapping[str, TensorInfo], bits: Bits | None
) -> StoredStrip | None:
    """What the file's own strips of a parameter come to, joined; None where it has to be quantised, be it for
    having more than `bits`, or with None stays plain.
    """
    if bits is None:
        dtypes = {tensors[piece.source].dtype for piece in parameter.pieces if piece.source in tensors}
        if not dtypes <= set(_WHOLE_NUMBERS):
            return None
    forms = [
        None if piece.transpose or piece.source not in tensors else tensors[piece.source].strip
        for piece in parameter.pieces
    ]
    found = [form for form in forms if form is not None]
    if not found or len(found) < len(forms) or len({form.group for form in found}) > 1:
        return None
    most: Bits = max(form.bits for form in found)
    if bits is not None and most > bits:
        return None
    return StoredStrip(most, any(form.offsets for form in found), found[0].group)


def strip_form(
    parameter: Parameter, tensors: Mapping[str, TensorInfo], *, bits: Bits | None, group: Group
) -> StoredStrip | None:
    """Of the strips of a parameter; None where it stays as it is."""
    wanted = group_of(parameter.shape[-1], group)
    if wanted is None or not is_strip(parameter.name):
        return None
    stored = stored_strip(parameter, tensors, bits)
    return StoredStrip(bits, group=wanted) if stored is None and bits is not None else stored


def has_native_strips(parameters: Iterable[Parameter], tensors: Mapping[str, TensorInfo]) -> bool:
    """Whether some matrices stay strips though nothing is packed."""
    return any(strip_form(each, tensors, bits=None, group=BLOCK) is not None for each in parameters)


def embedding_form(
    spec: ModelSpec, embed: Parameter, tensors: Mapping[str, TensorInfo], bits: Bits | None
) -> EmbeddingForm:
    """How token ids are looked up when matrices are strips of `bits`, or stay as they are."""
    head_is_strip = group_of(embed.shape[-1], BLOCK) is not None
    if spec.tied_embeddings and head_is_strip and stored_strip(embed, tensors, bits) is not None:
        return EmbeddingForm.HEAD
    info = tensors.get(embed.pieces[0].source) if len(embed.pieces) == 1 else None
    if bits is not None and info is not None and info.blocks and (head_is_strip or not spec.tied_embeddings):
        return EmbeddingForm.BLOCKS
    return EmbeddingForm.STORED


def stored_dtype(parameter: Parameter, tensors: Mapping[str, TensorInfo]) -> str:
    """The type, in the words of the file, in which a parameter is held that stays as it is: the 16-bit one
    that all pieces of a matrix share, else F32. What `tensors` lacks is taken to be F32.
    """
    types = {tensors[piece.source].dtype if piece.source in tensors else "F32" for piece in parameter.pieces}
    shared = types.pop() if len(types) == 1 else "F32"
    return shared if shared in HALF_TYPES and len(parameter.shape) > 1 else "F32"
