"""Past notices are there again after a restart, whatever has become of their file."""

from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.controller import ChatController
from app.files import write_whole
from app.notice_file import MAX_DETAILS, append_notices, read_notices, rewrite_notices
from app.notice_log import MAX_KEPT, NoticeLog, PastNotice
from engine.notices import Notice

FULL = Notice("out-of-memory", "The memory is full.", "Close other programs.")
AT = datetime(2024, 3, 1, 12, 30, 5)
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
told = st.builds(
    PastNotice,
    st.datetimes().map(lambda at: at.replace(microsecond=0)),
    st.builds(Notice, texts, texts, texts),
    texts,
    st.integers(1, 10**6),
)


@given(first=st.lists(told, max_size=4), more=st.lists(told, max_size=4))
def test_what_is_written_is_what_is_read(tmp_path_factory, first, more) -> None:
    path = tmp_path_factory.mktemp("notices") / "not there yet" / "notices.jsonl"
    append_notices(path, first)
    append_notices(path, more)
    assert read_notices(path) == ((*first, *more), 0)
    rewrite_notices(path, more)
    assert read_notices(path) == (tuple(more), 0)


@given(st.binary(max_size=300))
def test_whatever_lies_there_costs_no_other_line(tmp_path_factory, junk: bytes) -> None:
    path = tmp_path_factory.mktemp("notices") / "notices.jsonl"
    path.write_bytes(junk)
    append_notices(path, [PastNotice(AT, FULL)])
    past, _ = read_notices(path)
    assert past[-1] == PastNotice(AT, FULL)


@pytest.mark.parametrize(
    "line",
    [
        "[]", "{}", "null", "{", "[" * 100_000,
        json.dumps({"at": "2024-03-01", "code": 1, "message": "", "hint": "", "details": "", "times": 1}),
        json.dumps({"at": "yesterday", "code": "", "message": "", "hint": "", "details": "", "times": 1}),
        json.dumps({"at": "2024-03-01", "code": "", "message": "\ud800", "hint": "", "details": "",
                    "times": 1}),
        json.dumps({"at": "2024-03-01", "code": "", "message": "", "hint": "", "details": "", "times": 0}),
        json.dumps({"at": "2024-03-01T00:00+01:00", "code": "", "message": "", "hint": "", "details": "",
                    "times": 1}),
    ],
)  # fmt: skip
def test_a_line_that_is_no_notice_is_left_out_and_counted(tmp_path: Path, line: str) -> None:
    path = tmp_path / "notices.jsonl"
    append_notices(path, [PastNotice(AT, FULL)])
    with path.open("a") as file:
        file.write(line + "\n")
    append_notices(path, [PastNotice(AT, FULL)])
    assert read_notices(path) == ((PastNotice(AT, FULL),) * 2, 1)


def test_details_are_kept_up_to_a_length(tmp_path: Path) -> None:
    append_notices(tmp_path / "notices.jsonl", [PastNotice(AT, FULL, "x" * 10**6)])
    ((past,), _) = read_notices(tmp_path / "notices.jsonl")
    assert past.details == "x" * MAX_DETAILS


def test_of_a_file_beyond_reason_its_end_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.notice_file.MAX_FILE_BYTES", 1000)
    path = tmp_path / "notices.jsonl"
    append_notices(path, [PastNotice(AT, Notice(f"code-{number}", "Something.")) for number in range(50)])
    past, damaged = read_notices(path)
    assert (past[-1].notice.code, damaged) == ("code-49", 0)
    assert 0 < len(past) < 20


def test_what_was_told_earlier_comes_before_what_is_told_now() -> None:
    log = NoticeLog()
    log.add(FULL, at=AT)
    log.begin_with([PastNotice(AT, Notice("older", "Something.")), PastNotice(AT, FULL, times=3)])
    assert [(past.notice.code, past.times) for past in log.past] == [("out-of-memory", 4), ("older", 1)]


# In the program


def begin(qtbot, make_controller) -> ChatController:
    controller: ChatController = make_controller()
    with qtbot.waitSignal(controller.conversation_opened):
        controller.start()
    return controller


def test_a_restart_forgets_nothing(qtbot, make_controller) -> None:
    first = make_controller()
    first.past_notices.add(Notice("early", "Before the start."))
    first.start()
    first.past_notices.add(FULL, details="Traceback")
    first.past_notices.add(FULL, details="Traceback")
    assert first.shutdown()
    second = begin(qtbot, make_controller)
    qtbot.waitUntil(lambda: len(second.past_notices.past) == 2)
    newest, oldest = second.past_notices.past
    assert (newest.notice, newest.details, newest.times) == (FULL, "Traceback", 2)
    assert oldest.notice.code == "early"


def test_what_was_cleared_does_not_come_back(qtbot, make_controller, app_paths) -> None:
    first = begin(qtbot, make_controller)
    first.past_notices.add(FULL)
    first.past_notices.clear()
    assert first.shutdown()
    assert read_notices(app_paths.notices_file) == ((), 0)


def test_the_file_stays_bounded_however_much_is_told(qtbot, make_controller, app_paths) -> None:
    controller = begin(qtbot, make_controller)
    for number in range(3 * MAX_KEPT):
        controller.past_notices.add(Notice(f"code-{number}", "Something."))
    assert controller.shutdown()
    assert len(app_paths.notices_file.read_text().splitlines()) <= 2 * MAX_KEPT
    past, _ = read_notices(app_paths.notices_file)
    assert past[-1].notice.code == f"code-{3 * MAX_KEPT - 1}"


def test_the_file_stays_bounded_over_many_starts_that_tell_little(qtbot, make_controller, app_paths) -> None:
    written = [PastNotice(AT, Notice(f"code-{number}", "Something.")) for number in range(5 * MAX_KEPT)]
    append_notices(app_paths.notices_file, written)
    controller = begin(qtbot, make_controller)
    qtbot.waitUntil(lambda: len(controller.past_notices.past) == MAX_KEPT)
    controller.past_notices.add(FULL)
    assert controller.shutdown()
    past, _ = read_notices(app_paths.notices_file)
    assert past[-1].notice == FULL
    assert len(app_paths.notices_file.read_text().splitlines()) <= MAX_KEPT + 1


def test_what_another_window_has_told_stays_when_the_file_is_made_shorter(
    qtbot, make_controller, app_paths
) -> None:
    controller = begin(qtbot, make_controller)
    controller.past_notices.add(FULL)
    elsewhere = Notice("elsewhere", "Told by another window.")
    for number in range(2 * MAX_KEPT):
        controller.past_notices.add(Notice(f"code-{number}", "Something."))
        if number == 2 * MAX_KEPT - 50:
            with qtbot.waitSignal(controller.conversations_changed):  # behind what is written so far
                controller.pin_conversations([], True)
            append_notices(app_paths.notices_file, [PastNotice(AT, elsewhere)])
    assert controller.shutdown()
    assert elsewhere in [past.notice for past in read_notices(app_paths.notices_file)[0]]


def test_a_damaged_list_is_told_once_and_mended(qtbot, make_controller, record, app_paths) -> None:
    append_notices(app_paths.notices_file, [PastNotice(AT, FULL)])
    with app_paths.notices_file.open("a") as file:
        file.write('{"at": "2024-')
    for expected in (["notices-damaged"], []):
        controller = make_controller()
        notices = record(notice=controller.notice_raised)
        controller.start()
        qtbot.waitUntil(lambda controller=controller: len(controller.past_notices.past) == 1)
        assert controller.shutdown()
        assert [notice.code for _, notice in notices] == expected


def test_a_list_that_cannot_be_kept_is_told_once(qtbot, make_controller, record, app_paths) -> None:
    app_paths.notices_file.mkdir(parents=True)
    controller: ChatController = make_controller()
    notices = record(notice=controller.notice_raised)
    controller.notice_raised.connect(lambda notice: controller.past_notices.add(notice))  # as the window does
    controller.start()
    qtbot.waitUntil(lambda: bool(notices))
    controller.past_notices.add(FULL)
    controller.past_notices.add(FULL)
    assert controller.shutdown()
    assert [notice.code for _, notice in notices] == ["system-error"]
    assert [past.notice.code for past in controller.past_notices.past] == [FULL.code, "system-error"]


def test_a_file_of_another_program_is_replaced_line_by_line(tmp_path: Path) -> None:
    path = tmp_path / "notices.jsonl"
    write_whole(path, "not\na\nnotice")
    append_notices(path, [PastNotice(AT, FULL)])
    assert read_notices(path) == ((PastNotice(AT, FULL),), 3)
