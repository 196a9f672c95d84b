-- migrate:up
-- When each listener's next list is due, and who works on it.
CREATE TABLE due (
    tenant_id text COLLATE "C" NOT NULL,
    user_id text COLLATE "C" NOT NULL,
    -- The IANA zone whose dates are the listener's days.
    zone text NOT NULL,
    -- By the services' clock (shared/clock), which tests may move.
    due_at timestamptz NOT NULL,
    -- By the database's clock, which nobody moves.
    lease_until timestamptz NOT NULL DEFAULT '-infinity',
    -- One more with each lease: a worker that was paused past its lease writes nothing.
    epoch bigint NOT NULL DEFAULT 0,
    PRIMARY KEY (tenant_id, user_id)
);
CREATE INDEX due_by_instant ON due (tenant_id, due_at);

CREATE TABLE daily_list (
    tenant_id text COLLATE "C" NOT NULL,
    user_id text COLLATE "C" NOT NULL,
    playlist_date date NOT NULL,
    version integer NOT NULL,
    -- The DailyPlaylist message: stored before it is published, so that whoever publishes it publishes these bytes.
    message bytea NOT NULL,
    -- What it recommends, for the window in which it must not be recommended again.
    track_keys bigint[] NOT NULL,
    -- The Fallback of the message; 0 for a personal list.
    fallback integer NOT NULL,
    -- The trace id of the run that made it.
    trace_id text NOT NULL,
    published boolean NOT NULL DEFAULT false,
    PRIMARY KEY (tenant_id, user_id, playlist_date)
);
CREATE INDEX daily_list_unpublished ON daily_list (tenant_id, user_id) WHERE NOT published;

-- migrate:down
DROP TABLE daily_list;
DROP TABLE due;
