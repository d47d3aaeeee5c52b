"""All weights of a model for the card: what stays there, and how many layers are there at a time."""

from __future__ import annotations

import threading
from dataclasses import dataclass

from engine.cpu.memory import mebibytes
from engine.cpu.model import ModelWeights
from engine.cuda.driver import Address
from engine.cuda.embedding import CardEmbedding, HostEmbedding, embedding_image
from engine.cuda.kernel_set import KernelSet
from engine.cuda.layer_images import LayerImage, layer_images
from engine.cuda.layer_window import AllLayers, Layers, LayerWindow
from engine.cuda.matrices import DeviceLinear, linear_image
from engine.cuda.memory import CardMemory, taken_bytes
from engine.cuda.residency import Sizes, widest_matrices, widest_window
from engine.cuda.uploader import Uploader
from engine.errors import Cancelled, OutOfMemoryError
from engine.progress import LoadProgress, LoadStage, ProgressCallback

RESERVE_BYTES = 256 * 2**20
"""Of the card's memory, left to the driver and to what else is on the screen where nobody says how much."""


@dataclass(frozen=True)
class Rest:
    """What the weights have to leave, in bytes. other: what this model is going to take beside them.
    short_cache: a conversation of some length, without which the card is of no use. cache: one of any length.
    """

    other: int
    short_cache: int
    cache: int


@dataclass(frozen=True)
class CardWeights:
    """num_bytes: of all weights, wherever they are. window: how many layers are on the card at a time; None:
    all. embedding: on the card too where all layers fit beside it, in a form that a kernel knows.
    """

    embedding: CardEmbedding | HostEmbedding
    layers: Layers
    final_norm: Address
    head: DeviceLinear
    num_bytes: int
    window: int | None


def upload_weights(
    weights: ModelWeights,
    memory: CardMemory,
    kernels: KernelSet,
    *,
    window: int,
    rest: Rest,
    on_progress: ProgressCallback,
    cancel: threading.Event | None,
    uploader: Uploader,
) -> CardWeights:
    """window: layers at a time; 0: as many as there is room for. uploader: puts what stays into `memory`.
    Raises OutOfMemoryError, UnsupportedModelError, CardFaultError, Cancelled.
    """
    images = layer_images(weights, uploader)
    final_norm = uploader.tensor(weights.final_norm.float())
    head_image = linear_image([weights.head])
    passage = max(max(image.raw_sizes) for image in images)
    head = uploader.image(head_image)
    uploader.finish()
    embedding = _embedding(weights, images, window, memory, rest, passage)
    stays = uploader.num_bytes + (embedding.num_bytes if isinstance(embedding, CardEmbedding) else 0)
    chosen = _window(images, window, memory, rest, passage)
    done, total = stays, stays + sum(image.num_bytes for image in images[:chosen])

    def on_layer(num_bytes: int) -> None:
        nonlocal done
        if cancel is not None and cancel.is_set():
            raise Cancelled
        done += num_bytes
        on_progress(LoadProgress(LoadStage.UPLOAD, done, total))

    on_layer(0)
    layers: Layers
    if chosen is None:
        layers = AllLayers(uploader, images, on_layer)
        uploader.finish()
    else:
        layers = LayerWindow(memory, kernels, images, chosen, on_layer)
    return CardWeights(
        embedding=embedding,
        layers=layers,
        final_norm=final_norm,
        head=head,
        num_bytes=stays + sum(image.num_bytes for image in images),
        window=chosen,
    )


def _embedding(
    weights: ModelWeights,
    images: list[LayerImage],
    window: int,
    memory: CardMemory,
    rest: Rest,
    passage: int,
) -> CardEmbedding | HostEmbedding:
    """A token reads one row of it: that is not worth a layer's place."""
    image = embedding_image(weights.embedding)
    if image is not None and not 0 < window < len(images):
        room = memory.available(RESERVE_BYTES) - taken_bytes(image.num_bytes) - rest.other
        beside = max(rest.short_cache, taken_bytes(passage))
        sizes = [each.sizes for each in images]
        if window or widest_window(sizes, room - beside, taken_bytes) == len(sizes):
            return image.upload(memory)
    return HostEmbedding(weights.embedding, memory)


def _window(
    images: list[LayerImage], window: int, memory: CardMemory, rest: Rest, passage: int
) -> int | None:
    if window:
        return window if window < len(images) else None
    return fitting_window(
        [image.sizes for image in images],
        [image.raw_sizes for image in images],
        memory.available(RESERVE_BYTES),
        rest,
        passage=passage,
    )


def fitting_window(
    sizes: Sizes, raw_sizes: Sizes, available: int, rest: Rest, *, passage: int = 0
) -> int | None:
    """How many layers of such matrices the card has room for at a time, None where it has for all. sizes: as
    they stay. raw_sizes: as they come, and wait in a window; beside it, one layer is as it stays. passage:
    bytes through which all come where they stay; free again once they are there.

    Having to read weights at every token costs far more than a conversation that goes on on the CPU once it
    is long: so all stay if there is room for a short one. Where not all do, a long one has room.
    Raises OutOfMemoryError where not even one layer has any.
    """
    room = available - rest.other
    beside = max(rest.short_cache, taken_bytes(passage))
    if widest_window(sizes, room - beside, taken_bytes) == len(sizes):
        return None
    room -= sum(map(taken_bytes, widest_matrices(sizes)))
    for cache, least in ((rest.cache, 2), (rest.short_cache, 1)):  # with one, uploads and work take turns
        widest = min(widest_window(raw_sizes, room - cache, taken_bytes), len(sizes) - 1)
        if widest >= least:
            return widest
    raise OutOfMemoryError(
        f"The card has no room for even one layer of the model beside a short conversation: "
        f"{mebibytes(max(0, room))} are left.",
        "Close other programs that use the card, raise the VRAM budget, or pick a smaller model.",
    )
