"""Machine code: made once, by whoever asks first, and without torch."""

from __future__ import annotations

import ctypes
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from engine.code_cache import CodeCache
from engine.cpu import compiler

ROOT = Path(__file__).resolve().parents[3]


def text_that_gives(number: int) -> str:
    return f"define i32 @answer() {{\n  ret i32 {number}\n}}\n"


def answer(engine: object) -> int:
    address = engine.get_function_address("answer")  # type: ignore[attr-defined]
    return int(ctypes.CFUNCTYPE(ctypes.c_int32)(address)())


def test_a_text_is_compiled_once_whoever_asks() -> None:
    text = text_that_gives(41)
    compiler.begin_compiling([text])
    found: list[object] = []
    threads = [threading.Thread(target=lambda: found.append(compiler.compiled(text))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({id(engine) for engine in found}) == 1
    assert answer(found[0]) == 41
    assert answer(compiler.compiled(text_that_gives(42))) == 42


def test_no_torch_is_needed() -> None:
    program = (
        "import sys\n"
        "from engine.cpu import compiler, kv_ir, strip_ir, swiglu_ir\n"
        "texts = strip_ir.kernel_text(), swiglu_ir.kernel_text(), kv_ir.kernel_text('int8')\n"
        "assert all(compiler.compiled(text) is not None for text in texts)\n"
        "assert 'torch' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, cwd=ROOT, timeout=120)


def test_an_unusable_text_is_none_and_no_error() -> None:
    assert compiler.compiled("this is no program") is None


def test_kept_code_is_used_without_compiling(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import llvmlite.binding as llvm

    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    cpu, text = llvm.get_host_cpu_name(), text_that_gives(43)
    cache = CodeCache(tmp_path)
    assert answer(compiler.compiled_for(text, cpu, cache=cache)) == 43
    compiled = compiler.optimised_module

    def never(*_: object) -> None:
        raise AssertionError("it was there already")

    monkeypatch.setattr(compiler, "optimised_module", never)
    assert answer(compiler.compiled_for(text, cpu, cache=cache)) == 43
    monkeypatch.setattr(compiler, "optimised_module", compiled)
    [path] = tmp_path.iterdir()
    path.write_bytes(path.read_bytes()[:-1])
    assert answer(compiler.compiled_for(text, cpu, cache=cache)) == 43
    assert answer(compiler.compiled_for(text_that_gives(44), cpu, cache=cache)) == 44
