"""Everything that a person, a file or a machine can cause. Only `engine/__main__.py` turns these into
exit codes.

`message` is one sentence that names the file or setting; `hint` is one sentence that says what to do, or "".
Mistakes that only the program itself can make stay `assert`.
"""

from __future__ import annotations


class EngineError(Exception):
    """Base of all. `code` is stable and meant for programs; `message` and `hint` are meant for people."""

    code = "engine-error"

    def __init__(self, message: str, hint: str = "", *, code: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        if code is not None:
            self.code = code

    def __str__(self) -> str:
        return f"{self.message} {self.hint}".strip()


class ModelFileError(EngineError):
    """A model folder or file is missing something, damaged, or contradicts itself."""

    code = "model-file"


class UnsupportedModelError(EngineError):
    """The files are sound, but they hold something this engine doesn't do; the message names it."""

    code = "unsupported-model"


class TokenizerError(EngineError):
    """The tokenizer can't be built from the files."""

    code = "tokenizer"


class ChatTemplateError(EngineError):
    """The chat template can't be compiled, raises for every rewrite of the messages, or does not end."""

    code = "chat-template"


class SettingError(EngineError):
    """A value given by the person is out of range or not available here; the message holds the value."""

    code = "setting"


class OutOfMemoryError(EngineError):
    """Something does not fit in the memory that is free; the message holds both numbers."""

    code = "out-of-memory"


class ContextFullError(EngineError):
    """The prompt fills the context: it is longer, or leaves no room for an answer."""

    code = "context-full"


class ComputeFaultError(EngineError):
    """The model computed something that isn't a number."""

    code = "compute-fault"


class DeviceFaultError(EngineError):
    """The device that computes failed: what it holds is gone, and nothing more can be computed there."""

    code = "device-fault"


class StepRefusedError(EngineError):
    """The device was not prepared for a step; nothing of it was done, and another device can do it."""

    code = "step-refused"


class ModelUnloadedError(EngineError):
    """The engine was closed, perhaps in the middle of an answer."""

    code = "model-unloaded"

    def __init__(self) -> None:
        super().__init__("The model was unloaded.", "Load it again, then ask once more.")


class Cancelled(Exception):  # noqa: N818  (not an error: the person asked for it)
    """Raised inside the engine when the caller's cancel event is set. Carries nothing."""
