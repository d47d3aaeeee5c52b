"""What was told can be read again, and be sent to somebody who can help."""

from __future__ import annotations

from datetime import datetime
from types import SimpleNamespace

from app.notice_log import MAX_KEPT, NoticeLog, PastNotice
from app.notice_report import report_text, surroundings
from engine.metrics import CardSpace, MemoryUse, Metrics
from engine.notices import Notice

NOTICE = Notice("out-of-memory", "The memory is full.", "Close other programs.")
AT = datetime(2024, 3, 1, 12, 30, 5)


def test_the_newest_comes_first_and_the_oldest_goes() -> None:
    log = NoticeLog()
    for number in range(MAX_KEPT + 3):
        log.add(Notice(f"code-{number}", "Something."))
    assert [past.notice.code for past in log.past[:2]] == [f"code-{MAX_KEPT + 2}", f"code-{MAX_KEPT + 1}"]
    assert len(log.past) == MAX_KEPT


def test_the_same_in_a_row_is_kept_once_with_how_often_it_was_told() -> None:
    log = NoticeLog()
    for _ in range(3):
        log.add(NOTICE)
    log.add(Notice("other", "Something."))
    log.add(NOTICE)
    assert [(past.notice.code, past.times) for past in log.past] == [
        ("out-of-memory", 1),
        ("other", 1),
        ("out-of-memory", 3),
    ]


def test_a_cleared_list_begins_anew() -> None:
    log = NoticeLog()
    log.add(NOTICE)
    log.clear()
    assert log.past == ()
    assert log.add(NOTICE).times == 1


def test_a_report_holds_what_was_said_when_and_on_what() -> None:
    text = report_text(PastNotice(AT, NOTICE, "Traceback: line 1", times=2), {"System": "Linux 6"})
    for words in (
        NOTICE.message,
        NOTICE.hint,
        "Code: out-of-memory",
        "When: 2024-03-01 12:30:05, 2 times in a row",
        "System: Linux 6",
        "Traceback: line 1",
    ):
        assert words in text


def test_a_report_names_model_device_and_card_and_no_path() -> None:
    summary = SimpleNamespace(
        name="Model", family="Llama", layers=30, weights="q8", weight_bytes=4_000, context_length=8192,
        device_description="A card, 8-bit weights", path="/home/somebody/Model",
    )  # fmt: skip
    memory = MemoryUse(4_000, 300, 2, workspace_bytes=50, card=CardSpace("A card", 10_000, 5_000))
    facts = surroundings(summary, Metrics("cuda", memory, 1, 8, 64))
    text = report_text(PastNotice(AT, NOTICE), facts)
    assert "Model: Model (Llama, 30 layers)" in text
    assert "Device: A card, 8-bit weights" in text
    assert "5,000 free" in text
    assert "somebody" not in text
    assert surroundings(None)["Model"] == "none is loaded"
