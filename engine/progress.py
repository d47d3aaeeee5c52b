"""Progress of a load, as plain data: the same records feed the command line and the window."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum


class LoadStage(StrEnum):
    """Stages of a load, in order."""

    OPEN = "open"  # config, tokenizer and template are read and checked
    RUNTIME = "runtime"  # torch is imported
    WEIGHTS = "weights"  # tensors are read and laid out; done/total count bytes
    UPLOAD = "upload"  # what a card computes with goes into its memory; done/total count bytes
    CHECK = "check"  # a few fixed tokens are run: finite logits, not one repeated id


@dataclass(frozen=True)
class LoadProgress:
    """`done` of `total` bytes of this stage; both 0 where a stage can't be counted."""

    stage: LoadStage
    done: int = 0
    total: int = 0

    @property
    def fraction(self) -> float | None:
        return self.done / self.total if self.total else None


ProgressCallback = Callable[[LoadProgress], None]


def no_progress(_: LoadProgress) -> None:
    """For callers that don't watch."""
