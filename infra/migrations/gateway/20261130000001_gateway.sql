-- migrate:up
-- Tenants, users and tracks as they are now, in the bytes of their topics' messages. The row is its own outbox.
CREATE TABLE state (
    -- The compacted topic that bears this state.
    topic text COLLATE "C" NOT NULL,
    -- The record's key: tenant, tenant|user or tenant|track.
    key text COLLATE "C" NOT NULL,
    -- The record's value.
    value bytea NOT NULL,
    -- One more with each change.
    revision bigint NOT NULL DEFAULT 1,
    -- The revision that the topic has acknowledged.
    published_revision bigint NOT NULL DEFAULT 0,
    PRIMARY KEY (topic, key)
);
CREATE INDEX state_unpublished ON state (topic, key) WHERE published_revision < revision;

-- One row per topic: who holds its lock publishes the topic.
CREATE TABLE state_topic (
    topic text COLLATE "C" PRIMARY KEY
);
INSERT INTO state_topic VALUES ('account.tenants.v1'), ('account.users.v1'), ('catalog.tracks.v1');

-- migrate:down
DROP TABLE state_topic;
DROP TABLE state;
