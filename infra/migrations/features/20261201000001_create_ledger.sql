-- migrate:up

-- A user's accepted play events, each once for ever. The key has no track: an event that is sent again after its track was
-- resolved otherwise is still the same event.
CREATE TABLE ledger (
    tenant_id text COLLATE "C" NOT NULL,
    user_id text COLLATE "C" NOT NULL,
    event_id bytea NOT NULL, -- 16 bytes
    track_key bigint NOT NULL, -- the unsigned 64-bit key's bits, read as signed
    track_id text COLLATE "C" NOT NULL,
    started_at_ms bigint NOT NULL,
    played_ms bigint, -- null: unknown, which is not 0
    duration_ms bigint, -- null: unknown
    playback_id text COLLATE "C", -- null: the event names none
    received_at_ms bigint NOT NULL,
    PRIMARY KEY (tenant_id, user_id, event_id)
);

-- The neighbours of an event: what may be one play with it.
CREATE INDEX ledger_neighbours ON ledger (tenant_id, user_id, track_key, started_at_ms);

-- Derived from the ledger, in the transaction that adds to it: a play belongs whole to the UTC day of its start.
-- No CHECK on the counts: a correction is written as a difference, which may be negative.
CREATE TABLE cells (
    tenant_id text COLLATE "C" NOT NULL,
    user_id text COLLATE "C" NOT NULL,
    track_key bigint NOT NULL,
    day integer NOT NULL, -- days since 1970-01-01
    plays integer NOT NULL,
    listens integer NOT NULL,
    skips integer NOT NULL,
    played_ms bigint NOT NULL,
    PRIMARY KEY (tenant_id, user_id, track_key, day) INCLUDE (plays, listens, skips, played_ms)
);

-- Everyone who ever played or gave feedback.
CREATE TABLE users (
    tenant_id text COLLATE "C" NOT NULL,
    user_id text COLLATE "C" NOT NULL,
    play_events bigint NOT NULL, -- rows of the ledger
    PRIMARY KEY (tenant_id, user_id)
);

-- Listens by track and day, counted per partition so that no two writers meet in a row; added up when read.
CREATE TABLE trending (
    tenant_id text COLLATE "C" NOT NULL,
    day integer NOT NULL,
    track_key bigint NOT NULL,
    partition integer NOT NULL,
    listens bigint NOT NULL,
    PRIMARY KEY (tenant_id, day, track_key, partition)
);

-- What a listener last said of a target; an undo stays as a row, so that what was said before it stays undone.
CREATE TABLE feedback (
    tenant_id text COLLATE "C" NOT NULL,
    user_id text COLLATE "C" NOT NULL,
    target_type smallint NOT NULL, -- 1 track, 2 artist
    target_id text COLLATE "C" NOT NULL,
    kind smallint NOT NULL, -- meiri.feedback.v1.FeedbackKind
    given_at_us bigint NOT NULL, -- unix microseconds, by the client's clock
    event_id bytea NOT NULL, -- 16 bytes
    received_at_ms bigint, -- null: the record does not say
    PRIMARY KEY (tenant_id, user_id, target_type, target_id)
);

-- Events that came again, by partition of playback.plays.v1, so that no two writers meet in a row.
CREATE TABLE duplicates (
    partition integer PRIMARY KEY,
    play_events bigint NOT NULL
);

-- Where each partition is read on from. Written in the transaction of the effect: shared/kafka/partition.py.
CREATE TABLE consumer_offset (
    topic text NOT NULL,
    partition integer NOT NULL,
    next_offset bigint NOT NULL,
    cluster_id text NOT NULL,
    applied_at timestamptz NOT NULL,
    PRIMARY KEY (topic, partition)
);

-- migrate:down

DROP TABLE consumer_offset, duplicates, feedback, trending, users, cells, ledger;
