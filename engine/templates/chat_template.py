"""From the messages of a chat to the ids of a prompt, by the template that the model came with.

Message text is text: nothing that a person typed becomes a control token (`text_shield.py`). Messages that
the template refuses are rewritten, and a notice says how (`chat_messages.py`). The template itself is
untrusted (`template_sandbox.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from engine.errors import ChatTemplateError
from engine.notices import Notice
from engine.templates.chat_messages import ChatMessage, Messages, rewrites_of
from engine.templates.template_budget import Budget, TemplateLimitError
from engine.templates.template_sandbox import SandboxedTemplate
from engine.templates.text_shield import RevealedText, ShieldTokens, TextShield
from engine.tokenizers.tokenizer import TextPiece, Tokenizer

__all__ = ["ChatMessage", "ChatPrompt", "ChatTemplate"]

_CHATML = """\
{%- for message in messages %}
    {{- '<|im_start|>' ~ message.role ~ '\\n' ~ message.content ~ '<|im_end|>\\n' }}
{%- endfor %}
{{- '<|im_start|>assistant\\n' }}"""

_PLAIN = """\
{%- set names = {'user': 'User: ', 'assistant': 'Assistant: '} %}
{%- for message in messages %}
    {{- names.get(message.role, '') ~ message.content.strip() ~ '\\n\\n' }}
{%- endfor %}
{{- 'Assistant:' }}"""

_SYSTEM_DROPPED = Notice(
    "template-system-dropped",
    "This model's chat template leaves the system text out, so the model does not see it.",
    "Put the text into your first message.",
)
_TEMPLATE_MISSING = Notice(
    "template-missing",
    "This model has no chat template, so a common one is used; answers may be poor.",
    "A model that was trained for chat works better.",
)


@dataclass(frozen=True)
class ChatPrompt:
    """`ids` for the model; `text` is what they were made of; `notices` say what was changed on the way;
    `stop` are strings that end the answer besides those of the request.
    """

    ids: tuple[int, ...]
    text: str
    notices: tuple[Notice, ...]
    stop: tuple[str, ...] = ()


@dataclass(frozen=True)
class _Rendering:
    messages: Messages
    notices: tuple[Notice, ...]
    revealed: RevealedText


class ChatTemplate:
    """A compiled template, bound to the tokenizer that encodes what it renders.

    Args: source: the template (jinja2). None: ChatML where the tokenizer knows its tokens, else "User: …
    Assistant:". tokenizer: encodes, and gives the template its variables (`bos_token`, …). adds_missing_bos:
    put the begin token in front when the tokenizer asks for one (`adds_bos`) and the template didn't write
    it. True for GGUF files, whose templates are often stored without it; False for Hugging Face folders,
    where the template alone decides, as in transformers. Without a template the tokenizer decides.

    Attributes:
        stop: strings at which an answer ends in the form that was chosen for a model without a template.

    Raises ChatTemplateError when the source can't be compiled or does not end.
    """

    def __init__(self, source: str | None, tokenizer: Tokenizer, *, adds_missing_bos: bool = False) -> None:
        self._tokenizer = tokenizer
        self._notices: tuple[Notice, ...] = ()
        self._adds_missing_bos = adds_missing_bos
        self.stop: tuple[str, ...] = ()
        if source is None:
            self._notices = (_TEMPLATE_MISSING,)
            self._adds_missing_bos = True
            if {"<|im_start|>", "<|im_end|>"} <= tokenizer.added_tokens.keys():
                source = _CHATML
            else:
                source = _PLAIN
                self.stop = ("\nUser:",)
        self._source = source
        self._template = SandboxedTemplate(source)
        self._tokens = ShieldTokens(tokenizer.added_tokens, tokenizer.special_ids)
        self._wants_parts = self._find_content_form()

    def prompt(self, messages: Sequence[ChatMessage]) -> ChatPrompt:
        """The prompt for the next answer, with the template's generation prompt at its end.

        The messages are tried as they are, then with the fewest rewrites that work. Raises ChatTemplateError
        with the template's own words when none does.
        """
        chat = tuple(messages)
        shield = self._shield(chat)
        budget = Budget(input_chars=sum(len(m.content) + len(m.thinking) for m in chat))
        chosen = self._first_that_works(chat, shield, budget)
        ids = self._encode(chosen.revealed)
        return ChatPrompt(tuple(ids), chosen.revealed.text, self._notices + chosen.notices, self.stop)

    def _first_that_works(self, messages: Messages, shield: TextShield, budget: Budget) -> _Rendering:
        refusal: ChatTemplateError | None = None
        without_system: _Rendering | None = None
        for candidate, notices in rewrites_of(messages):
            try:
                revealed = shield.reveal(self._render(candidate, shield, budget))
                if not self._drops_system(candidate, revealed.text, shield, budget):
                    return _Rendering(candidate, notices, revealed)
            except TemplateLimitError:
                raise
            except ChatTemplateError as error:
                refusal = refusal or error
                continue
            if without_system is None:
                without_system = _Rendering(candidate, (*notices, _SYSTEM_DROPPED), revealed)
        if without_system is not None:
            return without_system
        assert (
            refusal is not None
        )  # the first candidate either worked, dropped the system text, or was refused
        raise ChatTemplateError(
            shield.remove_marks(refusal.message),
            "Start a new chat, or change the messages so that the template takes them.",
        ) from refusal

    def _render(self, messages: Messages, shield: TextShield, budget: Budget) -> str:
        """Rendered text, still with the shield's marks."""
        entries = []
        for message in messages:
            mark = shield.assistant if message.role == "assistant" else shield.user
            text = mark(message.content)
            content: Any = [{"type": "text", "text": text}] if self._wants_parts else text
            entry = {"role": shield.user(message.role), "content": content}
            if message.thinking:
                entry["reasoning_content"] = shield.assistant(message.thinking)
            entries.append(entry)
        variables: dict[str, Any] = {
            "messages": entries,
            "tools": None,  # given as None by transformers, and templates ask whether they are
            "documents": None,
            "add_generation_prompt": True,
            **self._tokenizer.template_variables,
        }
        return self._template.render(variables, budget)

    def _drops_system(self, messages: Messages, text: str, shield: TextShield, budget: Budget) -> bool:
        """Whether a system text does not reach the prompt. Looks for it, then for a character put in its
        place.
        """
        systems = [m for m in messages if m.role == "system" and m.content.strip()]
        if all(message.content.strip() in text for message in systems):
            return False
        probing = tuple(ChatMessage(m.role, shield.probe) if m in systems else m for m in messages)
        return self._render(probing, shield, budget).count(shield.probe) < len(systems)

    def _find_content_form(self) -> bool:
        """Whether the template wants content as a list of parts, as templates for images do, rather than as
        text.
        """
        shield = self._shield(())
        message = (ChatMessage("user", shield.probe),)
        for wants_parts in (False, True):
            self._wants_parts = wants_parts
            try:
                if shield.probe in self._render(message, shield, Budget()):
                    return wants_parts
            except TemplateLimitError:
                raise
            except ChatTemplateError:
                continue  # it may still take the messages of a real chat, or give its reason then
        return False

    def _shield(self, messages: Messages) -> TextShield:
        texts = [text for m in messages for text in (m.role, m.content, m.thinking)]
        return TextShield(self._tokens, texts=texts, template=self._source)

    def _encode(self, revealed: RevealedText) -> list[int]:
        ids = self._tokenizer.encode_pieces(_pieces(revealed))
        bos = self._tokenizer.bos_id
        if bos is not None and self._adds_missing_bos and self._tokenizer.adds_bos and ids[:1] != [bos]:
            ids.insert(0, bos)
        return ids


def _pieces(revealed: RevealedText) -> list[TextPiece]:
    """The text in pieces: `control` ones may hold control tokens, the others (single characters) never do."""
    pieces: list[TextPiece] = []
    done = 0
    for index in revealed.message_chars:
        if done < index:
            pieces.append(TextPiece(revealed.text[done:index], control=True))
        pieces.append(TextPiece(revealed.text[index], control=False))
        done = index + 1
    if done < len(revealed.text):
        pieces.append(TextPiece(revealed.text[done:], control=True))
    return pieces
