"""Whole services in memory behind real sockets: what a test says of listeners and releases, told by the contracts.

The suites of tests/contract hold them and the real services to the same promises.
"""

# ruff: noqa: N802  the contract names the methods
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Literal, NamedTuple

import numpy as np
from grpc.aio import ServicerContext
from meiri.embedding.v1 import embedding_service_pb2 as embedding
from meiri.embedding.v1.embedding_service_pb2_grpc import (
    EmbeddingServiceServicer,
    add_EmbeddingServiceServicer_to_server,
)
from meiri.features.v1 import user_feature_service_pb2 as features
from meiri.features.v1.user_feature_service_pb2_grpc import (
    UserFeatureServiceServicer,
    add_UserFeatureServiceServicer_to_server,
)
from meiri.feedback.v1.feedback_event_pb2 import FeedbackKind

from shared.clock import Clock
from shared.columns import Array, array, column, splits
from shared.errors import Permanent, Transient
from shared.ids import track_key
from shared.rpc.errors import FailedPrecondition, NotFound
from shared.rpc.policy import Policy
from shared.rpc.principal import Scope, principal, require_tenant
from shared.rpc.server import AddServicer, Server
from shared.rpc.tokens import Verifier


class Heard(NamedTuple):
    """One listener's plays of one track. `last_day`: UTC days since the epoch."""

    plays: int
    listens: int
    last_day: int


class Said(NamedTuple):
    """What one listener said: a kind of feedback about a track, or (where that is None) an artist."""

    kind: int
    track_id: str | None = None
    artist_id: str | None = None


@dataclass
class FakeFeatures(UserFeatureServiceServicer):
    """UserFeatureService over dictionaries by (tenant, user); `away` answers as a service that restarts.

    Of a track's plays it knows the last day alone, so trending takes them all to be of that day.
    """

    heard: dict[tuple[str, str], dict[str, Heard]] = field(default_factory=dict)
    said: dict[tuple[str, str], list[Said]] = field(default_factory=dict)
    away: bool = False
    asked: int = 0

    def say(self, tenant_id: str, user_id: str, said: Said) -> None:
        """The newest about a target holds; undone, nothing does."""
        held = self.said.setdefault((tenant_id, user_id), [])
        held[:] = [other for other in held if other[1:] != said[1:]]
        if said.kind != FeedbackKind.FEEDBACK_KIND_UNDO:
            held.append(said)

    async def BatchGet(self, request: features.BatchGetRequest, context: ServicerContext) -> features.BatchGetResponse:
        tenant_id = self._tenant()
        self.asked += 1
        if not 1 <= len(request.user_ids) <= 512 or len(set(request.user_ids)) != len(request.user_ids):
            raise Permanent("bad_user_ids", "Send 1 to 512 user ids, each once.")
        if any("\0" in user_id for user_id in request.user_ids):
            raise Permanent("bad_user_ids", "A user id has a zero byte: no user has such an id.")
        rows: list[tuple[int, Heard]] = []
        ends = [0]
        answer = features.BatchGetResponse()
        for place, user_id in enumerate(request.user_ids):
            own = self.heard.get((tenant_id, user_id), {})
            rows += sorted((track_key(track_id), heard) for track_id, heard in own.items())
            ends.append(len(rows))
            for said in sorted(self.said.get((tenant_id, user_id), []), key=_kind_and_target):
                answer.feedback.add(
                    user_index=place,
                    kind=said.kind,
                    track_id=said.track_id,
                    artist_id=said.artist_id,
                )
        answer.splits.CopyFrom(column(ends, "i8"))
        answer.track_key.CopyFrom(column([key for key, _ in rows], "u8"))
        answer.plays.CopyFrom(column([heard.plays for _, heard in rows], "u4"))
        answer.listens.CopyFrom(column([heard.listens for _, heard in rows], "u4"))
        answer.skips.CopyFrom(column([heard.plays - heard.listens for _, heard in rows], "u4"))
        answer.last_played_day.CopyFrom(column([heard.last_day for _, heard in rows], "i4"))
        return answer

    async def ListUsers(
        self, request: features.ListUsersRequest, context: ServicerContext
    ) -> features.ListUsersResponse:
        tenant_id = self._tenant()
        size = request.page_size or 10_000
        if size > 10_000:
            raise Permanent("bad_page_size", f"Ask for 1 to 10000 users a page, not {size}.")
        known = {user for tenant, user in (*self.heard, *self.said) if tenant == tenant_id}
        later = sorted(user for user in known if user > request.page_token)
        return features.ListUsersResponse(
            user_ids=later[:size], next_page_token=later[size - 1] if len(later) > size else ""
        )

    async def GetTrending(
        self, request: features.GetTrendingRequest, context: ServicerContext
    ) -> features.GetTrendingResponse:
        if request.limit > 1000:
            raise Permanent("bad_limit", f"Ask for 1 to 1000 tracks, not {request.limit}.")
        top = self.trending(self._tenant(), request.limit or 200)
        return features.GetTrendingResponse(
            track_key=column([track_key(track_id) for track_id, _ in top], "u8"),
            listens=column([listens for _, listens in top], "u4"),
        )

    async def GetLedgerCounts(
        self, request: features.GetLedgerCountsRequest, context: ServicerContext
    ) -> features.GetLedgerCountsResponse:
        tenant_id = self._tenant()
        own = [heard for (tenant, _), heard in self.heard.items() if tenant == tenant_id and heard]
        return features.GetLedgerCountsResponse(
            play_events=sum(track.plays for tracks in own for track in tracks.values()), users=len(own)
        )

    def trending(self, tenant_id: str, limit: int) -> list[tuple[str, int]]:
        """Track ids and their listens in the newest seven days that have any, most listened first, ties by key."""
        listened = [
            (heard.last_day, track_id, heard.listens)
            for (tenant, _), tracks in self.heard.items()
            for track_id, heard in tracks.items()
            if tenant == tenant_id and heard.listens
        ]
        days = sorted({day for day, _, _ in listened})[-7:]
        total: dict[str, int] = {}
        for day, track_id, listens in listened:
            if day in days:
                total[track_id] = total.get(track_id, 0) + listens
        return sorted(total.items(), key=lambda item: (-item[1], track_key(item[0])))[:limit]

    def _tenant(self) -> str:
        if self.away:
            raise Transient("Features restarts.")
        return require_tenant(principal())


@dataclass
class FakeEmbedder(EmbeddingServiceServicer):
    """EmbeddingService without a model: tracks heard often score high, unheard ones by a number that their key gives.

    `tracks`: the index of each tenant that has a release; `away` answers as a service that restarts.
    """

    tracks: Mapping[str, Sequence[str]] = field(default_factory=dict)
    release_id: str = "r1"
    released_at: datetime = datetime(2026, 1, 1, tzinfo=UTC)
    away: bool = False

    async def GetRelease(
        self, request: embedding.GetReleaseRequest, context: ServicerContext
    ) -> embedding.GetReleaseResponse:
        answer = embedding.GetReleaseResponse(release_id=self.release_id, track_count=len(self._index()))
        answer.released_at.FromDatetime(self.released_at)
        return answer

    async def ScoreUsers(
        self, request: embedding.ScoreUsersRequest, context: ServicerContext
    ) -> embedding.ScoreUsersResponse:
        index, history = self._index(), request.histories
        keys = array(history.track_key, "u8", name="track_key")
        ends = splits(history.splits, name="splits", lists=None, rows=len(keys))
        listens = array(history.listens, "f4", name="listens", length=len(keys))
        age_days = array(history.age_days, "f4", name="age_days", length=len(keys))
        users = len(ends) - 1
        if not 1 <= users <= 4096:
            raise Permanent("bad_user_count", f"Send 1 to 4096 users, not {users}.")
        if not 1 <= request.k <= 1000:
            raise Permanent("bad_k", f"Ask for 1 to 1000 tracks, not {request.k}.")
        if not (np.isfinite(listens).all() and np.isfinite(age_days).all()):
            raise Permanent("histories_broken", "A history row has listens or an age that is no number.")
        extras, exclusions = _lists(request, "extra", users), _lists(request, "exclusions", users)
        if request.release_id != self.release_id:
            sentence = f"Release {self.release_id} serves, not {request.release_id}: ask GetRelease."
            raise FailedPrecondition("release_mismatch", sentence)
        best = index[np.argsort(_liking(index))[::-1]]
        parts: list[tuple[Array, Array, Array, Array]] = []
        counts = [0]
        for user in range(users):
            own = slice(ends[user], ends[user + 1])
            order = np.lexsort((keys[own], -listens[own]))
            heard, often = keys[own][order], listens[own][order]
            extra = best[np.isin(best, extras[user]) & ~np.isin(best, heard)]
            found = best[~np.isin(best, np.concatenate((heard, extra, exclusions[user])))][: request.k]
            speaks = heard[0] if often.any() else np.uint64(0)
            parts.append((found, np.full(len(found), 1), _liking(found), np.full(len(found), speaks)))
            parts.append((heard, np.full(len(heard), 2), np.log1p(often), np.where(often > 0, heard, np.uint64(0))))
            parts.append((extra, np.full(len(extra), 3), _liking(extra), np.full(len(extra), speaks)))
            counts.append(counts[-1] + len(found) + len(heard) + len(extra))
        key, source, score, evidence = (np.concatenate(part) for part in zip(*parts, strict=True))
        return embedding.ScoreUsersResponse(
            release_id=self.release_id,
            splits=column(np.array(counts), "i8"),
            track_key=column(key, "u8"),
            source=column(source, "u1"),
            score=column(score, "f4"),
            component_names=["liking"],
            components=column(score, "f4"),
            component_mask=column(np.ones(len(key)), "u1"),
            evidence=column(evidence, "u8"),
        )

    def _index(self) -> Array:
        if self.away:
            raise Transient("The embedder restarts.")
        tracks = self.tracks.get(require_tenant(principal()))
        if tracks is None:
            raise NotFound("no_release", "This tenant has no model release yet.")
        return np.array(sorted(track_key(track_id) for track_id in tracks), np.uint64)


def _liking(keys: Array) -> Array:
    """0 to 1, another for each key."""
    return (keys >> np.uint64(40)).astype(np.float32) / 2**24


def _lists(request: embedding.ScoreUsersRequest, name: Literal["extra", "exclusions"], users: int) -> list[Array]:
    """The track keys of each user; an absent field is empty lists."""
    if not request.HasField(name):
        return [np.zeros(0, np.uint64)] * users
    message = getattr(request, name)
    keys = array(message.track_key, "u8", name=name)
    ends = splits(message.splits, name=f"{name}.splits", lists=users, rows=len(keys))
    return [keys[ends[user] : ends[user + 1]] for user in range(users)]


def _kind_and_target(said: Said) -> tuple[int, bool, str]:
    return said.kind, said.track_id is None, said.track_id or said.artist_id or ""


_SERVICE = frozenset({Scope.SERVICE})
_FEATURE_METHODS = {
    "BatchGet": _SERVICE,
    "ListUsers": _SERVICE,
    "GetTrending": _SERVICE,
    "GetLedgerCounts": _SERVICE | {Scope.ADMIN},
}
_EMBEDDING_METHODS = {"GetRelease": _SERVICE, "ScoreUsers": _SERVICE}


@asynccontextmanager
async def features_server(fake: FakeFeatures, public_key: str) -> AsyncIterator[str]:
    """Its address while it serves."""
    async with _served(
        "features.v1.UserFeatureService", _FEATURE_METHODS, add_UserFeatureServiceServicer_to_server, fake, public_key
    ) as address:
        yield address


@asynccontextmanager
async def embedder_server(fake: FakeEmbedder, public_key: str) -> AsyncIterator[str]:
    """Its address while it serves."""
    async with _served(
        "embedding.v1.EmbeddingService", _EMBEDDING_METHODS, add_EmbeddingServiceServicer_to_server, fake, public_key
    ) as address:
        yield address


@asynccontextmanager
async def _served(
    service: str, methods: Mapping[str, frozenset[Scope]], add: AddServicer, servicer: object, public_key: str
) -> AsyncIterator[str]:
    async with Server(
        "127.0.0.1:0",
        policies={
            f"/meiri.{service}/{method}": Policy(scopes=scopes, max_request_bytes=64 << 20, deadline_s=60)
            for method, scopes in methods.items()
        },
        verifier=Verifier(public_key, Clock()),
        servicers=[(add, servicer)],
        max_concurrent=64,
        grace_s=0.1,
    ) as server:
        await server.health.set(serving=True)
        yield f"127.0.0.1:{server.port}"
