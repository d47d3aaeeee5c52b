"""LLVM IR made into code for this processor. It needs no torch, so it can be done while torch comes in."""

from __future__ import annotations

import functools
import threading
from collections.abc import Sequence
from typing import Any

from engine.code_cache import CodeCache
from engine.default_folders import code_folder
from engine.runtime import await_libraries

_PIPELINE = 1  # raised with every change of how a text is made into code

_compiling = threading.Lock()


def begin_compiling(texts: Sequence[str]) -> None:
    """Has a thread compile what is going to be asked for; `compiled` finds it, or waits for it."""

    def compile_all() -> None:
        await_libraries()
        for text in texts:
            compiled(text)

    threading.Thread(target=compile_all, name="compile-kernels").start()


def compiled(text: str) -> Any | None:
    """The execution engine that owns the code of a module. None where LLVM can't be had: every caller has a
    plain path in torch beside it. A text is compiled once (some 0.1 s) on each machine, and its code kept.
    """
    with _compiling:
        return _compiled_once(text)


@functools.cache
def _compiled_once(text: str) -> Any | None:
    try:
        import llvmlite.binding as llvm
    except (ImportError, OSError):
        return None
    try:
        llvm.initialize_native_target()
        llvm.initialize_native_asmprinter()
        cpu, features = llvm.get_host_cpu_name(), llvm.get_host_cpu_features().flatten()
        return compiled_for(text, cpu, features, cache=CodeCache(code_folder()))
    except RuntimeError:  # an LLVM that is too old for the text, or a system that lets no memory be code
        return None


def compiled_for(text: str, cpu: str, features: str = "", *, cache: CodeCache | None = None) -> Any:
    """For a processor and features in LLVM's words, which this one has to have; LLVM is initialised. Raises
    RuntimeError.

    cache: where code is looked for before it is made, and kept. Nowhere if None.
    """
    import llvmlite.binding as llvm

    machine = llvm.Target.from_default_triple().create_target_machine(cpu=cpu, features=features, opt=3)
    key = (text, cpu, features, machine.triple, _compiler_version())
    code = None if cache is None else cache.get(key)
    if code is None:
        code = machine.emit_object(optimised_module(text, machine))
        if cache is not None:
            cache.put(key, code)
    engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), machine)
    engine.add_object_file(llvm.ObjectFileRef.from_data(code))
    engine.finalize_object()
    return engine


def _compiler_version() -> str:
    import llvmlite
    import llvmlite.binding as llvm

    return f"llvmlite {llvmlite.__version__}, LLVM {llvm.llvm_version_info}, pipeline {_PIPELINE}"


def optimised_module(text: str, machine: Any) -> Any:
    """The text as an LLVM module for that target machine. Raises RuntimeError. What is changed here or in
    the target machine's options has to change `_PIPELINE` too.
    """
    import llvmlite.binding as llvm

    module = llvm.parse_assembly(text)
    module.verify()
    builder = llvm.create_pass_builder(machine, llvm.create_pipeline_tuning_options(speed_level=2))
    builder.getModulePassManager().run(module, builder)
    return module
