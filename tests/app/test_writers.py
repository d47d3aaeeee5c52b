"""Several windows on one data folder: a start ends the answers of those that are gone, and of no other."""

from __future__ import annotations

import errno
import json
import os
import platform
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from app import writers
from app.conversations import ConversationStore, Message, MessageStatus
from app.processes import start_of
from app.writers import Writers

ROOT = Path(__file__).parents[2]
SO_FAR = "as far as it is on disk"

_OTHER_WINDOW = f"""
import sys
from pathlib import Path
from app.conversations import ConversationStore, MessageStatus
store = ConversationStore(Path(sys.argv[1]))
exchange = store.begin_exchange(None, "a question")
store.extend_answer(exchange.answer.id, text="{SO_FAR}")
print(exchange.summary.id, flush=True)
sys.stdin.readline()
store.finish_answer(exchange.answer.id, text="the whole answer", status=MessageStatus.COMPLETE)
store.close()
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "data" / "conversations.sqlite3"


@pytest.fixture
def no_locks(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on file systems that have none."""

    def refuse(*_: object) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    if sys.platform == "win32":
        monkeypatch.setattr("msvcrt.locking", refuse)
    else:
        monkeypatch.setattr("fcntl.flock", refuse)


@contextmanager
def other_window(path: Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Another process that is writing an answer, and its conversation. It ends the answer when told so."""
    process = subprocess.Popen(
        [sys.executable, "-c", _OTHER_WINDOW, str(path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    )
    with process:
        try:
            assert process.stdout is not None
            yield process, process.stdout.readline().strip()
        finally:
            process.kill()


def answer_in(store: ConversationStore, conversation_id: str) -> Message:
    return store.conversation(conversation_id).messages[-1]


def test_a_start_beside_another_window_leaves_its_growing_answer_alone(path: Path) -> None:
    with other_window(path) as (process, conversation_id):
        store = ConversationStore(path)
        answer = answer_in(store, conversation_id)
        assert (answer.status, answer.text) == (MessageStatus.ELSEWHERE, SO_FAR)
        process.communicate("go on\n")
        answer = answer_in(store, conversation_id)
        assert (answer.status, answer.text) == (MessageStatus.COMPLETE, "the whole answer")
        store.close()


def test_an_answer_of_a_process_that_was_killed_is_interrupted_at_the_next_start(path: Path) -> None:
    with other_window(path) as (_, conversation_id):
        pass
    store = ConversationStore(path)
    answer = answer_in(store, conversation_id)
    assert (answer.status, answer.text) == (MessageStatus.INTERRUPTED, SO_FAR)
    store.close()
    assert marks(path) == []


def test_an_answer_of_a_process_that_is_killed_later_is_interrupted_when_it_is_opened(path: Path) -> None:
    with other_window(path) as (process, conversation_id):
        store = ConversationStore(path)
        assert answer_in(store, conversation_id).status is MessageStatus.ELSEWHERE
        process.kill()
    assert answer_in(store, conversation_id).status is MessageStatus.INTERRUPTED
    store.close()


def test_where_there_are_no_locks_a_process_that_runs_is_seen_by_its_number(
    path: Path, no_locks: None
) -> None:
    with other_window(path) as (process, conversation_id):
        store = ConversationStore(path)
        assert answer_in(store, conversation_id).status is MessageStatus.ELSEWHERE
        process.kill()
        process.wait()
        assert answer_in(store, conversation_id).status is MessageStatus.INTERRUPTED
        store.close()


def test_a_fork_of_an_answer_that_another_window_writes_is_complete_as_far_as_it_goes(path: Path) -> None:
    with other_window(path) as (_, conversation_id):
        store = ConversationStore(path)
        copy = store.fork(answer_in(store, conversation_id).id).messages[-1]
        assert (copy.status, copy.text) == (MessageStatus.INTERRUPTED, SO_FAR)
        assert answer_in(store, conversation_id).status is MessageStatus.ELSEWHERE
        store.close()


def marks(path: Path) -> list[Path]:
    return list(path.parent.glob("*.writer"))


def test_a_writer_is_at_work_until_it_closes_and_leaves_nothing_behind(path: Path) -> None:
    path.parent.mkdir()
    first, second = Writers(path), Writers(path)
    assert first.at_work(first.own)
    assert second.at_work(first.own)
    first.close()
    assert not first.at_work(first.own)
    assert not second.at_work(first.own)
    second.close()
    assert marks(path) == []


def test_a_mark_of_a_gone_writer_is_removed_and_other_files_stay(path: Path) -> None:
    path.parent.mkdir()
    others = [path, path.with_name("notes.writer"), path.with_name("conversations.sqlite3-wal")]
    for other in others:
        other.touch()
    path.with_name(f"{path.name}.gone.writer").touch()
    Writers(path).close()
    assert sorted(path.parent.iterdir()) == sorted(others)


@pytest.mark.skipif(sys.platform == "win32", reason="what is open can't be removed there")
def test_a_mark_is_removed_under_its_lock(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A window that has just made it locks it then, or finds it gone: it never has a lock on nothing."""
    path.parent.mkdir()
    gone = path.with_name(f"{path.name}.gone.writer")
    gone.touch()
    locked: list[bool | None] = []
    remove = writers._remove

    def remove_slowly(mark: Path) -> None:
        if mark == gone:
            descriptor = os.open(mark, os.O_RDWR)
            locked.append(writers._lock(descriptor))
            os.close(descriptor)
        remove(mark)

    monkeypatch.setattr(writers, "_remove", remove_slowly)
    Writers(path).close()
    assert (locked, marks(path)) == ([False], [])


def this_process(**changes: object) -> str:
    mine = {"computer": platform.node(), "process": os.getpid(), "started": start_of(os.getpid())}
    return json.dumps({**mine, **changes})


@pytest.mark.parametrize(
    ("contents", "at_work"),
    [
        (this_process, True),
        (lambda: this_process(started=1_000_000.0), False),  # another process has its number now
        (lambda: this_process(computer="another computer"), False),
        (lambda: this_process(process="7"), False),
        (lambda: this_process(process=2**80), False),
        (lambda: "", False),
        (lambda: "[1, 2]", False),
        (lambda: '{"process": 1}', False),
    ],
)
def test_a_mark_without_a_lock_counts_only_for_a_process_that_is_there(
    path: Path, no_locks: None, contents: Callable[[], str], at_work: bool
) -> None:
    path.parent.mkdir()
    writers = Writers(path)
    mark = path.with_name(f"{path.name}.other.writer")
    mark.write_text(contents(), encoding="utf-8")
    assert writers.at_work("other") == at_work
    writers.close()
