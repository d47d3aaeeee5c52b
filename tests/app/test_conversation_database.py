"""What is acknowledged is on disk, whatever happens to the process, the file or the disk."""

from __future__ import annotations

import os
import random
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import pytest
from store_steps import delete

from app.conversation_schema import APPLICATION_ID, MIGRATIONS, SCHEMA_VERSION
from app.conversations import (
    AnswerStats,
    ConversationStore,
    MessageStatus,
    StoreError,
)

STATS = AnswerStats(
    prompt_tokens=30,
    reused_tokens=20,
    prefill_seconds=0.5,
    decode_tokens=40,
    decode_seconds=2.0,
    finish_reason="end",
    device="cpu",
)

STORES = Path(__file__).parent / "stores"  # what released versions wrote


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "data" / "conversations.sqlite3"


# The process ends at any instant

_WRITER = """
import sys
from pathlib import Path
from app.conversations import ConversationStore, MessageStatus

store = ConversationStore(Path(sys.argv[1]))
def acknowledge(*parts):
    print(*parts, flush=True)
number = 0
while True:
    exchange = store.begin_exchange(None, f"question {number}")
    acknowledge("begun", exchange.summary.id, exchange.answer.id)
    text = ""
    for word in range(5):
        text += f"word{word} "
        store.extend_answer(exchange.answer.id, text=text)
        acknowledge("extended", exchange.answer.id, word + 1)
    if number % 3:
        store.finish_answer(exchange.answer.id, text=text, status=MessageStatus.COMPLETE)
        acknowledge("finished", exchange.answer.id)
    if number % 5 == 4:
        store.marks.set_deleted([exchange.summary.id])
        store.marks.delete([exchange.summary.id])
        acknowledge("deleted", exchange.summary.id)
    number += 1
"""


def test_a_kill_at_any_instant_loses_nothing_that_was_acknowledged(path: Path) -> None:
    chance = random.Random(9)
    acknowledged: list[list[str]] = []
    for _ in range(8):
        acknowledged += _write_until_killed(path, num_lines=chance.randrange(1, 60))
        _check_acknowledged(path, acknowledged)


def _write_until_killed(path: Path, *, num_lines: int) -> list[list[str]]:
    """Kills the writer somewhere after `num_lines` acknowledgements; returns all that it made."""
    process = subprocess.Popen(
        [sys.executable, "-c", _WRITER, str(path)],
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[2],
    )
    assert process.stdout is not None
    with process.stdout as output:
        lines = [output.readline() for _ in range(num_lines)]
        process.kill()
        lines += output.readlines()
    assert process.wait() == (-signal.SIGKILL if os.name == "posix" else 1)
    return [line.split() for line in lines if line.endswith("\n")]


def _check_acknowledged(path: Path, acknowledged: list[list[str]]) -> None:
    store = ConversationStore(path)
    assert store.notices == ()
    conversations = {summary.id: store.conversation(summary.id) for summary in store.summaries()}
    answers = {message.id: message for chat in conversations.values() for message in chat.messages}
    deleted = {line[1] for line in acknowledged if line[0] == "deleted"}
    answer_of = {line[1]: line[2] for line in acknowledged if line[0] == "begun"}
    finished = {line[1] for line in acknowledged if line[0] == "finished"}
    words = {line[1]: int(line[2]) for line in acknowledged if line[0] == "extended"}
    for conversation_id, answer_id in answer_of.items():
        if conversation_id in deleted:
            assert conversation_id not in conversations
        elif conversation_id in conversations:
            answer = answers[answer_id]
            assert len(answer.text.split()) >= words.get(answer_id, 0)
            assert answer.status is not MessageStatus.WRITING
            if answer_id in finished:
                assert answer.status is MessageStatus.COMPLETE
        else:  # gone without being acknowledged: only the last thing that the killed process did can be that
            assert _was_being_deleted(acknowledged, answer_id)
    store.close()


def _was_being_deleted(acknowledged: list[list[str]], answer_id: str) -> bool:
    last_of_answer = max(index for index, line in enumerate(acknowledged) if answer_id in line)
    following = acknowledged[last_of_answer + 1 : last_of_answer + 2]
    return not following or following[0][0] == "begun"


def test_an_answer_that_was_being_written_is_interrupted_with_its_text(
    store: ConversationStore, path: Path
) -> None:
    exchange = store.begin_exchange(None, "hello")
    store.extend_answer(exchange.answer.id, text="so far", thinking="hm")
    store.close()
    reopened = ConversationStore(path)
    answer = reopened.conversation(exchange.summary.id).messages[-1]
    assert (answer.status, answer.text, answer.thinking) == (MessageStatus.INTERRUPTED, "so far", "hm")
    reopened.close()


# The file is not what it should be


@pytest.mark.parametrize("damage", ["noise", "half", "foreign", "torn page"])
def test_a_damaged_file_is_kept_aside_and_a_new_one_begun(path: Path, damage: str) -> None:
    store = ConversationStore(path)
    for number in range(50):
        store.begin_exchange(None, f"question {number} " + "x" * 500)
    store.close()
    whole = path.read_bytes()
    if damage == "noise":
        path.write_bytes(b"not a database at all" * 100)
    elif damage == "half":
        path.write_bytes(whole[: len(whole) // 2])
    elif damage == "torn page":
        path.write_bytes(whole[:8192] + bytes(4096) + whole[12288:])
    else:
        path.unlink()
        with sqlite3.connect(path) as foreign:
            foreign.execute("CREATE TABLE recipes (name TEXT)")
        foreign.close()
    broken = path.read_bytes()

    reopened = ConversationStore(path)
    assert [notice.code for notice in reopened.notices] == ["store-damaged"]
    assert reopened.summaries() == []
    reopened.begin_exchange(None, "goes on")
    kept = [
        entry for entry in path.parent.iterdir() if ".damaged-" in entry.name and entry.suffix == ".sqlite3"
    ]
    assert [entry.read_bytes() for entry in kept] == [broken]
    assert str(kept[0]) in reopened.notices[0].hint
    reopened.close()


def test_files_damaged_in_the_same_second_are_both_kept(path: Path) -> None:
    for number in range(3):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"no database %d" % number * 300)
        ConversationStore(path).close()
    kept = [entry.read_bytes()[:13] for entry in path.parent.glob("*.damaged-*.sqlite3")]
    assert sorted(kept) == [b"no database 0", b"no database 1", b"no database 2"]


def test_an_empty_file_is_a_new_store(path: Path) -> None:
    path.parent.mkdir(parents=True)
    path.touch()
    store = ConversationStore(path)
    assert store.notices == ()
    store.create("chat")
    store.close()


def test_a_newer_store_can_be_read_and_is_not_changed(path: Path) -> None:
    store = ConversationStore(path)
    exchange = store.begin_exchange(None, "from the future")
    store.extend_answer(exchange.answer.id, text="so far")
    store.close()
    raw = sqlite3.connect(path)
    raw.execute(f"PRAGMA user_version = {SCHEMA_VERSION + 1}")
    raw.execute("ALTER TABLE messages ADD COLUMN mood TEXT")
    raw.execute("UPDATE messages SET status = 'dreaming' WHERE role = 'user'")
    raw.commit()
    raw.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    raw.close()
    before = path.read_bytes()

    newer = ConversationStore(path)
    assert [notice.code for notice in newer.notices] == ["store-newer"]
    question, answer = newer.conversation(exchange.summary.id).messages
    assert question.text == "from the future"
    assert (answer.text, answer.status) == ("so far", MessageStatus.INTERRUPTED)
    changes = [
        lambda: newer.create("x"),
        lambda: newer.rename(exchange.summary.id, "x"),
        lambda: delete(newer, exchange.summary.id),
        lambda: newer.begin_exchange(exchange.summary.id, "x"),
        lambda: newer.extend_answer(answer.id, text="x"),
        lambda: newer.finish_answer(answer.id, text="x", status=MessageStatus.COMPLETE),
    ]
    for change in changes:
        with pytest.raises(StoreError, match="can only be read"):
            change()
    newer.close()
    assert path.read_bytes() == before


@pytest.mark.parametrize("script", sorted(STORES.glob("*.sql")), ids=lambda script: script.stem)
def test_a_store_of_every_released_version_opens_and_goes_on(path: Path, script: Path) -> None:
    path.parent.mkdir(parents=True)
    raw = sqlite3.connect(path)
    raw.executescript(script.read_text(encoding="utf-8"))
    raw.close()
    store = ConversationStore(path)
    assert store.notices == ()
    (summary,) = store.summaries()
    question, answer, last = store.conversation(summary.id).messages
    assert summary.title == "What is a kestrel?"
    assert (question.role, question.text) == ("user", "What is a kestrel?")
    assert (answer.text, answer.thinking, answer.stats) == ("A small falcon. 🦅", "A bird?", STATS)
    assert (last.text, last.status) == ("And its pr", MessageStatus.INTERRUPTED)
    assert len(store.begin_exchange(summary.id, "More").history) == 4
    store.close()


def test_a_migration_that_fails_half_way_changes_nothing(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = ConversationStore(path)
    store.begin_exchange(None, "old")
    store.close()
    broken = ("CREATE TABLE half_done (id TEXT)", "INSERT INTO no_such_table VALUES (1)")
    with monkeypatch.context() as newer:
        newer.setattr("app.conversation_database.MIGRATIONS", (*MIGRATIONS, broken))
        newer.setattr("app.conversation_database.SCHEMA_VERSION", SCHEMA_VERSION + 1)
        with pytest.raises(StoreError, match="no_such_table"):
            ConversationStore(path)
    store = ConversationStore(path)
    assert [summary.title for summary in store.summaries()] == ["old"]
    store.close()
    raw = sqlite3.connect(path)
    assert raw.execute("PRAGMA user_version").fetchone() == (SCHEMA_VERSION,)
    assert raw.execute("PRAGMA application_id").fetchone() == (APPLICATION_ID,)
    assert raw.execute("SELECT count(*) FROM sqlite_master WHERE name = 'half_done'").fetchone() == (0,)
    raw.close()


# The disk says no


def test_a_full_disk_is_told_and_leaves_what_was_there(store: ConversationStore, path: Path) -> None:
    kept = store.begin_exchange(None, "kept")
    (pages,) = store._connection.execute("PRAGMA page_count").fetchone()
    store._connection.execute(f"PRAGMA max_page_count = {pages}")  # SQLite's own "disk full"
    for change in (
        lambda: store.begin_exchange(None, "x" * 100_000),
        lambda: store.extend_answer(kept.answer.id, text="x" * 100_000),
        lambda: store.finish_answer(kept.answer.id, text="x" * 100_000, status=MessageStatus.COMPLETE),
    ):
        with pytest.raises(StoreError) as caught:
            change()
        assert caught.value.code == "disk-full"
        assert caught.value.hint
    assert [summary.title for summary in store.summaries()] == ["kept"]
    assert store.conversation(kept.summary.id).messages == (kept.question, kept.answer)

    store._connection.execute("PRAGMA max_page_count = 1000000")
    finished = store.finish_answer(kept.answer.id, text="x" * 100_000, status=MessageStatus.COMPLETE)
    assert store.conversation(kept.summary.id).messages == (kept.question, finished)


def test_a_locked_store_is_told_and_works_again_afterwards(path: Path) -> None:
    ConversationStore(path).close()
    store = ConversationStore(path, busy_timeout_ms=20)
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(StoreError) as caught:
        store.begin_exchange(None, "hello")
    assert caught.value.code == "store-locked"
    assert str(path) in caught.value.message
    assert store.summaries() == []  # reading goes on
    other.execute("ROLLBACK")
    other.close()
    store.begin_exchange(None, "hello")
    store.close()


def test_a_store_that_is_locked_at_the_start_is_not_taken_for_a_damaged_one(path: Path) -> None:
    ConversationStore(path).close()
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("PRAGMA journal_mode = DELETE")
    other.execute("BEGIN EXCLUSIVE")
    with pytest.raises(StoreError) as caught:
        ConversationStore(path, busy_timeout_ms=20)
    assert caught.value.code == "store-locked"
    other.close()
    assert list(path.parent.glob("*.damaged-*")) == []


def test_a_folder_that_cannot_be_made_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(StoreError) as caught:
        ConversationStore(tmp_path / "file" / "data" / "conversations.sqlite3")
    assert caught.value.code == "store-unavailable"


_READ_ONLY_READER = """
import os, sys
from pathlib import Path
from app.conversations import ConversationStore, StoreError

Path("/").as_uri()  # what it imports may be closed to the other user
os.setuid(65534)  # root may write anywhere, so the test gives that up
store = ConversationStore(Path(sys.argv[1]))
print(store.notices[0].code, *(summary.title for summary in store.summaries()), sep="|")
try:
    store.create("new")
except StoreError as error:
    print(error.code)
"""


@pytest.mark.skipif(
    not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root can become another user"
)
def test_a_store_in_a_read_only_folder_can_be_read_and_says_so() -> None:
    folder = Path(tempfile.mkdtemp(prefix="readonly-"))  # pytest's own folders are closed to other users
    try:
        path = folder / "conversations.sqlite3"
        store = ConversationStore(path)
        store.create("kept")
        store.close()
        folder.chmod(0o555)
        path.chmod(0o444)
        done = subprocess.run(
            [sys.executable, "-c", _READ_ONLY_READER, str(path)],
            capture_output=True,
            text=True,
            check=True,
            cwd=Path(__file__).parents[2],
        )
        assert done.stdout.splitlines() == ["store-read-only|kept", "store-read-only"]
        assert list(folder.iterdir()) == [path]
    finally:
        folder.chmod(0o755)
        shutil.rmtree(folder)


def test_two_programs_write_into_one_store_without_losing_a_message(path: Path) -> None:
    """Two windows: each waits for the other instead of failing."""
    ConversationStore(path).close()

    def write(name: str) -> None:
        store = ConversationStore(path)
        for number in range(20):
            store.begin_exchange(None, f"{name} {number}")
        store.close()

    threads = [threading.Thread(target=write, args=(name,)) for name in ("a", "b")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    store = ConversationStore(path)
    assert sorted(summary.title for summary in store.summaries()) == sorted(
        f"{name} {number}" for name in "ab" for number in range(20)
    )
    store.close()
