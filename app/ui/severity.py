"""How urgent a notice looks. What the program doesn't know by its code is a warning, never less."""

from __future__ import annotations

from enum import Enum

from app.language import mark


class Severity(Enum):
    """The value is (icon, colour of the theme, word for screen readers in English)."""

    INFO = ("info", "accent", mark("Note"))
    WARNING = ("warning", "warning", mark("Warning"))
    ERROR = ("error", "danger", mark("Error"))


# Something did not work.
_ERRORS = frozenset(
    {
        "card-fault",
        "card-lost",
        "chat-template",
        "chat-template-limit",
        "compute-fault",
        "device-fault",
        "disk-full",
        "engine-error",
        "fault",
        "model-file",
        "out-of-memory",
        "step-refused",
        "store-damaged",
        "store-failed",
        "store-locked",
        "store-unavailable",
        "system-error",
        "tokenizer",
        "unsupported-model",
    }
)
# Everything works; this is only how.
_INFOS = frozenset(
    {
        "activations-unused",
        "answer-in-progress",
        "answer-saved",
        "conversations-exported",
        "conversations-imported",
        "card-driver-missing",
        "card-missing",
        "card-too-old",
        "chat-template-chosen",
        "closing",
        "empty-message",
        "empty-title",
        "load-under-way",
        "matrices-not-packed",
        "model-loading",
        "no-model",
        "not-a-model",
        "sampling-default-ignored",
        "setting-without-effect",
        "stored-head-used",
        "tensors-left-out",
        "vram-budget-unused",
        "weights-not-widened",
        "weights-packed",
        "window-unused",
        "transfer-cancelled",
    }
)
_INFO_PREFIXES = ("template-",)  # a rewrite of the messages for the model's template


def severity_of(code: str) -> Severity:
    """By the stable code of a notice."""
    if code in _ERRORS:
        return Severity.ERROR
    if code in _INFOS or code.startswith(_INFO_PREFIXES):
        return Severity.INFO
    return Severity.WARNING
