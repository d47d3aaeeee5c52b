"""From a model that the CPU has loaded to the same on the card; and where that fails, why."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from engine.config import Activations, DeviceChoice
from engine.cuda.availability import NoCard, find_card
from engine.cuda.driver import CardFaultError, CardInfo
from engine.errors import EngineError, OutOfMemoryError, SettingError, UnsupportedModelError
from engine.kv_geometry import KvFormat
from engine.notices import Notice
from engine.progress import ProgressCallback

if TYPE_CHECKING:
    from engine.cpu.backend import CpuBackend
    from engine.cuda.backend import CudaBackend


def card_for(choice: DeviceChoice) -> CardInfo | NoCard | None:
    """The card that a model is to run on, or why there is none; None where nobody asked for one. Raises
    SettingError where the card was asked for and there is none.
    """
    if choice == "cpu":
        return None
    card = find_card()
    if isinstance(card, NoCard) and choice == "cuda":
        raise card.as_error()
    return card


def load_on_card(
    cpu: CpuBackend,
    *,
    activations: Activations,
    context: int,
    vram_budget: int | None,
    window: int,
    kv: KvFormat,
    on_progress: ProgressCallback,
    cancel: threading.Event | None,
) -> tuple[CudaBackend | None, tuple[Notice, ...]]:
    """The model on the card, or None and a notice that says why the CPU computes instead. Raises
    Cancelled.

    Has to be called by the thread that is going to use it.
    """
    from engine.code_cache import CodeCache
    from engine.cuda.availability import open_card
    from engine.cuda.backend import CudaBackend
    from engine.cuda.nvrtc_compiler import NvrtcCompiler
    from engine.default_folders import code_folder

    compiler = NvrtcCompiler(cache=CodeCache(code_folder()))
    try:
        driver = open_card()
        try:
            backend = CudaBackend(
                cpu,
                driver,
                compiler,
                activations=activations,
                context=context,
                vram_budget=vram_budget,
                window=window,
                kv=kv,
                on_progress=on_progress,
                cancel=cancel,
            )
        except BaseException:
            driver.close()
            raise
    except (CardFaultError, OutOfMemoryError, SettingError, UnsupportedModelError) as error:
        return None, (fallback_notice(error),)
    return backend, (*compiler.notices, *window_notices(window, backend.window, cpu.spec.num_layers))


def window_notices(asked: int, window: int | None, num_layers: int) -> tuple[Notice, ...]:
    """asked: as in `EngineConfig`. window: what came of it, None where all layers are on the card."""
    if window is not None:
        return (
            Notice(
                "window-on",
                f"Only {window} of {num_layers} layers are in the card's memory at once: every token reads "
                "the weights from the computer's memory again, so answers are slower.",
                "Leave the choice to the program, which has as many there as fit."
                if asked
                else "Close other programs that use the card, or pick a smaller model or packed weights.",
            ),
        )
    if asked:
        return (
            Notice("window-unused", f"The window has no effect: the model has {num_layers} layers in all."),
        )
    return ()


def fallback_notice(error: EngineError) -> Notice:
    return Notice("card-fallback", f"The model runs on the CPU, not on the card: {error.message}", error.hint)
