"""The real compiler, where it is installed: it needs no card."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from machine_code import frame_bytes

from engine.code_cache import CodeCache
from engine.cuda import nvrtc_compiler
from engine.cuda.driver import CardFaultError, CardInfo
from engine.cuda.kernel_set import compiled_units, kernel_sources
from engine.cuda.nvrtc_compiler import NvrtcCompiler, nvrtc_version
from engine.cuda.row_forms import INTEGER_FORMS

ROOT = Path(__file__).resolve().parent.parent.parent
OF_A_TOKEN = [
    *(
        f"product_codes{bits}_{form}_one{sink}"
        for bits in (4, 8)
        for form in INTEGER_FORMS
        for sink in ("", "_wide", "_gated", "_gated_wide", "_choosing", "_gated_values_choosing")
    ),
    "attend_token_128",
    *(f"router_{kind}" for kind in ("float32", "float16", "bfloat16")),
    "mix_experts",
]
KERNEL = 'extern "C" __global__ void fill(int* out, int value) { out[threadIdx.x] = value; }'
WITH_HEADER = {"main.cu": f'#include "size.cuh"\n{KERNEL}', "size.cuh": "#define SIZE 4"}


def card(major: int, minor: int) -> CardInfo:
    return CardInfo("Card", (major, minor), 2**30, 1, "580.95")


@pytest.fixture
def _nvrtc() -> None:
    try:
        nvrtc_version()
    except (ImportError, OSError, RuntimeError) as error:
        pytest.skip(f"NVRTC is not installed: {str(error).splitlines()[0]}")


@pytest.mark.usefixtures("_nvrtc")
@pytest.mark.parametrize("capability", [(8, 0), (9, 0), (12, 0)])
def test_the_kernels_become_machine_code_of_each_card_from_eight_on(capability: tuple[int, int]) -> None:
    compiler = NvrtcCompiler()
    codes = compiled_units(compiler, card(*capability))
    assert all(code.startswith(b"\x7fELF") for code in codes)
    assert compiler.notices == ()
    if capability == (9, 0):  # whose speed was measured: one of them in memory, and a token takes 9% longer
        frames = {name: size for code in codes for name, size in frame_bytes(code).items()}
        assert {name: frames[name] for name in OF_A_TOKEN} == dict.fromkeys(OF_A_TOKEN, 0)


@pytest.mark.usefixtures("_nvrtc")
@pytest.mark.parametrize("name", sorted(name for name in kernel_sources() if name.endswith(".cu")))
def test_each_file_of_kernels_compiles_by_itself(name: str) -> None:
    assert NvrtcCompiler().compile(kernel_sources(), name, card=card(9, 0)).startswith(b"\x7fELF")


@pytest.mark.usefixtures("_nvrtc")
def test_what_a_block_stores_in_fours_lies_where_fours_may() -> None:
    """The compiler would give an array of single numbers any multiple of 4."""
    ptx = NvrtcCompiler().compile(kernel_sources(), "attention.cu", card=card(99, 0)).decode()
    assert "st.shared.v4.f32" in ptx
    assert set(re.findall(r"\.shared \.align (\d+) \.b8 \w*attend\w*sums\[", ptx)) == {"16"}
    ptx = NvrtcCompiler().compile(kernel_sources(), "router.cu", card=card(99, 0)).decode()
    assert set(re.findall(r"\.shared \.align (\d+) \.b8 dynamic_shared_bytes\[", ptx)) == {"16"}


@pytest.mark.usefixtures("_nvrtc")
def test_products_and_sums_are_not_joined_unasked() -> None:
    text = 'extern "C" __global__ void f(float* a) { a[0] = a[1] * a[2] + a[3]; }'
    ptx = NvrtcCompiler().compile({"f.cu": text}, "f.cu", card=card(99, 0)).decode()
    assert "fma" not in ptx
    assert "mul" in ptx


@pytest.mark.usefixtures("_nvrtc")
def test_a_card_newer_than_the_compiler_gets_text_that_its_driver_finishes_and_that_is_told() -> None:
    compiler = NvrtcCompiler()
    for _ in range(2):
        code = compiler.compile({"fill.cu": KERNEL}, "fill.cu", card=card(99, 9))
    assert b".target sm_" in code
    assert code.endswith(b"\0")
    assert [notice.code for notice in compiler.notices] == ["card-compiler-old"]


@pytest.mark.usefixtures("_nvrtc")
def test_a_card_older_than_all_that_the_compiler_knows_is_refused() -> None:
    with pytest.raises(CardFaultError, match="no code for the card"):
        NvrtcCompiler().compile({"fill.cu": KERNEL}, "fill.cu", card=card(1, 0))


@pytest.mark.usefixtures("_nvrtc")
@pytest.mark.parametrize(
    ("sources", "complaint"),
    [
        ({"main.cu": "\nint broken(\n"}, "main.cu, line"),
        ({"main.cu": '#include "a.cuh"', "a.cuh": "\n\n__device__ int f() { return nothing; }"},
         'a.cuh, line 3: identifier "nothing" is undefined.'),
        ({"main.cu": '#include "absent.cuh"'}, 'main.cu, line 1: could not open source file "absent.cuh"'),
        ({"main.cu": "#include <stdio.h>"}, 'could not open source file "stdio.h"'),
        ({"main.cu": "#error no such luck"}, "no such luck"),
    ],
)  # fmt: skip
def test_the_first_complaint_is_told_in_one_sentence(sources: dict[str, str], complaint: str) -> None:
    with pytest.raises(CardFaultError) as caught:
        NvrtcCompiler().compile(sources, "main.cu", card=card(9, 0))
    assert complaint in caught.value.message
    assert "\n" not in caught.value.message


@pytest.mark.usefixtures("_nvrtc")
def test_a_file_in_the_working_directory_never_comes_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "absent.cuh").write_text("#define FOUND 1\n")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(CardFaultError, match=r"absent\.cuh"):
        NvrtcCompiler().compile({"main.cu": '#include "absent.cuh"'}, "main.cu", card=card(9, 0))


@pytest.mark.usefixtures("_nvrtc")
def test_code_is_made_once_for_each_text_and_card(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str] = []
    compiled = nvrtc_compiler._compiled

    def counting(
        sources: dict[str, str], main: str, options: tuple[str, ...], *, is_machine_code: bool
    ) -> bytes:
        made.append(options[0])
        return compiled(sources, main, options, is_machine_code=is_machine_code)

    monkeypatch.setattr(nvrtc_compiler, "_compiled", counting)

    def compile_for(sources: dict[str, str], major: int) -> bytes:
        return NvrtcCompiler(cache=CodeCache(tmp_path)).compile(sources, "main.cu", card=card(major, 0))

    first = compile_for(WITH_HEADER, 8)
    assert compile_for(WITH_HEADER, 8) == first
    assert made == ["--gpu-architecture=sm_80"]
    compile_for(WITH_HEADER, 9)
    compile_for({**WITH_HEADER, "size.cuh": "#define SIZE 5"}, 8)
    assert made == [f"--gpu-architecture=sm_{architecture}" for architecture in (80, 90, 80)]


def test_an_absent_compiler_is_told_in_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent() -> tuple[int, int]:
        raise RuntimeError('Failure finding "libnvrtc.so.12": no such file\nlooked in many places')

    monkeypatch.setattr(nvrtc_compiler, "nvrtc_version", absent)
    with pytest.raises(CardFaultError) as caught:
        NvrtcCompiler().compile({"fill.cu": KERNEL}, "fill.cu", card=card(9, 0))
    assert caught.value.message == (
        "NVIDIA's compiler (NVRTC) can't be used: Failure finding \"libnvrtc.so.12\": no such file."
    )


def test_the_compiler_needs_neither_torch_nor_pycuda() -> None:
    script = (
        "import sys, engine.cuda.availability as a, engine.cuda.nvrtc_compiler as n\n"
        "a.find_card()\n"
        "print([name for name in sys.modules if name.split('.')[0] in ('torch', 'pycuda')])"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout == "[]\n"
