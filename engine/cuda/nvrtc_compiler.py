"""Kernels compiled by NVRTC, which comes as a Python package: no toolkit is needed on the person's machine,
and no card to compile for one.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from engine.cuda.driver import CardFaultError, CardInfo
from engine.notices import Notice

if TYPE_CHECKING:
    from engine.code_cache import CodeCache

OPTIONS = (
    "--std=c++17",
    # Results must have the same bits in whatever kernel they are computed, so the compiler may not choose
    # by itself where to round once in place of twice. The other three are its defaults.
    "--fmad=false",
    "--ftz=false",
    "--prec-div=true",
    "--prec-sqrt=true",
    "--no-source-include",  # else a file that happens to lie in the working directory would come in
)

_COMPLAINT = re.compile(
    r"^(?:(?P<file>[^\s()]+)\((?P<line>\d+)\): )?(?:catastrophic )?error\b[^:]*: (?P<what>.+)$"
)


def nvrtc_version() -> tuple[int, int]:
    """Raises ImportError where cuda-bindings is absent, RuntimeError or OSError where NVRTC is."""
    from cuda.bindings import nvrtc

    result, major, minor = nvrtc.nvrtcVersion()
    if int(result) != 0:
        raise RuntimeError(f"NVRTC answers with error {int(result)}")
    return major, minor


class NvrtcCompiler:
    """A `KernelCompiler`. Any thread may use it; others go on meanwhile.

    notices: what the person should know of what was compiled, each once.
    """

    def __init__(self, *, cache: CodeCache | None = None) -> None:
        """cache: where code is looked for before it is made, and kept. Nowhere if None."""
        self._cache = cache
        self._notices: dict[str, Notice] = {}

    @property
    def notices(self) -> tuple[Notice, ...]:
        return tuple(self._notices.values())

    def compile(self, sources: dict[str, str], main: str, *, card: CardInfo) -> bytes:
        """Machine code of exactly this card. Where NVRTC is older than the card, PTX for the newest that it
        knows, which the driver finishes while loading it. See `KernelCompiler`.
        """
        assert main in sources
        try:
            version, architectures = nvrtc_version(), _known_architectures()
        except (ImportError, OSError, RuntimeError) as error:
            why = str(error).splitlines()[0].rstrip(".")
            raise CardFaultError(
                f"NVIDIA's compiler (NVRTC) can't be used: {why}.",
                "Install cuda-bindings and the NVRTC package anew.",
            ) from error
        architecture = self._architecture(card, architectures, version)
        options = (f"--gpu-architecture={architecture}", *OPTIONS)
        key = (*_flat(sources), main, *options, f"NVRTC {version[0]}.{version[1]}")
        code = None if self._cache is None else self._cache.get(key)
        if code is None:
            code = _compiled(sources, main, options, is_machine_code=architecture.startswith("sm_"))
            if self._cache is not None:
                self._cache.put(key, code)
        return code

    def _architecture(self, card: CardInfo, known: list[int], version: tuple[int, int]) -> str:
        """As NVRTC names what is made. known: what it can make, as 10 * major + minor."""
        wanted = 10 * card.compute_capability[0] + card.compute_capability[1]
        if wanted in known:
            return f"sm_{wanted}"
        older = [architecture for architecture in known if architecture < wanted]
        name = f"NVIDIA's compiler (NVRTC {version[0]}.{version[1]})"
        if not older:
            raise CardFaultError(
                f"{name} makes no code for the card {card.name} any more.", "Install an older NVRTC package."
            )
        self._notices["card-compiler-old"] = Notice(
            "card-compiler-old",
            f"{name} is older than the card {card.name}, so the driver compiles the rest by itself, which "
            "may make the first load slow.",
            "Install a newer NVRTC package.",
        )
        return f"compute_{max(older)}"


def _known_architectures() -> list[int]:
    from cuda.bindings import nvrtc

    result, architectures = nvrtc.nvrtcGetSupportedArchs()
    if int(result) != 0:
        raise RuntimeError(f"NVRTC answers with error {int(result)}")
    return list(architectures)


def _flat(sources: dict[str, str]) -> list[str]:
    return [part for name in sorted(sources) for part in (name, sources[name])]


def _compiled(
    sources: dict[str, str], main: str, options: tuple[str, ...], *, is_machine_code: bool
) -> bytes:
    """Raises CardFaultError."""
    from cuda.bindings import nvrtc

    headers = {name.encode(): text.encode() for name, text in sources.items() if name != main}
    result, program = nvrtc.nvrtcCreateProgram(
        sources[main].encode(), main.encode(), len(headers), list(headers.values()), list(headers)
    )
    _check(result, main)
    try:
        (result,) = nvrtc.nvrtcCompileProgram(program, len(options), [option.encode() for option in options])
        if int(result) != 0:
            log = _output(nvrtc.nvrtcGetProgramLogSize, nvrtc.nvrtcGetProgramLog, program, main)
            raise _failure(main, _first_complaint(log.rstrip(b"\0").decode("utf-8", "replace"), result))
        if is_machine_code:
            return _output(nvrtc.nvrtcGetCUBINSize, nvrtc.nvrtcGetCUBIN, program, main)
        return _output(nvrtc.nvrtcGetPTXSize, nvrtc.nvrtcGetPTX, program, main)  # with the NUL that ends it
    finally:
        nvrtc.nvrtcDestroyProgram(program)


def _output(get_size: Any, get: Any, program: Any, main: str) -> bytes:
    result, size = get_size(program)
    _check(result, main)
    output = bytearray(size)
    (result,) = get(program, output)
    _check(result, main)
    return bytes(output)


def _check(result: Any, main: str) -> None:
    if int(result) != 0:
        raise _failure(main, _name(result))


def _name(result: Any) -> str:
    return str(getattr(result, "name", result))


def _failure(main: str, complaint: str) -> CardFaultError:
    return CardFaultError(
        f"The card's kernels ({main}) can't be compiled: {complaint}.",
        "Choose the CPU, and install the NVRTC package anew if its files may be damaged.",
    )


def _first_complaint(log: str, result: Any) -> str:
    """In words, with file and line; the name of the result where the log has none."""
    for line in log.splitlines():
        complaint = _COMPLAINT.match(line)
        if complaint is not None:
            what = complaint["what"].strip().rstrip(".")
            return f"{complaint['file']}, line {complaint['line']}: {what}" if complaint["file"] else what
    return _name(result)
