-- migrate:up
CREATE TABLE daily_playlist (
    tenant_id text COLLATE "C" NOT NULL,
    user_id text COLLATE "C" NOT NULL,
    playlist_date date NOT NULL,
    version integer NOT NULL,
    -- The DailyPlaylist message as it was published, byte for byte.
    message bytea NOT NULL,
    PRIMARY KEY (tenant_id, user_id, playlist_date)
);

CREATE TABLE consumer_offset (
    topic text NOT NULL,
    partition integer NOT NULL,
    next_offset bigint NOT NULL,
    cluster_id text NOT NULL,
    applied_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (topic, partition)
);

-- migrate:down
DROP TABLE consumer_offset;
DROP TABLE daily_playlist;
