"""The rows of the conversation list: what is pinned, then headings by day, and conversations under them, the
newest first. A tag may be chosen: then only conversations that have it are listed.

Knows no widget. A heading is a row of its own that can't be chosen.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from datetime import date, datetime
from typing import Any

from PySide6.QtCore import QAbstractListModel, QModelIndex, QPersistentModelIndex, Qt, Signal

from app.conversations import ConversationSummary
from app.language import mark, tr
from app.titles import UNTITLED, one_line
from app.ui.text_format import day_group, listed
from app.ui.tooltips import plain_tooltip

Row = str | ConversationSummary  # a heading in English, or a conversation
Index = QModelIndex | QPersistentModelIndex

SUMMARY_ROLE = Qt.ItemDataRole.UserRole + 1  # ConversationSummary, None for a heading
ANSWERING_ROLE = Qt.ItemDataRole.UserRole + 2  # bool: an answer is being written in it
WAITING_ROLE = Qt.ItemDataRole.UserRole + 3  # bool: an answer waits for its turn in it
UNREAD_ROLE = Qt.ItemDataRole.UserRole + 4  # bool: an answer has ended in it that nobody has seen
TAGS_ROLE = Qt.ItemDataRole.UserRole + 5  # str: its tags on one line, "" for none
PINNED = mark("Pinned")


def shown_title(summary: ConversationSummary) -> str:
    """The title on one line; one that is empty gets a name."""
    return one_line(summary.title) or tr(UNTITLED)


class ConversationModel(QAbstractListModel):
    """Signals: rename_requested(id, title), after a title was edited in place."""

    rename_requested = Signal(str, str)

    def __init__(self, *, today: Callable[[], date] = date.today) -> None:
        super().__init__()
        self._today = today
        self._summaries: tuple[ConversationSummary, ...] = ()
        self._rows: list[Row] = []
        self._answering: str | None = None
        self._waiting: frozenset[str] = frozenset()
        self._tag = ""

    @property
    def tag(self) -> str:
        """Only conversations with this tag are listed; "": all."""
        return self._tag

    @property
    def tags(self) -> dict[str, int]:
        """All tags, by name, and how many conversations have each."""
        counts: dict[str, int] = {}
        for summary in self._summaries:
            for tag in summary.tags:
                counts[tag] = counts.get(tag, 0) + 1
        return dict(sorted(counts.items(), key=lambda one: one[0].casefold()))

    def set_tag(self, tag: str) -> None:
        """One that no conversation has is as none."""
        self._tag = tag
        self.set_summaries(self._summaries)

    @property
    def summaries(self) -> tuple[ConversationSummary, ...]:
        return self._summaries

    def set_summaries(self, summaries: Sequence[ConversationSummary]) -> None:
        """Takes the whole list, newest first."""
        self._summaries = tuple(summaries)
        if self._tag not in self.tags:
            self._tag = ""
        rows = self._grouped()
        if self._keys(rows) == self._keys(self._rows):
            # Same rows in the same places (a rename, a newer date): what is being edited or chosen stays.
            before, self._rows = self._rows, rows
            for number, (old, new) in enumerate(zip(before, rows, strict=True)):
                if old != new:
                    self.dataChanged.emit(self.index(number), self.index(number))
            return
        self.beginResetModel()
        self._rows = rows
        self.endResetModel()

    def set_answering(self, conversation_id: str | None, waiting: Collection[str] = ()) -> None:
        """Marks the conversation in which an answer is being written, and those in which one waits."""
        before = {self._answering, *self._waiting}
        self._answering, self._waiting = conversation_id, frozenset(waiting)
        for changed in before | {conversation_id, *waiting}:
            index = self.index_of(changed)
            if index.isValid():
                self.dataChanged.emit(index, index, [ANSWERING_ROLE, WAITING_ROLE])

    @property
    def answering(self) -> str | None:
        return self._answering

    def index_of(self, conversation_id: str | None) -> QModelIndex:
        """Its index, invalid if it isn't there."""
        for row, content in enumerate(self._rows):
            if isinstance(content, ConversationSummary) and content.id == conversation_id:
                return self.index(row)
        return QModelIndex()

    def summary_at(self, index: Index) -> ConversationSummary | None:
        if not index.isValid():
            return None
        content = self._rows[index.row()]
        return content if isinstance(content, ConversationSummary) else None

    def _grouped(self) -> list[Row]:
        shown = [one for one in self._summaries if not self._tag or self._tag in one.tags]
        rows: list[Row] = [one for one in shown if one.pinned]
        if rows:
            rows.insert(0, PINNED)
        unpinned = [one for one in shown if not one.pinned]
        heading = ""
        today = self._today()
        for summary, day in zip(unpinned, _days(unpinned), strict=True):
            group = day_group(day, today)
            if group != heading:
                heading = group
                rows.append(group)
            rows.append(summary)
        return rows

    @staticmethod
    def _keys(rows: Sequence[Row]) -> list[str]:
        return [f"id {row.id}" if isinstance(row, ConversationSummary) else f"day {row}" for row in rows]

    # Qt overrides

    def rowCount(self, parent: Index | None = None) -> int:
        return 0 if parent is not None and parent.isValid() else len(self._rows)

    def data(self, index: Index, role: int = Qt.ItemDataRole.DisplayRole) -> Any:
        if not index.isValid():
            return None
        content = self._rows[index.row()]
        if isinstance(content, str):
            wanted = (Qt.ItemDataRole.DisplayRole, Qt.ItemDataRole.AccessibleTextRole)
            return tr(content) if role in wanted else None
        return self._conversation_data(content, role)

    def _conversation_data(self, summary: ConversationSummary, role: int) -> Any:
        match role:
            case Qt.ItemDataRole.DisplayRole | Qt.ItemDataRole.EditRole:
                return shown_title(summary)
            case Qt.ItemDataRole.ToolTipRole:
                day = summary.updated_at.astimezone()
                lines = [shown_title(summary), f"{day:%Y-%m-%d %H:%M}"]
                if summary.tags:
                    lines.append(_tag_line(summary))
                return plain_tooltip("\n".join(lines))
            case Qt.ItemDataRole.AccessibleTextRole:
                return listed([shown_title(summary), *self._states(summary)])
        if role == SUMMARY_ROLE:
            return summary
        if role == ANSWERING_ROLE:
            return summary.id == self._answering
        if role == WAITING_ROLE:
            return summary.id in self._waiting
        if role == UNREAD_ROLE:
            return summary.unread
        if role == TAGS_ROLE:
            return _tag_line(summary)
        return None

    def _states(self, summary: ConversationSummary) -> list[str]:
        """For screen readers."""
        states = (
            (tr("pinned"), summary.pinned),
            (tr("answer is being written"), summary.id == self._answering),
            (tr("answer waits for its turn"), summary.id in self._waiting),
            (tr("new answer"), summary.unread),
            (tr("tags {tags}", tags=listed(summary.tags)), bool(summary.tags)),
        )
        return [words for words, holds in states if holds]

    def setData(self, index: Index, value: Any, role: int = Qt.ItemDataRole.EditRole) -> bool:
        summary = self.summary_at(index)
        title = one_line(str(value))
        if summary is None or role != Qt.ItemDataRole.EditRole or not title:
            return False
        if title != shown_title(summary):
            # The list shows the new title when it is on disk, not before.
            self.rename_requested.emit(summary.id, title)
        return True

    def flags(self, index: Index) -> Qt.ItemFlag:
        if self.summary_at(index) is None:
            return Qt.ItemFlag.NoItemFlags
        return Qt.ItemFlag.ItemIsEnabled | Qt.ItemFlag.ItemIsSelectable | Qt.ItemFlag.ItemIsEditable


def _days(summaries: Sequence[ConversationSummary]) -> list[date]:
    """When each went on last. They stand in the order in which they did, so none is older than one below it:
    a clock that was set back for a while says otherwise.
    """
    days: list[date] = []
    newest = date.min
    for summary in reversed(summaries):
        newest = max(newest, _local_day(summary.updated_at))
        days.append(newest)
    return days[::-1]


def _tag_line(summary: ConversationSummary) -> str:
    return "  ".join(f"#{tag}" for tag in summary.tags)


def _local_day(moment: datetime) -> date:
    return moment.astimezone().date()
