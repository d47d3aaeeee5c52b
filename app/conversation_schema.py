"""The tables of the conversation store and how an older file becomes a newer one.

`PRAGMA user_version` counts the migrations a file has had. A migration is never edited once it is released;
a change is a new one at the end.
"""

from __future__ import annotations

APPLICATION_ID = 0x4B435354  # "KCST": tells our files from any other SQLite file

_V1 = (
    """
    CREATE TABLE conversations (
        id TEXT PRIMARY KEY,
        title TEXT NOT NULL,
        renamed INTEGER NOT NULL DEFAULT 0,  -- 1: a person chose the title, so no message changes it
        model_path TEXT,
        created_us INTEGER NOT NULL,         -- microseconds since 1970, UTC
        updated_us INTEGER NOT NULL,
        activity INTEGER NOT NULL            -- grows with every message: orders the list, whatever clocks do
    )
    """,
    "CREATE INDEX conversations_by_activity ON conversations (activity)",
    """
    CREATE TABLE messages (
        sequence INTEGER PRIMARY KEY AUTOINCREMENT,  -- order within a conversation
        id TEXT NOT NULL UNIQUE,
        conversation_id TEXT NOT NULL REFERENCES conversations (id) ON DELETE CASCADE,
        role TEXT NOT NULL,
        text TEXT NOT NULL,
        thinking TEXT NOT NULL DEFAULT '',
        status TEXT NOT NULL,
        created_us INTEGER NOT NULL,
        stats TEXT                                   -- JSON of AnswerStats
    )
    """,
    "CREATE INDEX messages_by_conversation ON messages (conversation_id, sequence)",
    "CREATE INDEX messages_being_written ON messages (status) WHERE status = 'writing'",
)

# Messages become a tree: an edited message and a new answer stand beside the old one, under the same parent.
# What is shown is the path that begins at the conversation's active_first and goes on with each active_child.
_V2 = (
    "ALTER TABLE messages ADD COLUMN parent_id TEXT REFERENCES messages (id)",  # NULL: the first
    "ALTER TABLE messages ADD COLUMN active_child TEXT",  # the version of the next message that is shown
    "ALTER TABLE conversations ADD COLUMN active_first TEXT",
    "CREATE INDEX messages_by_parent ON messages (parent_id, conversation_id, sequence)",
    """
    UPDATE messages SET
        parent_id = (SELECT id FROM messages AS m WHERE m.conversation_id = messages.conversation_id
                     AND m.sequence < messages.sequence ORDER BY m.sequence DESC LIMIT 1),
        active_child = (SELECT id FROM messages AS m WHERE m.conversation_id = messages.conversation_id
                        AND m.sequence > messages.sequence ORDER BY m.sequence LIMIT 1)
    """,
    """
    UPDATE conversations SET active_first =
        (SELECT id FROM messages WHERE conversation_id = conversations.id ORDER BY sequence LIMIT 1)
    """,
)

# Which window writes an answer, so that a start tells those that will go on from those that won't.
_V3 = (
    "ALTER TABLE messages ADD COLUMN writer TEXT",  # see app/writers.py; NULL once the answer has ended
)

# What is chosen for one conversation, and the files that came with a message.
_V4 = (
    "ALTER TABLE conversations ADD COLUMN settings TEXT",  # JSON of ChatSettings; NULL: nothing is chosen
    "ALTER TABLE messages ADD COLUMN attachments TEXT",  # JSON list of Attachment; NULL: none
)

# What a person does with conversations, and which messages have changed. The log has one row a message,
# with the number of its last change; a deleted one keeps its row. What searches (app/search_index.py) reads
# on from the number it has come to, in a file of its own: so nothing that goes wrong there touches a
# conversation, and this migration needn't read a single text.
_V5 = (
    "ALTER TABLE conversations ADD COLUMN pinned INTEGER NOT NULL DEFAULT 0",
    "ALTER TABLE conversations ADD COLUMN unread INTEGER NOT NULL DEFAULT 0",
    "ALTER TABLE conversations ADD COLUMN deleted_by TEXT",  # a writer: deleted, as long as nobody undoes it
    """
    CREATE TABLE tags (
        conversation_id TEXT NOT NULL REFERENCES conversations (id) ON DELETE CASCADE,
        name TEXT NOT NULL,
        PRIMARY KEY (conversation_id, name)
    ) WITHOUT ROWID
    """,
    """
    CREATE TABLE drafts (
        conversation_id TEXT PRIMARY KEY,  -- '': the new chat
        text TEXT NOT NULL
    )
    """,
    """
    CREATE TRIGGER drafts_go_along AFTER DELETE ON conversations
    BEGIN DELETE FROM drafts WHERE conversation_id = old.id; END
    """,
    "CREATE TABLE search_store (id TEXT NOT NULL)",  # tells this file from every other one
    "INSERT INTO search_store VALUES (lower(hex(randomblob(16))))",
    """
    CREATE TABLE search_log (
        number INTEGER PRIMARY KEY AUTOINCREMENT,
        sequence INTEGER NOT NULL UNIQUE  -- of a message
    )
    """,
    "INSERT INTO search_log (sequence) SELECT sequence FROM messages ORDER BY sequence",
    """
    CREATE TRIGGER log_new_message AFTER INSERT ON messages
    BEGIN INSERT OR REPLACE INTO search_log (sequence) VALUES (new.sequence); END
    """,
    """
    CREATE TRIGGER log_changed_message AFTER UPDATE OF text, thinking, attachments, status ON messages
    BEGIN INSERT OR REPLACE INTO search_log (sequence) VALUES (new.sequence); END
    """,
    """
    CREATE TRIGGER log_deleted_message AFTER DELETE ON messages
    BEGIN INSERT OR REPLACE INTO search_log (sequence) VALUES (old.sequence); END
    """,
)

# The files that stand unsent in a chat, too.
_V6 = ("ALTER TABLE drafts ADD COLUMN files TEXT",)  # JSON of DraftFiles; NULL: none

MIGRATIONS: tuple[tuple[str, ...], ...] = (_V1, _V2, _V3, _V4, _V5, _V6)
SCHEMA_VERSION = len(MIGRATIONS)
