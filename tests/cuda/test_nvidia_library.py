"""Kernels as the NVIDIA driver's library is told of them: what arrives behind its C functions."""

from __future__ import annotations

import ctypes
import struct

import pytest

from engine.cuda.nvidia_library import (
    MAX_DYNAMIC_SHARED_SIZE_BYTES,
    PREFERRED_SHARED_MEMORY_CARVEOUT,
    SHARED_SIZE_BYTES,
    LaunchAttribute,
    LaunchConfig,
    Launcher,
    NvidiaError,
    NvidiaLibrary,
)

STREAM, MODULE, FUNCTION = 0x5555_0000_1234_5678, 0x5555_0000_2345_6789, 0x5555_0000_3456_789A
POINTER, INT = ctypes.c_void_p, ctypes.c_int


class Arguments(ctypes.Structure):
    _fields_ = (("address", ctypes.c_int64), ("count", ctypes.c_int32))


class Libcuda:
    """Its functions are called as the library's are: a handle that is passed as anything but a pointer would
    lose its upper half. code: what they return.
    """

    def __init__(self) -> None:
        self.code = 0
        self.calls: list[tuple[object, ...]] = []
        self.cuModuleLoadData = ctypes.CFUNCTYPE(INT, POINTER, POINTER)(self._load)
        self.cuModuleUnload = ctypes.CFUNCTYPE(INT, POINTER)(lambda module: self._told("unload", module))
        self.cuModuleGetFunction = ctypes.CFUNCTYPE(INT, POINTER, POINTER, ctypes.c_char_p)(self._get)
        self.cuFuncGetAttribute = ctypes.CFUNCTYPE(INT, POINTER, INT, POINTER)(self._attribute)
        self.cuFuncSetAttribute = ctypes.CFUNCTYPE(INT, POINTER, INT, INT)(
            lambda function, attribute, value: self._told("set", function, attribute, value)
        )
        self.cuLaunchKernelEx = ctypes.CFUNCTYPE(INT, POINTER, POINTER, POINTER, POINTER)(self._launch)
        self.cuGetErrorString = ctypes.CFUNCTYPE(INT, INT, POINTER)(lambda code, words: 1)

    def _told(self, *call: object) -> int:
        self.calls.append(call)
        return self.code

    def _load(self, module: int, code: int) -> int:
        POINTER.from_address(module).value = MODULE
        return self._told("load", ctypes.string_at(code, 6))

    def _get(self, function: int, module: int, name: bytes) -> int:
        POINTER.from_address(function).value = FUNCTION
        return self._told("get", module, name)

    def _attribute(self, value: int, attribute: int, function: int) -> int:
        INT.from_address(value).value = 1000 + attribute
        return self._told("attribute", function)

    def _launch(self, config: int, function: int, parameters: int, extra: int | None) -> int:
        """As cuda.h has it: CUlaunchConfig, and CUlaunchAttribute behind its second pointer."""
        *numbers, stream, attributes, num_attributes = struct.unpack(
            "=7I4xQQI4x", ctypes.string_at(config, 56)
        )
        told = [
            struct.unpack("=I4xI60x", ctypes.string_at(attributes + 72 * index, 72))
            for index in range(num_attributes)
        ]
        argument = ctypes.string_at(POINTER.from_address(parameters).value or 0, ctypes.sizeof(Arguments))
        return self._told("launch", numbers, stream, told, function, argument, extra)


def test_a_module_and_its_kernel_are_known_by_whole_handles() -> None:
    libcuda = Libcuda()
    library = NvidiaLibrary(libcuda)
    assert library.load_module(b"\x7fEL\0F!") == MODULE
    assert library.function(MODULE, "attend") == FUNCTION
    assert library.function_attribute(FUNCTION, SHARED_SIZE_BYTES) == 1001
    library.set_function_attribute(FUNCTION, MAX_DYNAMIC_SHARED_SIZE_BYTES, 100_000)
    library.set_function_attribute(FUNCTION, PREFERRED_SHARED_MEMORY_CARVEOUT, 100)
    library.unload_module(MODULE)
    assert libcuda.calls == [
        ("load", b"\x7fEL\0F!"),
        ("get", MODULE, b"attend"),
        ("attribute", FUNCTION),
        ("set", FUNCTION, 8, 100_000),
        ("set", FUNCTION, 9, 100),
        ("unload", MODULE),
    ]


def test_each_launch_is_told_whole_and_leaves_nothing_to_the_next() -> None:
    libcuda = Libcuda()
    launcher = Launcher(NvidiaLibrary(libcuda), STREAM)
    first, second = Arguments(2**40, 7), Arguments(2**41, -8)
    launcher.launch(FUNCTION, first, grid=(2**31 - 1, 3, 65_535), block=512, shared_bytes=9, overlaps=True)
    launcher.launch(MODULE, second, grid=(4, 1, 2), block=32, shared_bytes=0, overlaps=False)
    overlap = (6, 1)  # CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION, allowed
    assert libcuda.calls == [
        ("launch", [2**31 - 1, 3, 65_535, 512, 1, 1, 9], STREAM, [overlap], FUNCTION, bytes(first), None),
        ("launch", [4, 1, 2, 32, 1, 1, 0], STREAM, [], MODULE, bytes(second), None),
    ]


def test_a_refused_launch_is_told_by_its_code() -> None:
    libcuda = Libcuda()
    launcher = Launcher(NvidiaLibrary(libcuda), STREAM)
    libcuda.code = 719
    with pytest.raises(NvidiaError, match="error 719") as caught:
        launcher.launch(FUNCTION, Arguments(), grid=(1, 1, 1), block=32, shared_bytes=0, overlaps=False)
    assert caught.value.code == 719


def test_structures_of_a_launch_are_as_their_maker_has_them() -> None:
    maker = pytest.importorskip("cuda.bindings.driver")
    theirs = maker.CUlaunchConfig()
    theirs.gridDimX, theirs.gridDimY, theirs.gridDimZ = 1, 2, 3
    theirs.blockDimX, theirs.blockDimY, theirs.blockDimZ = 4, 5, 6
    theirs.sharedMemBytes, theirs.hStream = 7, maker.CUstream(STREAM)
    attribute = maker.CUlaunchAttribute()
    attribute.id = maker.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
    attribute.value.programmaticStreamSerializationAllowed = 1
    theirs.attrs, theirs.numAttrs = [attribute], 1
    found = LaunchConfig.from_address(theirs.getPtr())
    assert (list(found.grid), list(found.block), found.shared_bytes) == ([1, 2, 3], [4, 5, 6], 7)
    assert (found.stream, found.num_attributes) == (STREAM, 1)
    assert (found.attributes[0].id, found.attributes[0].value[0]) == (6, 1)
    assert (ctypes.sizeof(LaunchConfig), ctypes.sizeof(LaunchAttribute)) == (56, 72)
