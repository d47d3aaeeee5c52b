"""All weights of a model for the card: what stays there, and how many layers are there at a time."""

from __future__ import annotations

import threading
from dataclasses import dataclass

from engine.cpu.model import ModelWeights
from engine.cuda.driver import Address
from engine.cuda.embedding import CardEmbedding, HostEmbedding, embedding_image
from engine.cuda.kernel_set import KernelSet
from engine.cuda.layer_images import layer_images
from engine.cuda.layer_window import AllLayers, Layers, LayerWindow
from engine.cuda.matrices import DeviceLinear, linear_image
from engine.cuda.memory import CardMemory
from engine.cuda.placement import RESERVE_BYTES, LayerSizes, Rest, chosen_window, takes_embedding
from engine.cuda.uploader import Uploader
from engine.errors import Cancelled
from engine.progress import LoadProgress, LoadStage, ProgressCallback


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
    sizes = LayerSizes([image.sizes for image in images], [image.raw_sizes for image in images])
    head = uploader.image(head_image)
    uploader.finish()
    embedding = _embedding(weights, sizes, window, memory, rest)
    stays = uploader.num_bytes + (embedding.num_bytes if isinstance(embedding, CardEmbedding) else 0)
    chosen = chosen_window(sizes, memory.available(RESERVE_BYTES), rest, window=window)
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
    weights: ModelWeights, sizes: LayerSizes, window: int, memory: CardMemory, rest: Rest
) -> CardEmbedding | HostEmbedding:
    image = embedding_image(weights.embedding)
    if image is not None and takes_embedding(
        image.num_bytes, sizes, memory.available(RESERVE_BYTES), rest, window=window
    ):
        return image.upload(memory)
    return HostEmbedding(weights.embedding, memory)
