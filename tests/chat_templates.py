"""Templates of known families, and a tokenizer that shows which token came of which text."""

# ruff: noqa: E501  (templates are long lines)

from __future__ import annotations

import re
from itertools import groupby

from engine.templates.chat_template import ChatMessage, ChatTemplate
from engine.tokenizers.tokenizer import TextPiece

CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


LLAMA3 = (
    "{% for message in messages %}{% set content = '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n'"
    " + message['content'] | trim + '<|eot_id|>' %}{% if loop.index0 == 0 %}{% set content = bos_token + content %}"
    "{% endif %}{{ content }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}"
)


MISTRAL = (
    "{{ bos_token }}{% for message in messages %}"
    "{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}{% endif %}"
    "{% if message['role'] == 'user' %}{{ '[INST] ' + message['content'] + ' [/INST]' }}"
    "{% elif message['role'] == 'assistant' %}"
    "{% if not message['content'] %}{{ raise_exception('Assistant messages must have content.') }}{% endif %}"
    "{{ ' ' + message['content'] + eos_token }}"
    "{% else %}{{ raise_exception('Only user and assistant roles are supported!') }}{% endif %}{% endfor %}"
)


GEMMA = (
    "{{ bos_token }}{% if messages[0]['role'] == 'system' %}{{ raise_exception('System role not supported') }}"
    "{% endif %}{% for message in messages %}"
    "{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}{% endif %}"
    "{% if message['role'] == 'assistant' %}{% set role = 'model' %}{% else %}{% set role = message['role'] %}"
    "{% endif %}{{ '<start_of_turn>' + role + '\n' + message['content'] | trim + '<end_of_turn>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<start_of_turn>model\n' }}{% endif %}"
)


QWEN3 = """\
{%- set ns = namespace(last=-1) %}
{%- for message in messages %}{% if message.role == 'user' %}{% set ns.last = loop.index0 %}{% endif %}{% endfor %}
{%- for message in messages %}
    {%- if message.role == 'assistant' %}
        {%- set content = message.content %}
        {%- set reasoning = '' %}
        {%- if message.reasoning_content is string %}
            {%- set reasoning = message.reasoning_content %}
        {%- elif '</think>' in content %}
            {%- set reasoning = content.split('</think>')[0].rstrip('\\n').split('<think>')[-1].lstrip('\\n') %}
            {%- set content = content.split('</think>')[-1].lstrip('\\n') %}
        {%- endif %}
        {%- if loop.index0 > ns.last and reasoning %}
            {{- '<|im_start|>assistant\\n<think>\\n' + reasoning.strip('\\n') + '\\n</think>\\n\\n' + content }}
        {%- else %}
            {{- '<|im_start|>assistant\\n' + content }}
        {%- endif %}
        {{- '<|im_end|>\\n' }}
    {%- else %}
        {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}
        {{- '<think>\\n\\n</think>\\n\\n' }}
    {%- endif %}
{%- endif %}"""


PARTS = (
    "{% for message in messages %}{{ '<|im_start|>' + message.role + ':' }}{% for part in message['content'] %}"
    "{% if part['type'] == 'image' %}<image>{% elif part['type'] == 'text' %}{{ part['text'] }}{% endif %}{% endfor %}"
    "<|im_end|>{% endfor %}<|im_start|>assistant:"
)


SPECIAL = [
    "<|im_start|>", "<|im_end|>", "<|im_sep|>", "<s>", "</s>", "[INST]", "[/INST]", "<start_of_turn>",
    "<end_of_turn>", "<|eot_id|>", "<|start_header_id|>", "<|end_header_id|>", "USER:", "<|",
]  # fmt: skip


ORDINARY = ["<think>", "</think>", "<tool_call>", "\n\n", "chemistry"]


class CharTokenizer:
    """One id a character, and one for each added token in control text; spacing and words are tokens in any."""

    def __init__(self, *, special=SPECIAL, ordinary=ORDINARY, adds_bos=False):
        self.added_tokens = {token: i for i, token in enumerate([*special, *ordinary])}
        self.special_ids = frozenset(self.added_tokens[token] for token in special)
        self.bos_id = self.added_tokens.get("<s>")
        self.adds_bos = adds_bos
        self.template_variables = {"bos_token": "<s>", "eos_token": "</s>"}
        self._in_text = {token for token in ordinary if not token.strip() or token.isalnum()}
        self._pattern = self._alternatives(self.added_tokens)
        self._text_pattern = self._alternatives(self._in_text)

    def _alternatives(self, tokens) -> re.Pattern[str]:
        longest_first = sorted(tokens, key=len, reverse=True)
        return re.compile("|".join(map(re.escape, longest_first)) or "(?!)")

    def encode(self, text: str) -> list[int]:
        """The ordinary encoding: every added token is found."""
        return self.encode_pieces([TextPiece(text, control=True)])

    def encode_pieces(self, pieces) -> list[int]:
        ids = []
        for is_control, run in groupby(pieces, key=lambda piece: piece.control):
            text, position = "".join(piece.text for piece in run), 0
            for match in (self._pattern if is_control else self._text_pattern).finditer(text):
                ids += [ord(char) + 1000 for char in text[position : match.start()]]
                ids.append(self.added_tokens[match.group()])
                position = match.end()
            ids += [ord(char) + 1000 for char in text[position:]]
        return ids

    def decode(self, ids) -> str:
        names = {token_id: token for token, token_id in self.added_tokens.items()}
        return "".join(names[i] if i < 1000 else chr(i - 1000) for i in ids)

    def control(self, ids) -> list[str]:
        names = {token_id: token for token, token_id in self.added_tokens.items()}
        return [names[i] for i in ids if i < 1000 and names[i] not in self._in_text]


TOKENIZER = CharTokenizer()


def system(text):
    return ChatMessage("system", text)


def user(text):
    return ChatMessage("user", text)


def assistant(text, thinking=""):
    return ChatMessage("assistant", text, thinking)


def prompt(source, *messages, tokenizer=TOKENIZER, **options):
    return ChatTemplate(source, tokenizer, **options).prompt(messages)


def codes(result) -> list[str]:
    return [notice.code for notice in result.notices]


CHAT = (
    system("Be brief."),
    user(" Where? 你好 🙂\n"),
    assistant("There."),
    user("How  far,\n\nin metres? a < b"),
)
