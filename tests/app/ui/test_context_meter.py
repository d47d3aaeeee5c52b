"""How full the context is, the warning at 80%, and the choice of what happens then."""

from __future__ import annotations

import pytest

from app.context_policy import ContextPolicy
from app.conversations import AnswerStats
from app.ui.context_meter import ContextMeter, ContextUse
from app.ui.status_line import StatusLine


@pytest.fixture
def meter(qtbot) -> ContextMeter:
    meter = ContextMeter()
    qtbot.addWidget(meter)
    meter.set_policy(ContextPolicy.STOP)
    return meter


@pytest.mark.parametrize(
    ("used", "limit", "near"),
    [(0, 100, False), (79, 100, False), (80, 100, True), (100, 100, True), (130, 100, True), (0, 0, False)],
)
def test_it_warns_from_eighty_percent_on(meter: ContextMeter, used: int, limit: int, near: bool) -> None:
    meter.set_use(used, limit)
    assert meter.use.is_near == near
    assert meter.words.property("role") == ("warning-small" if near else "small")
    assert ("full" in meter.words.text()) == near
    assert meter.isHidden() == (limit == 0)


def test_it_says_used_and_total_and_never_more_than_full() -> None:
    assert ContextUse(1234, 8192).words == "Context 1,234 of 8,192 tokens"
    assert ContextUse(6800, 8192).words == "Context 6,800 of 8,192 tokens, 83% full"
    assert ContextUse(9000, 8192).share == 1.0


def test_the_policy_is_chosen_in_its_menu_and_told_in_its_tooltip(meter: ContextMeter, record) -> None:
    chosen = record(policy=meter.policy_chosen)
    meter.set_use(10, 100)
    assert meter.button.text() == "When the context is full"
    assert meter.policy is ContextPolicy.STOP
    assert "the answer ends" in meter.toolTip()
    entry = next(one for one in meter.menu.actions() if "oldest" in one.text())
    entry.trigger()
    assert chosen == [("policy", ContextPolicy.DROP_OLDEST)]
    meter.set_policy(ContextPolicy.DROP_OLDEST)
    assert "no longer read" in meter.toolTip()
    assert [one.isChecked() for one in meter.menu.actions() if one.isCheckable()] == [False, True]


def test_what_the_status_line_says_twice_gives_way_before_the_device_does(qtbot) -> None:
    line = StatusLine()
    qtbot.addWidget(line)
    line.show()
    line.device.setText("A processor with a long name — no graphics card is used")
    line.context.set_use(120_000, 131_072)
    line.set_last_answer(AnswerStats(30, 20, 0.5, 4000, 2.0, "end", "cpu"))
    line.resize(1200, line.height())
    assert line.context.button.text() == "When the context is full"
    assert line.speed.isVisible()
    line.resize(640, line.height())
    assert line.context.button.text() == ""
    assert line.context.button.toolTip() == "When the context is full"
    qtbot.waitUntil(lambda: line.device.width() >= 100)
    line.resize(1200, line.height())
    assert line.context.button.text() == "When the context is full"
    assert line.speed.isVisible()


@pytest.mark.parametrize("width", range(640, 1300, 60))
def test_no_word_of_the_status_line_is_cut_however_its_texts_change(qtbot, width: int) -> None:
    line = StatusLine()
    qtbot.addWidget(line)
    line.resize(width, 30)
    line.show()
    for used, words in ((7, "A processor"), (120_000, "A processor " * 9), (2224, "A processor")):
        line.device.setText(words)
        line.context.set_use(used, 131_072)
        line.set_last_answer(AnswerStats(30, 20, 0.5, used, 2.0, "end", "cpu"))
        parts = (line.context.words, line.context.button, line.speed)
        qtbot.waitUntil(
            lambda parts=parts: all(
                part.isHidden() or part.width() >= part.sizeHint().width() for part in parts
            )
        )
