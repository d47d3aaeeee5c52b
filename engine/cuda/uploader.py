"""Puts the weights that stay into the card's memory."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from engine.cpu.matrices import Matrix
from engine.cuda.driver import NOWHERE, Address, as_bytes
from engine.cuda.kernel_set import KernelSet
from engine.cuda.matrices import DeviceLinear, LinearImage, linear_image
from engine.cuda.memory import CardMemory, Use


class Uploader:
    """num_bytes: of what it has put there. Holds a buffer through which matrices come, until `finish`."""

    def __init__(self, memory: CardMemory, kernels: KernelSet) -> None:
        self._memory = memory
        self._kernels = kernels
        self._passage = NOWHERE
        self._passage_bytes = 0
        self.num_bytes = 0

    def linear(self, matrices: Sequence[Matrix]) -> DeviceLinear:
        """As for `linear_image`."""
        return self.image(linear_image(matrices))

    def image(self, image: LinearImage) -> DeviceLinear:
        address = self._allocate(image.num_bytes)
        self.make_room(image.raw_bytes)
        image.send(self._passage, self._memory.driver.upload)
        return image.lay(self._passage, address, self._kernels, self._memory.driver)

    def tensor(self, tensor: torch.Tensor) -> Address:
        address = self._allocate(tensor.nbytes)
        self._memory.driver.upload(address, as_bytes(tensor.contiguous().view(-1).view(torch.uint8)))
        return address

    def make_room(self, num_bytes: int) -> None:
        """For matrices of up to so many bytes to come through."""
        if num_bytes > self._passage_bytes:
            self.finish()
            self._passage = self._memory.allocate(num_bytes, Use.WORKSPACE)
            self._passage_bytes = num_bytes

    def finish(self) -> None:
        """What comes later takes a buffer anew."""
        if self._passage:
            self._memory.free(self._passage)
        self._passage, self._passage_bytes = NOWHERE, 0

    def _allocate(self, num_bytes: int) -> Address:
        address = self._memory.allocate(num_bytes, Use.WEIGHTS)
        self.num_bytes += num_bytes
        return address
