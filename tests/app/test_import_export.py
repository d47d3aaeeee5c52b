"""Files of conversations: ours give everything back, others' are read, and what is none is refused."""

from __future__ import annotations

import json
import zipfile
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

import app.import_json
from app.answer_stats import AnswerStats
from app.archive import ArchivedConversation, ArchivedMessage
from app.attachments import Attachment
from app.chat_sampling import SamplingChoice
from app.chat_settings import ChatSettings
from app.conversation_archive import read_archived
from app.conversations import ConversationStore, MessageStatus
from app.export_json import as_json, conversation_from_json
from app.export_markdown import as_markdown
from app.import_file import read_conversations
from app.import_json import ImportRefusedError, values_of
from app.language import Language, set_language

WHEN = datetime(2024, 5, 6, 7, 8, 9, 123_456, tzinfo=UTC)
EVERYTHING = ArchivedConversation(
    title="Kestrels 红隼",
    messages=(
        ArchivedMessage("q", None, "user", "What is it?", attachments=(Attachment("a.pdf", "text", 3),)),
        ArchivedMessage(
            "a1",
            "q",
            "assistant",
            "A falcon.",
            thinking="Bird?",
            created_at=WHEN,
            stats=AnswerStats(30, 20, 0.5, 40, 2.0, "end", "cpu", left_out=2),
        ),
        ArchivedMessage("a2", "q", "assistant", "A bird", status=MessageStatus.STOPPED, created_at=WHEN),
        ArchivedMessage("q2", "a1", "user", "\0 🦅 <b>", created_at=WHEN),
    ),
    shown="q2",
    created_at=WHEN,
    updated_at=WHEN,
    model_path=Path("/models/starter.gguf"),
    pinned=True,
    tags=("birds", "鸟"),
    settings=ChatSettings("Be short.", SamplingChoice(temperature=0.5)),
)


def write(path: Path, value: Any) -> Path:
    path.write_text(json.dumps(value), encoding="utf-8")
    return path


def spoken(conversation: ArchivedConversation) -> list[tuple[str, str]]:
    return [(message.role, message.text) for message in conversation.path()]


# Our own files


def test_an_export_of_ours_gives_everything_back(tmp_path: Path) -> None:
    file = tmp_path / "chats.json"
    file.write_text(f"[{as_json(EVERYTHING)},\n{as_json(EVERYTHING)}]", encoding="utf-8")
    assert read_conversations(file) == [EVERYTHING, EVERYTHING]


def test_the_store_gives_back_what_was_put_into_it(store: ConversationStore) -> None:
    (conversation_id,) = store.add_archived([EVERYTHING])
    again = read_archived(store._connection, conversation_id)
    assert again is not None
    names = {message.key: place for place, message in enumerate(again.messages)}
    wanted = {message.key: place for place, message in enumerate(EVERYTHING.messages)}

    def comparable(one: ArchivedConversation, keys: dict[str, int]) -> list[tuple]:
        return [
            (
                keys[m.key],
                keys.get(m.parent or ""),
                m.role,
                m.text,
                m.thinking,
                m.status,
                m.stats,
                m.attachments,
            )
            for m in one.messages
        ]

    assert comparable(again, names) == comparable(EVERYTHING, wanted)
    assert [names[m.key] for m in again.path()] == [wanted[m.key] for m in EVERYTHING.path()]
    assert (again.title, again.tags, again.pinned) == (EVERYTHING.title, EVERYTHING.tags, True)
    assert (again.settings, again.updated_at) == (EVERYTHING.settings, WHEN)
    assert again.model_path == EVERYTHING.model_path
    assert again.messages[1].created_at == WHEN


def test_imported_conversations_stand_where_their_times_put_them(store: ConversationStore) -> None:
    message = ArchivedMessage("q", None, "user", "What is a kestrel?")
    store.create("mine")
    old = ArchivedConversation("old", (message,), updated_at=WHEN)
    older = ArchivedConversation("", (message,), updated_at=WHEN.replace(year=2020))
    store.add_archived([older, old])
    assert [one.title for one in store.summaries()] == ["mine", "old", "What is a kestrel?"]
    store.begin_exchange(store.summaries()[2].id, "and now?")
    assert store.summaries()[0].title == "What is a kestrel?"


@pytest.mark.parametrize("seconds", [-62_135_596_800, -1e15, 253_402_300_799, 9e15])
def test_a_time_that_nobody_lived_in_can_be_shown_everywhere(
    store: ConversationStore, tmp_path: Path, seconds: float
) -> None:
    node = {"id": "n", "message": {"author": {"role": "user"}, "content": {"parts": ["When?"]}}}
    node["message"]["create_time"] = seconds
    chat = {"title": "t", "create_time": seconds, "update_time": seconds, "mapping": {"n": node}}
    (conversation_id,) = store.add_archived(read_conversations(write(tmp_path / "chats.json", [chat])))
    (summary,) = store.summaries()
    (message,) = store.conversation(conversation_id).messages
    for place in ("Pacific/Kiritimati", "America/Los_Angeles", "UTC"):
        for moment in (summary.created_at, summary.updated_at, message.created_at):
            assert moment.astimezone(ZoneInfo(place)).year > 1969


def test_a_conversation_that_was_imported_goes_on(store: ConversationStore) -> None:
    (conversation_id,) = store.add_archived([EVERYTHING])
    exchange = store.begin_exchange(conversation_id, "and now?")
    assert [message.text for message in exchange.history] == [
        "What is it?",
        "A falcon.",
        "\0 🦅 <b>",
        "and now?",
    ]
    assert exchange.settings == EVERYTHING.settings


def test_halves_of_characters_in_a_file_can_be_kept(store: ConversationStore, tmp_path: Path) -> None:
    values = json.loads(as_json(EVERYTHING))
    for key in ("title", "model_path"):
        values[key] = "half \ud83e"
    values["tags"] = ["half \ud83e"]
    values["settings"]["instructions"] = "half \ud83e"
    values["messages"][0] |= {"text": "half \ud83e", "thinking": "\udd85"}
    values["messages"][0]["attachments"][0] |= {"text": "\ud83e", "name": "\ud83e"}
    (conversation_id,) = store.add_archived(read_conversations(write(tmp_path / "half.json", values)))
    assert store.conversation(conversation_id).messages[0].text == "half \ufffd"


def test_markdown_says_what_is_shown(tmp_path: Path) -> None:
    assert as_markdown(EVERYTHING).split("\n\n") == [
        "# Kestrels 红隼",
        "#birds #鸟",
        "## Instructions",
        "Be short.",
        "## You",
        "File “a.pdf”:\n```\ntext\n```",
        "What is it?",
        "## Answer",
        "> *Thinking*\n>\n> Bird?",
        "A falcon.",
        "## You",
        "\0 🦅 <b>\n",
    ]


def test_markdown_speaks_the_language_of_the_window_and_json_none(in_chinese) -> None:
    assert as_markdown(EVERYTHING).split("\n\n")[2:9] == [
        "## 系统提示词",
        "Be short.",
        "## 你",
        "文件“a.pdf”：\n```\ntext\n```",
        "What is it?",
        "## 回答",
        "> *思考*\n>\n> Bird?",
    ]
    assert as_markdown(ArchivedConversation("", ())) == "# 新对话\n"
    chinese = as_json(EVERYTHING)
    set_language(Language.ENGLISH)
    assert chinese == as_json(EVERYTHING)


def test_an_export_of_a_newer_program_is_refused(tmp_path: Path) -> None:
    values = json.loads(as_json(EVERYTHING)) | {"version": 2}
    with pytest.raises(ImportRefusedError, match="newer program"):
        read_conversations(write(tmp_path / "new.json", values))


# ChatGPT


def node(key: str, parent: str | None, children: list[str], role: str = "", *parts: Any, **more: Any) -> dict:
    message = None
    if role:
        content = {"content_type": "text", "parts": list(parts)}
        message = {"author": {"role": role}, "content": content, "create_time": 1_700_000_000.5} | more
    return {"id": key, "parent": parent, "children": children, "message": message}


def chatgpt(*nodes: dict, **more: Any) -> dict:
    return {"title": "T", "create_time": 1.7e9, "mapping": {one["id"]: one for one in nodes}} | more


def test_a_tree_of_chatgpt_keeps_its_versions_and_what_is_shown(tmp_path: Path) -> None:
    value = chatgpt(
        node("a2", "q", [], "assistant", "second"),
        node("root", None, ["sys"]),
        node("sys", "root", ["q", "p"], "system", ""),
        node("q", "sys", ["a1", "a2"], "user", "one?", {"asset_pointer": "file://x"}, "two?"),
        node("a1", "q", [], "assistant", "first"),
        node("p", "sys", [], "user", "edited?"),
        current_node="a2",
    )
    (conversation,) = read_conversations(write(tmp_path / "conversations.json", [value]))
    assert spoken(conversation) == [("user", "one?\n\ntwo?"), ("assistant", "second")]
    assert [(m.key, m.parent) for m in conversation.messages] == [
        ("q", None),
        ("a1", "q"),
        ("a2", "q"),
        ("p", None),
    ]
    assert conversation.created_at == datetime(2023, 11, 14, 22, 13, 20, tzinfo=UTC)


def test_an_answer_of_chatgpt_with_tools_is_one_message(tmp_path: Path) -> None:
    thoughts = {"content_type": "thoughts", "thoughts": [{"summary": "S", "content": "Hm."}]}
    value = chatgpt(
        node("q", None, ["t"], "user", "?"),
        node("t", "q", ["a"], "assistant", content=thoughts),
        node("a", "t", ["call"], "assistant", "I look it up."),
        node("call", "a", ["tool"], "assistant", "search()", recipient="browser"),
        node("tool", "call", ["b"], "tool", "a page"),
        node("b", "tool", ["hidden"], "assistant", "Found."),
        node("hidden", "b", [], "assistant", "x", metadata={"is_visually_hidden_from_conversation": True}),
        current_node="hidden",
    )
    (conversation,) = read_conversations(write(tmp_path / "conversations.json", [value]))
    assert spoken(conversation) == [("user", "?"), ("assistant", "I look it up.\n\nFound.")]
    assert conversation.messages[1].thinking == "Hm."


def test_answers_that_part_behind_a_tool_stay_apart(tmp_path: Path) -> None:
    value = chatgpt(
        node("q", None, ["a"], "user", "?"),
        node("a", "q", ["call1", "call2"], "assistant", "Wait."),
        node("call1", "a", ["b1"], "assistant", "x()", recipient="python"),
        node("call2", "a", ["b2"], "assistant", "x()", recipient="python"),
        node("b1", "call1", [], "assistant", "One."),
        node("b2", "call2", [], "assistant", "Two."),
    )
    (conversation,) = read_conversations(write(tmp_path / "conversations.json", [value]))
    assert [(m.key, m.parent, m.text) for m in conversation.messages[1:]] == [
        ("a", "q", "Wait."),
        ("b1", "a", "One."),
        ("b2", "a", "Two."),
    ]


def test_a_chain_of_ten_thousand_messages_is_read_and_kept(store: ConversationStore, tmp_path: Path) -> None:
    nodes = [
        node(str(n), str(n - 1) if n else None, [str(n + 1)], "user" if n % 2 == 0 else "assistant", f"m{n}")
        for n in range(10_000)
    ]
    conversations = read_conversations(write(tmp_path / "long.json", [chatgpt(*nodes)]))
    (conversation_id,) = store.add_archived(conversations)
    assert [m.text for m in store.conversation(conversation_id).messages] == [f"m{n}" for n in range(10_000)]


def test_an_archive_is_read_file_by_file(tmp_path: Path) -> None:
    path = tmp_path / "export.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for number in range(2):
            value = [chatgpt(node("q", None, [], "user", f"question {number}"))]
            archive.writestr(f"export/conversations-00{number}.json", json.dumps(value))
        archive.writestr("user.json", "{}")
    assert [spoken(one) for one in read_conversations(path)] == [
        [("user", "question 0")],
        [("user", "question 1")],
    ]


# LM Studio


def test_a_conversation_of_lm_studio_keeps_versions_thoughts_and_instructions(tmp_path: Path) -> None:
    def said(text: str, **more: Any) -> dict:
        return {"type": "contentBlock", "content": [{"type": "text", "text": text}]} | more

    value = {
        "name": "Birds",
        "pinned": True,
        "createdAt": 1_700_000_000_000,
        "perChatPredictionConfig": {"fields": [{"key": "llm.prediction.systemPrompt", "value": "Be short."}]},
        "messages": [
            {
                "versions": [
                    {"type": "singleStep", "role": "user", "content": [{"type": "text", "text": "Hi"}]}
                ],
                "currentlySelected": 0,
            },
            {
                "versions": [
                    {"type": "multiStep", "role": "assistant", "steps": [said("First")]},
                    {
                        "type": "multiStep",
                        "role": "assistant",
                        "steps": [
                            said("Hm.", style={"type": "thinking"}),
                            {"type": "debugInfoBlock", "debugInfo": "x"},
                            said("Second"),
                        ],
                    },
                ],
                "currentlySelected": 1,
            },
        ],
    }
    (conversation,) = read_conversations(write(tmp_path / "1.conversation.json", value))
    assert spoken(conversation) == [("user", "Hi"), ("assistant", "Second")]
    assert [message.text for message in conversation.messages] == ["Hi", "First", "Second"]
    assert conversation.messages[2].thinking == "Hm."
    assert conversation.settings.instructions == "Be short."
    assert (conversation.title, conversation.pinned) == ("Birds", True)
    assert conversation.created_at == datetime(2023, 11, 14, 22, 13, 20, tzinfo=UTC)


# What is not what it says

OWN = {"format": "kestrel-chat-conversation", "version": 1}
MESSAGE = {"key": "q", "role": "user", "text": "?"}
REFUSED = {
    "empty": b"",
    "spaces": b" \n ",
    "a picture": b"\x89PNG\r\n\x1a\n" + bytes(range(256)),
    "words": b"Dear diary",
    "breaks off": b'[{"mapping": {"a"',
    "something behind it": b"{} {}",
    "no list between": b"[{} {}]",
    "a number": b"12",
    "a list of numbers": b"[1, 2]",
    "an empty list": b"[]",
    "deep lists": b"[" * 200_000,
    "deep objects": b'{"mapping":' * 200_000,
    "no number": b'{"mapping": {}, "create_time": NaN, "messages": Infinity}',
    "endless digits": b"[" + b"9" * 10_000 + b"]",
    "unknown object": b'{"messages": "none", "mapping": 3}',
    "no messages": json.dumps(OWN | {"messages": []}).encode(),
    "zip of nothing": b"PK\x03\x04" + b"\0" * 100,
    "a model's file": b"GGUF\x03\0\0\0",
    "another database": b"SQLite format 3\0" + b"\0" * 100,
    "same key twice": json.dumps(OWN | {"messages": [MESSAGE, MESSAGE]}).encode(),
    "unknown parent": json.dumps(OWN | {"messages": [MESSAGE | {"parent": "x"}]}).encode(),
    "unknown role": json.dumps(OWN | {"messages": [MESSAGE | {"role": "tool"}]}).encode(),
    "unknown status": json.dumps(OWN | {"messages": [MESSAGE | {"status": "?"}]}).encode(),
    "text is a list": json.dumps(OWN | {"messages": [MESSAGE | {"text": []}]}).encode(),
    "no time": json.dumps(OWN | {"created_at": "yesterday", "messages": [MESSAGE]}).encode(),
    "a time too early": json.dumps(
        OWN | {"created_at": "0001-01-01T00:00:00+23:00", "messages": [MESSAGE]}
    ).encode(),
    "own of no version": json.dumps({"format": OWN["format"], "messages": [MESSAGE]}).encode(),
    "circle": json.dumps([chatgpt(node("a", "b", ["b"], "user", "x"), node("b", "a", ["a"]))]).encode(),
    "own parent": json.dumps([chatgpt(node("a", "a", ["a"], "user", "x"))]).encode(),
    "node is text": json.dumps([{"mapping": {"a": "text"}}]).encode(),
    "parent is a list": json.dumps([{"mapping": {"a": {"parent": []}}}]).encode(),
    "only hidden": json.dumps([chatgpt(node("a", None, [], "system", "x"))]).encode(),
    "one good, one bad": json.dumps(
        [chatgpt(node("a", None, [], "user", "x")), {"mapping": {"a": 1}}]
    ).encode(),
    "no such version": json.dumps({"messages": [{"versions": [{}], "currentlySelected": 7}]}).encode(),
    "version is text": json.dumps({"messages": [{"versions": ["x"]}]}).encode(),
    "step is a number": json.dumps(
        {"messages": [{"versions": [{"role": "assistant", "steps": [1]}]}]}
    ).encode(),
}


@pytest.mark.parametrize("content", REFUSED.values(), ids=REFUSED.keys())
def test_what_is_not_what_it_says_is_refused_with_one_sentence(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "模型 conversations.json"
    path.write_bytes(content)
    with pytest.raises(ImportRefusedError) as refused:
        read_conversations(path)
    assert refused.value.message.startswith("模型 conversations.json is not imported: ")
    assert refused.value.message.count(". ") == 0
    assert refused.value.message.endswith(".")


def test_a_folder_and_a_file_that_is_gone_are_refused(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "gone.json"):
        with pytest.raises(ImportRefusedError, match="not a file"):
            read_conversations(path)


def test_a_file_beyond_the_limit_is_refused(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(app.import_json, "MAX_BYTES", 1_000)
    value = [chatgpt(node("a", None, [], "user", "x" * 2_000))]
    with pytest.raises(ImportRefusedError, match="more than"):
        read_conversations(write(tmp_path / "large.json", value))


def test_an_archive_that_unpacks_beyond_the_limit_is_refused(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(app.import_json, "MAX_BYTES", 100_000)
    path = tmp_path / "bomb.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("conversations.json", "[" + " " * 10_000_000)
    assert path.stat().st_size < 100_000
    with pytest.raises(ImportRefusedError, match="more than"):
        read_conversations(path)


NAMES = [
    *("mapping", "messages", "versions", "a", "parent", "children", "message", "author", "role", "content"),
    *("content_type", "parts", "steps", "type", "text", "format", "version", "key"),
]
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(NAMES), inner, max_size=4),
    max_leaves=20,
)


@given(JSON)
def test_any_json_is_read_or_refused(tmp_path_factory, value: Any) -> None:
    path = write(tmp_path_factory.mktemp("any") / "any.json", value)
    try:
        conversations = read_conversations(path)
    except ImportRefusedError:
        return
    assert all(conversation.path() for conversation in conversations)


@given(st.lists(JSON, max_size=4), st.integers(1, 40))
def test_a_list_is_read_value_by_value_wherever_the_file_is_cut(tmp_path_factory, values, size: int) -> None:
    path = write(tmp_path_factory.mktemp("any") / "any.json", values)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(app.import_json, "_CHUNK", size)
        assert list(values_of(path)) == values


@given(st.binary(max_size=200))
def test_any_bytes_are_read_or_refused(tmp_path_factory, data: bytes) -> None:
    path = tmp_path_factory.mktemp("any") / "any.json"
    path.write_bytes(data)
    with pytest.raises(ImportRefusedError):
        read_conversations(path)


def test_an_own_value_is_read_back_by_itself() -> None:
    assert conversation_from_json(json.loads(as_json(EVERYTHING))) == EVERYTHING
