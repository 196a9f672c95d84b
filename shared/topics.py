"""Every topic, spelled once. A topic's domain and version are the proto package of its message.

Records about a user are keyed tenant|user (feedback: tenant|user|target) and partitioned by `ids.partition_of`.
"""

from dataclasses import dataclass, field
from datetime import timedelta

PARTITIONS = 4
INGRESS_PATTERN = r"^ingress\.[a-z0-9-]+\.play-events\.v1$"


@dataclass(frozen=True)
class Topic:
    name: str
    partitions: int = PARTITIONS
    config: dict[str, str] = field(default_factory=dict, hash=False)


def _log(name: str, retention: timedelta, *, max_bytes: int = 4 << 20) -> Topic:
    """An event log, bounded by time. Records bear append time, so that a wrong clock cannot delete them early."""
    milliseconds = str(int(retention.total_seconds() * 1000))
    return Topic(
        name,
        config={
            "cleanup.policy": "delete",
            "retention.ms": milliseconds,
            "message.timestamp.type": "LogAppendTime",
            "max.message.bytes": str(max_bytes),
        },
    )


def _state(name: str) -> Topic:
    """A compacted state topic: the last record of a key is its state, an empty record deletes it."""
    return Topic(name, config={"cleanup.policy": "compact", "message.timestamp.type": "LogAppendTime"})


# What comes in is at most half of what a dead letter may hold, so that every record fits into one.
PLAY_EVENTS = _log("playback.play-events.v1", timedelta(days=28), max_bytes=2 << 20)
PLAY_IMPORTS = _log("playback.play-imports.v1", timedelta(days=28), max_bytes=2 << 20)
PLAYS = _log("playback.plays.v1", timedelta(days=28))
DEAD_LETTERS = _log("ingest.dlq.v1", timedelta(days=28))
TRACKS = _state("catalog.tracks.v1")
USERS = _state("account.users.v1")
TENANTS = _state("account.tenants.v1")
FEEDBACK = _state("feedback.feedback-events.v1")
MODEL_RELEASES = _state("model.model-releases.v1")
DAILY_PLAYLISTS = _log("playlist.daily-playlists.v1", timedelta(days=28))

ALL = (
    PLAY_EVENTS,
    PLAY_IMPORTS,
    PLAYS,
    DEAD_LETTERS,
    TRACKS,
    USERS,
    TENANTS,
    FEEDBACK,
    MODEL_RELEASES,
    DAILY_PLAYLISTS,
)


def ingress_topic(tenant_id: str) -> Topic:
    """The topic a tenant's back end produces PlayEvent records to; Kafka ACLs make its name prove the tenant."""
    return _log(f"ingress.{tenant_id}.play-events.v1", timedelta(days=28), max_bytes=2 << 20)


def tenant_of_ingress(topic_name: str) -> str | None:
    parts = topic_name.split(".")
    return parts[1] if len(parts) == 4 and parts[0] == "ingress" else None
