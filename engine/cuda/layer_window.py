"""The layers of a model, on the card when they run: all of them always, or a window that goes round."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Protocol

from engine.cpu.memory import failed_allocations_told
from engine.cuda.kernel_set import KernelSet
from engine.cuda.layer_images import LayerImage
from engine.cuda.layers import DeviceLayer
from engine.cuda.memory import CardMemory, Use
from engine.cuda.residency import Residency, widest_matrices
from engine.cuda.uploader import Uploader
from engine.metrics import LayerUse

OnLayer = Callable[[int], None]
"""Is told the bytes of each layer that is on the card, or under way to it. What it raises ends the load."""


class Layers(Protocol):
    def running(self, index: int) -> AbstractContextManager[DeviceLayer]:
        """Around the launches of layer `index`. They find it on the card."""

    @property
    def use(self) -> LayerUse:
        """How many are there, and came and went."""


class AllLayers:
    """Where all of them fit. Raises what an upload raises."""

    def __init__(self, uploader: Uploader, images: Sequence[LayerImage], on_layer: OnLayer) -> None:
        self._layers: list[AbstractContextManager[DeviceLayer]] = []
        for image in images:
            linears = [uploader.image(matrix) for matrix in image.matrices]
            self._layers.append(nullcontext(image.with_matrices(linears)))
            on_layer(image.num_bytes)

    def running(self, index: int) -> AbstractContextManager[DeviceLayer]:
        return self._layers[index]

    @property
    def use(self) -> LayerUse:
        count = len(self._layers)
        return LayerUse(total=count, at_once=count, present=count, brought=count, evicted=0)


class LayerWindow:
    """`window` layers at a time, as the computer has them. The next ones come up while one runs; that one
    is laid into places of its own first, the same for every layer, so with a window of one the next can come
    while it runs.

    Nothing is allocated or freed once it is made. A step that ends anywhere leaves it as usable as before.
    """

    def __init__(
        self,
        memory: CardMemory,
        kernels: KernelSet,
        images: Sequence[LayerImage],
        window: int,
        on_layer: OnLayer,
    ) -> None:
        """Brings the first layers. Raises OutOfMemoryError and what an upload raises."""
        self._driver = memory.driver
        self._kernels = kernels
        with failed_allocations_told():
            self._images = [image.converted() for image in images]
        sizes = [image.raw_sizes for image in images]
        widest = widest_matrices([image.sizes for image in images])
        self._places = [memory.allocate(size, Use.WEIGHTS) for size in widest]
        self.residency = Residency(sizes, window, lambda size: memory.allocate(size, Use.WEIGHTS))
        self._passed = [self._driver.new_mark() for _ in images]  # each layer's laying
        self._arrived = [self._driver.new_mark() for _ in images]  # each layer's upload
        self._awaited: set[int] = set()  # uploads that no work has waited for yet
        for index in self.residency.wanted(0):
            self._bring(index)
            on_layer(images[index].num_bytes)

    @property
    def use(self) -> LayerUse:
        residency = self.residency
        return LayerUse(
            total=len(self._images),
            at_once=residency.window,
            present=len(residency.layers),
            brought=residency.num_placed,
            evicted=residency.num_evicted,
        )

    @contextmanager
    def running(self, index: int) -> Iterator[DeviceLayer]:
        self._awaited.difference_update(self.residency.evict_behind(index))
        if index not in self.residency.layers:
            self._bring(index)
        yield self._laid(index)
        # Behind the launches: copying bytes for the card takes this thread longer than the card a layer.
        for each in self.residency.wanted(index):
            if each not in self.residency.layers:
                self._bring(each)

    def _laid(self, index: int) -> DeviceLayer:
        if index in self._awaited:
            self._driver.work_waits(self._arrived[index])
            self._awaited.remove(index)
        image, buffers = self._images[index], self.residency.buffers(index)
        for buffer in buffers:
            buffer.reader = index
        try:
            linears = [
                matrix.lay(buffer.address, place, self._kernels, self._driver)
                for matrix, buffer, place in zip(image.matrices, buffers, self._places, strict=False)
            ]
        finally:  # also of launches that were broken off: they may be reading
            self._driver.mark_work(self._passed[index])
        return image.with_matrices(linears)

    def _bring(self, index: int) -> None:
        """Has a layer uploaded into buffers that others left, behind the last work that reads those."""
        image = self._images[index]
        buffers = self.residency.place(index)
        try:
            for reader in {each.reader for each in buffers if each.reader is not None}:
                self._driver.uploads_wait(self._passed[reader])
            for matrix, buffer in zip(image.matrices, buffers, strict=True):
                matrix.send(buffer.address, self._driver.upload_ahead)
            self._driver.mark_uploads(self._arrived[index])
        except BaseException:
            self.residency.release(index)
            raise
        self._awaited.add(index)
