"""The quiet line under an answer: what it cost, how it ended, and what can be done with it."""

from __future__ import annotations

from collections.abc import Callable

from PySide6.QtCore import Qt
from PySide6.QtWidgets import QHBoxLayout, QLabel, QWidget

from app.conversations import AnswerStats, Message, MessageStatus
from app.language import tr, translated
from app.ui.elided_label import ElidedLabel
from app.ui.icon_label import IconLabel
from app.ui.message_actions import MessageActions
from app.ui.reuse_words import reuse_sentences, reuse_words
from app.ui.style_sheet import set_role
from app.ui.text_format import format_speed, format_tokens
from app.ui.theme import SCALE_SMALL, SPACE_M, SPACE_S, SPACE_XS, scaled_font
from engine.generation import FinishReason

_DOT = " · "
_MARK = 13  # pixels
_MAX_LINES_BESIDE = 2  # of the figures, beside the buttons; more stand below them, where there is more room


def ending(message: Message) -> str:
    """Why an answer ended, in plain words; "" when the model simply came to its end, or is still
    writing.
    """
    if message.status is MessageStatus.STOPPED:
        return tr("stopped by you")
    if message.status is MessageStatus.INTERRUPTED:
        return tr("interrupted: the program was closed")
    if message.status is MessageStatus.ELSEWHERE:
        return tr("another window is writing this; open the chat again to see more")
    if message.status is MessageStatus.FAILED:
        return _failure(message)
    reason = message.stats.finish_reason if message.stats is not None else ""
    if reason == FinishReason.END.value and not (message.text.strip() or message.thinking.strip()):
        return tr("the model had nothing to say")
    return {
        FinishReason.CONTEXT.value: tr("context full"),
        FinishReason.LENGTH.value: tr("length limit reached"),
        FinishReason.CANCELLED.value: tr("stopped by you"),
    }.get(reason, "")


def figures(message: Message) -> str:
    """Tokens, speed, what was reused of the prompt, and the device; "" when nothing was measured."""
    stats = message.stats
    if stats is None or not (stats.prompt_tokens or stats.decode_tokens):
        return ""
    wrote = bool(message.text or message.thinking)
    parts = [
        # The first token of an answer comes from the prefill.
        format_tokens(stats.decode_tokens + 1) if wrote else "",
        format_speed(stats.decode_tokens, stats.decode_seconds),
        reuse_words(stats),
        {"cpu": tr("CPU"), "cuda": tr("Card")}.get(stats.device, stats.device),
    ]
    return _DOT.join(part for part in parts if part)


def explanation(stats: AnswerStats) -> str:
    """The figures in whole sentences, for the tooltip."""
    lines = [translated(stats.fallback)] if stats.fallback else []
    lines += reuse_sentences(stats)
    if stats.prefill_seconds > 0:
        lines.append(tr("Reading the rest took {seconds:.2f} s.", seconds=stats.prefill_seconds))
    if stats.decode_seconds > 0:
        lines.append(tr("Writing the answer took {seconds:.2f} s.", seconds=stats.decode_seconds))
    return "\n".join(lines)


def _failure(message: Message) -> str:
    reason = message.stats.finish_reason if message.stats is not None else ""
    known = {item.value for item in FinishReason}
    if not reason or reason in known:
        return tr("failed: the engine could not go on")
    return tr("failed: {reason}", reason=translated(reason))


class FallbackMark(QWidget):
    """That the processor computed the answer though a card was to, and why."""

    def __init__(self, parent: QWidget) -> None:
        super().__init__(parent)
        self._icon = IconLabel("warning", self, color="warning", size=_MARK)
        words = QLabel(tr("On the processor"), self)
        set_role(words, "warning-small")
        row = QHBoxLayout(self)
        row.setContentsMargins(0, 0, 0, 0)
        row.setSpacing(SPACE_XS)
        row.addWidget(self._icon)
        row.addWidget(words)
        self.hide()

    def show_reason(self, reason: str) -> None:
        self.setVisible(bool(reason))
        reason = translated(reason)
        self.setToolTip(reason)
        self.setAccessibleName(tr("On the processor: {reason}", reason=reason))


class AnswerFooter(QWidget):
    """Shown once an answer has ended."""

    def __init__(self, text: Callable[[], str], parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.actions_ = MessageActions("answer", text, self, shy_copy=False)
        self._ending = ElidedLabel("", self)
        self.fallback = FallbackMark(self)
        self.figures = QLabel(self)  # with no tooltip of its own, so that the footer's is seen there
        self.figures.setTextFormat(Qt.TextFormat.PlainText)
        self.figures.setWordWrap(True)
        self._ending.setFont(scaled_font(SCALE_SMALL))
        set_role(self.figures, "small")

    def show_message(self, message: Message) -> None:
        end = ending(message)
        self._ending.setText(end[:1].upper() + end[1:])
        set_role(self._ending, "danger" if message.status is MessageStatus.FAILED else "warning")
        self._ending.setVisible(bool(end))
        self.actions_.show_message(message)
        stats = message.stats
        self.figures.setText(figures(message))
        self.setToolTip(explanation(stats) if stats is not None else "")
        self.fallback.show_reason(stats.fallback if stats is not None else "")

    def arrange(self, width: int) -> int:
        row = self.actions_.sizeHint()
        height = row.height()
        self.actions_.setGeometry(width - row.width() - SPACE_XS, 0, row.width(), height)
        room = max(0, self.actions_.x() - SPACE_S)
        left = 0
        if not self._ending.isHidden():
            self._ending.adjustSize()
            left = min(self._ending.width(), room)
            self._ending.setGeometry(0, 0, left, height)
            left += SPACE_M
        if not self.fallback.isHidden():
            mark = self.fallback.sizeHint()
            self.fallback.setGeometry(left, 0, min(mark.width(), max(0, room - left)), height)
            left = min(room, left + mark.width() + SPACE_M)
        if not self.figures.text():
            return height
        line = self.figures.fontMetrics().lineSpacing()
        beside = self.figures.heightForWidth(room - left) if room > left else 0
        if 0 < beside < (_MAX_LINES_BESIDE + 1) * line:
            height = max(height, beside)
            self.figures.setGeometry(left, 0, room - left, height)
            return height
        below = self.figures.heightForWidth(width)
        self.figures.setGeometry(0, height, width, below)
        return height + below

    def apply_theme(self) -> None:
        self._ending.setFont(scaled_font(SCALE_SMALL))
        self.actions_.apply_theme()
