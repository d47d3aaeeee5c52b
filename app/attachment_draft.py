"""The files that are to go with the next message: read and counted in the background, one after the other.

Tokens are those of the model that is loaded; another model counts anew. What a file would not let be read is
kept with its sentence until the person takes it away or sends the message.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from enum import Enum, auto
from pathlib import Path
from typing import Any

from PySide6.QtCore import QObject, Signal, Slot

from app.attachments import MAX_ATTACHMENTS, Attachment, attachment_name
from app.operations import BackgroundRunner
from engine.errors import Cancelled
from engine.notices import Notice

Encode = Callable[[str], list[int]]
TOO_MANY = Notice(
    "attachment-refused",
    f"A message takes at most {MAX_ATTACHMENTS} files; the others were left out.",
    "Send these first, then attach the others to another message.",
)


class DraftState(Enum):
    READING = auto()
    READY = auto()
    REFUSED = auto()


@dataclass(frozen=True)
class DraftItem:
    id: int
    name: str
    state: DraftState
    attachment: Attachment | None = None  # once it is READY
    tokens: int | None = None  # None: not counted yet, or no model is loaded
    problem: Notice | None = None  # why it is REFUSED


class AttachmentDraft(QObject):
    """Signals: changed(), after anything below has."""

    changed = Signal()

    def __init__(self, encode: Callable[[], Encode | None], parent: QObject | None = None) -> None:
        """encode: what makes ids of text now; None while no model is loaded."""
        super().__init__(parent)
        self._encode_now = encode
        self._encode: Encode | None = None
        self._reader = BackgroundRunner("files", self)
        self._counter = BackgroundRunner("tokens", self)
        self._ids = itertools.count(1)
        self._cancels: dict[int, threading.Event] = {}  # of files that are being read
        self._closed = False
        self._text_wish = 0
        self.items: tuple[DraftItem, ...] = ()
        self.text = ""  # of the message itself, as it was counted last
        self.text_tokens = 0

    @property
    def ready(self) -> tuple[Attachment, ...]:
        """What can be sent now."""
        return tuple(item.attachment for item in self.items if item.attachment is not None)

    @property
    def unread(self) -> tuple[str, ...]:
        """Names of those that are still being read."""
        return tuple(item.name for item in self.items if item.state is DraftState.READING)

    @property
    def busy(self) -> bool:
        """Something is still being read."""
        return any(item.state is DraftState.READING for item in self.items)

    @property
    def num_tokens(self) -> int:
        """Of all that has been counted: the message and its files."""
        return self.text_tokens + sum(item.tokens or 0 for item in self.items)

    def add(self, paths: Sequence[Path]) -> None:
        """Reads these files. Each becomes READY or REFUSED."""
        room = MAX_ATTACHMENTS - sum(item.state is not DraftState.REFUSED for item in self.items)
        for path in paths[: max(0, room)]:
            item = DraftItem(next(self._ids), attachment_name(path.name), DraftState.READING)
            self.items = (*self.items, item)
            self._read(item.id, path)
        if len(paths) > room:
            self._refuse(TOO_MANY)
        self.changed.emit()

    def remove(self, item_id: int) -> None:
        """Takes it away; a read that is under way ends."""
        self._keep(lambda item: item.id != item_id)

    @property
    def settled(self) -> frozenset[int]:
        """Ids of those that will be dealt with when the message is sent as it is now."""
        return frozenset(item.id for item in self.items if item.state is not DraftState.READING)

    def sent(self, ids: Collection[int]) -> None:
        """These were `settled` when a message went; what was added since stays."""
        self._keep(lambda item: item.id not in ids)

    def put(self, items: Sequence[DraftItem]) -> None:
        """These in the place of what there is; all that is being read is given up."""
        kept = {item.id for item in items}
        self._keep(lambda item: item.id in kept)
        self.items = tuple(item for item in items if item.state is not DraftState.READING)
        self.changed.emit()
        self._count_items()

    def put_attachments(self, attachments: Sequence[Attachment], missing: Sequence[str] = ()) -> None:
        """As `put`, with files that were read before. missing: names of those that were not kept."""
        items = [DraftItem(next(self._ids), one.name, DraftState.READY, one) for one in attachments]
        items += [
            DraftItem(next(self._ids), name, DraftState.REFUSED, problem=_not_kept(name)) for name in missing
        ]
        self.put(items)

    def count_text(self, text: str) -> None:
        """How many tokens the message itself has. Only the last one asked for is counted."""
        if text == self.text and self.text_tokens:
            return
        self.text = text
        self._text_wish += 1
        wish = self._text_wish
        if not text or self._encode is None:
            self._take_text_count(wish, 0)
            return
        self._count(text, lambda: wish == self._text_wish, lambda count: self._take_text_count(wish, count))

    @Slot()
    def count_anew(self) -> None:
        """Another model may be loaded now, or none."""
        encode = self._encode_now()
        if encode == self._encode:  # bound methods of one engine are equal
            return
        self._encode = encode
        self.items = tuple(replace(item, tokens=None) for item in self.items)
        self.text_tokens = 0
        self.changed.emit()
        self._count_items()
        self.count_text(self.text)

    def shutdown(self) -> bool:
        """False: a thread did not end in time."""
        self._closed = True
        self._text_wish += 1
        for cancel in self._cancels.values():
            cancel.set()
        reader_ended = self._reader.shutdown()
        return self._counter.shutdown() and reader_ended

    # Inside

    def _keep(self, keep: Callable[[DraftItem], bool]) -> None:
        for item in self.items:
            if not keep(item) and item.id in self._cancels:
                self._cancels.pop(item.id).set()
        self.items = tuple(item for item in self.items if keep(item))
        self.changed.emit()

    def _refuse(self, problem: Notice) -> None:
        if all(item.problem != problem for item in self.items):
            item = DraftItem(next(self._ids), "", DraftState.REFUSED, problem=problem)
            self.items = (*self.items, item)

    def _read(self, item_id: int, path: Path) -> None:
        if self._closed:
            return
        cancel = self._cancels[item_id] = threading.Event()

        def read() -> Attachment | None:
            from app.file_text import read_attachment  # its modules are needed once a file is attached

            try:
                return None if cancel.is_set() else read_attachment(path, cancel)
            except Cancelled:
                return None

        def on_read(attachment: Attachment | None) -> None:
            self._cancels.pop(item_id, None)
            if attachment is not None:
                self._change(item_id, state=DraftState.READY, attachment=attachment)
                self._count_items()

        def on_error(notice: Notice) -> None:
            self._cancels.pop(item_id, None)
            self._change(item_id, state=DraftState.REFUSED, problem=notice)

        self._reader.run(read, on_read, on_error, doing=f"reading {path.name}")

    def _count_items(self) -> None:
        for item in self.items:
            if item.attachment is not None and item.tokens is None and self._encode is not None:
                self._count_item(item.id, item.attachment.text)

    def _count_item(self, item_id: int, text: str) -> None:
        encode = self._encode

        def is_wanted() -> bool:
            return encode == self._encode and any(
                item.id == item_id and item.tokens is None for item in self.items
            )

        def on_counted(count: int) -> None:
            if is_wanted():
                self._change(item_id, tokens=count)

        self._count(text, is_wanted, on_counted)

    def _count(self, text: str, is_wanted: Callable[[], bool], on_counted: Callable[[int], None]) -> None:
        """`is_wanted` is asked right before, on the counting thread: what was overtaken costs nothing."""
        encode = self._encode
        if self._closed or encode is None:
            return

        def on_done(count: int | None) -> None:
            if count is not None and encode == self._encode:
                on_counted(count)

        self._counter.run(
            lambda: len(encode(text)) if is_wanted() else None,
            on_done,
            lambda _notice: None,  # a text that can't be counted has no count beside it; sending it tells why
            doing="counting tokens",
        )

    def _take_text_count(self, wish: int, count: int) -> None:
        if wish == self._text_wish and count != self.text_tokens:
            self.text_tokens = count
            self.changed.emit()

    def _change(self, item_id: int, **changes: Any) -> None:
        self.items = tuple(replace(item, **changes) if item.id == item_id else item for item in self.items)
        self.changed.emit()


def _not_kept(name: str) -> Notice:
    return Notice(
        "attachment-not-kept",
        f"“{name}” could not be kept when the program ended.",
        "Attach it again.",
    )
