"""What opening a model finds out, piece by piece, so that one way through the files serves two callers.

Loading stops at the first problem; inspection goes on and collects all of them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Literal

from engine.errors import EngineError
from engine.generation import SamplingParams
from engine.models.spec import ModelSpec, Parameter
from engine.notices import Notice
from engine.weights.source import TensorSource

if TYPE_CHECKING:
    from engine.tokenizers.tokenizer import TokenizerSource


class Problems:
    """`with problems:` runs a step that may fail with an EngineError.

    `collect` keeps the failures as notices; without it the first one goes through.
    """

    def __init__(self, *, collect: bool) -> None:
        self.found: list[Notice] = []
        self._collect = collect

    def __enter__(self) -> None:
        """Nothing to prepare, so steps may stand inside each other."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> bool:
        if not self._collect or not isinstance(error, EngineError):
            return False
        self.found.append(Notice(error.code, error.message, error.hint))
        return True


@dataclass
class ModelParts:
    """Everything that could be read of a model; None or empty where a problem was in the way.

    Whoever asked for it closes it.
    """

    path: Path
    name: str
    kind: Literal["safetensors", "gguf"]
    architecture: str = ""
    spec: ModelSpec | None = None
    parameters: tuple[Parameter, ...] = ()
    tensors: TensorSource | None = None
    file_bytes: int = 0
    tokenizer: TokenizerSource | None = None
    chat_template: str | None = None
    eos_token_ids: frozenset[int] = frozenset()
    sampling_defaults: SamplingParams = field(default_factory=SamplingParams)
    notices: list[Notice] = field(default_factory=list)

    def close(self) -> None:
        if self.tensors is not None:
            self.tensors.close()
