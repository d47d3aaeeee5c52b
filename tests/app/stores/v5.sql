-- Written by version 5 of the store. Never changed: it stands for the files that people have.
PRAGMA application_id = 1262703444;
PRAGMA user_version = 5;
BEGIN TRANSACTION;
CREATE TABLE conversations (
        id TEXT PRIMARY KEY,
        title TEXT NOT NULL,
        renamed INTEGER NOT NULL DEFAULT 0,  -- 1: a person chose the title, so no message changes it
        model_path TEXT,
        created_us INTEGER NOT NULL,         -- microseconds since 1970, UTC
        updated_us INTEGER NOT NULL,
        activity INTEGER NOT NULL            -- grows with every message: orders the list, whatever clocks do
    , active_first TEXT, settings TEXT, pinned INTEGER NOT NULL DEFAULT 0, unread INTEGER NOT NULL DEFAULT 0, deleted_by TEXT);
INSERT INTO "conversations" VALUES('e9747e9925574a33abe5dc072bab5452','What is a kestrel?',0,'/models/starter.gguf',1795971698765375,1795971698781203,5,'ce2710115bda430b8f55924c1da691c9','{"instructions": "Answer in one sentence.", "sampling": {"temperature": 0.2}}',1,1,NULL);
CREATE TABLE drafts (
        conversation_id TEXT PRIMARY KEY,  -- '': the new chat
        text TEXT NOT NULL
    );
INSERT INTO "drafts" VALUES('e9747e9925574a33abe5dc072bab5452','half a question 红');
INSERT INTO "drafts" VALUES('','a new chat');
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
    , parent_id TEXT REFERENCES messages (id), active_child TEXT, writer TEXT, attachments TEXT);
INSERT INTO "messages" VALUES(1,'ce2710115bda430b8f55924c1da691c9','e9747e9925574a33abe5dc072bab5452','user','What is a kestrel?','','complete',1795971698765588,NULL,NULL,'73cf7795bcea4183a3897438f83cf5fc',NULL,NULL);
INSERT INTO "messages" VALUES(2,'73cf7795bcea4183a3897438f83cf5fc','e9747e9925574a33abe5dc072bab5452','assistant','A small falcon. 🦅','A bird?','complete',1795971698765702,'{"prompt_tokens": 30, "reused_tokens": 20, "prefill_seconds": 0.5, "decode_tokens": 40, "decode_seconds": 2.0, "finish_reason": "end", "device": "cpu"}','ce2710115bda430b8f55924c1da691c9','ef99aa065eb14425865d90df58fe89a1',NULL,NULL);
INSERT INTO "messages" VALUES(3,'ef99aa065eb14425865d90df58fe89a1','e9747e9925574a33abe5dc072bab5452','assistant','And its pr','','writing',1795971698781171,NULL,'73cf7795bcea4183a3897438f83cf5fc',NULL,'5f0c9d1e7a2b4c3d8e6f7a8b9c0d1e2f',NULL);
INSERT INTO "messages" VALUES(4,'0d1a5ed21f7c4d0c9be4a86f0b1c7e55','e9747e9925574a33abe5dc072bab5452','assistant','A bird of prey.','','stopped',1795971698790000,NULL,'ce2710115bda430b8f55924c1da691c9','5b8f7c2ad6ef4ce1a3f1b6d1e7a90c11',NULL,NULL);
INSERT INTO "messages" VALUES(5,'5b8f7c2ad6ef4ce1a3f1b6d1e7a90c11','e9747e9925574a33abe5dc072bab5452','user','How large?','','complete',1795971698795000,NULL,'0d1a5ed21f7c4d0c9be4a86f0b1c7e55',NULL,NULL,'[{"name": "鸟.txt", "text": "红隼", "pages": null}]');
CREATE TABLE search_log (
        number INTEGER PRIMARY KEY AUTOINCREMENT,
        sequence INTEGER NOT NULL UNIQUE  -- of a message
    );
INSERT INTO "search_log" VALUES(1,1);
INSERT INTO "search_log" VALUES(2,2);
INSERT INTO "search_log" VALUES(3,3);
INSERT INTO "search_log" VALUES(4,4);
INSERT INTO "search_log" VALUES(5,5);
CREATE TABLE search_store (id TEXT NOT NULL);
INSERT INTO "search_store" VALUES('5d41402abc4b2a76b9719d911017c592');
CREATE TABLE tags (
        conversation_id TEXT NOT NULL REFERENCES conversations (id) ON DELETE CASCADE,
        name TEXT NOT NULL,
        PRIMARY KEY (conversation_id, name)
    ) WITHOUT ROWID
    ;
INSERT INTO "tags" VALUES('e9747e9925574a33abe5dc072bab5452','birds');
CREATE INDEX conversations_by_activity ON conversations (activity);
CREATE INDEX messages_by_conversation ON messages (conversation_id, sequence);
CREATE INDEX messages_being_written ON messages (status) WHERE status = 'writing';
CREATE INDEX messages_by_parent ON messages (parent_id, conversation_id, sequence);
CREATE TRIGGER drafts_go_along AFTER DELETE ON conversations
    BEGIN DELETE FROM drafts WHERE conversation_id = old.id; END;
CREATE TRIGGER log_new_message AFTER INSERT ON messages
    BEGIN INSERT OR REPLACE INTO search_log (sequence) VALUES (new.sequence); END;
CREATE TRIGGER log_changed_message AFTER UPDATE OF text, thinking, attachments, status ON messages
    BEGIN INSERT OR REPLACE INTO search_log (sequence) VALUES (new.sequence); END;
CREATE TRIGGER log_deleted_message AFTER DELETE ON messages
    BEGIN INSERT OR REPLACE INTO search_log (sequence) VALUES (old.sequence); END;
DELETE FROM "sqlite_sequence";
INSERT INTO "sqlite_sequence" VALUES('messages',5);
INSERT INTO "sqlite_sequence" VALUES('search_log',5);
COMMIT;
