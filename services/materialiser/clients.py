"""What the materialiser asks of features and the embedder, as columns."""

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass

import numpy as np
from meiri.embedding.v1 import embedding_service_pb2 as embedding
from meiri.embedding.v1.embedding_service_pb2_grpc import EmbeddingServiceStub
from meiri.features.v1 import user_feature_service_pb2 as features
from meiri.features.v1.user_feature_service_pb2_grpc import UserFeatureServiceStub

from shared.columns import Array, array, column, splits, track_lists
from shared.rpc.client import Channel, tenant_scope

PAGE = 10_000
TRENDING = 500


@dataclass(frozen=True, slots=True, eq=False)
class Histories:
    """U users' rows, one per (user, track): user u owns rows splits[u] to splits[u+1]. Days are UTC, since the epoch."""

    splits: Array  # i64 [U+1]
    track_key: Array  # u64 [H]
    plays: Array  # u32 [H]
    listens: Array  # u32 [H]
    last_played_day: Array  # i32 [H]
    feedback: Sequence[features.UserFeedback]


@dataclass(frozen=True, slots=True, eq=False)
class Scored:
    """Scored candidates: user u owns rows splits[u] to splits[u+1]."""

    splits: Array  # i64 [U+1]
    track_key: Array  # u64 [R]
    source: Array  # u8 [R] ScoreSource
    score: Array  # f32 [R]
    evidence: Array  # u64 [R], 0 = none


class FeatureClient:
    def __init__(self, opened: Channel) -> None:
        self._stub = UserFeatureServiceStub(opened)

    async def users(self, tenant_id: str) -> AsyncIterator[list[str]]:
        """Every user features knows, page by page."""
        page_token = ""
        while True:
            with tenant_scope(tenant_id):
                answer = await self._stub.ListUsers(features.ListUsersRequest(page_size=PAGE, page_token=page_token))
            yield list(answer.user_ids)
            page_token = answer.next_page_token
            if not page_token:
                return

    async def histories(self, tenant_id: str, user_ids: Sequence[str]) -> Histories:
        with tenant_scope(tenant_id):
            answer = await self._stub.BatchGet(features.BatchGetRequest(user_ids=user_ids), timeout=15)
        keys = array(answer.track_key, "u8", name="track_key")
        return Histories(
            splits(answer.splits, name="splits", lists=len(user_ids), rows=len(keys)),
            keys,
            array(answer.plays, "u4", name="plays", length=len(keys)),
            array(answer.listens, "u4", name="listens", length=len(keys)),
            array(answer.last_played_day, "i4", name="last_played_day", length=len(keys)),
            answer.feedback,
        )

    async def trending(self, tenant_id: str) -> Array:
        """u64 track keys, most listened first."""
        with tenant_scope(tenant_id):
            answer = await self._stub.GetTrending(features.GetTrendingRequest(limit=TRENDING))
        return array(answer.track_key, "u8", name="track_key")


class EmbedderClient:
    def __init__(self, opened: Channel) -> None:
        self._stub = EmbeddingServiceStub(opened)

    async def release(self, tenant_id: str) -> str:
        """The release that serves the tenant. Raises NotFound while there is none."""
        with tenant_scope(tenant_id):
            answer = await self._stub.GetRelease(embedding.GetReleaseRequest())
        return str(answer.release_id)

    async def score(
        self,
        tenant_id: str,
        release_id: str,
        histories: Histories,
        exclusions: tuple[Array, Array],
        *,
        today: int,
        k: int,
    ) -> Scored:
        """Score what the users have heard and the best `k` of what they have not, without `exclusions` (splits, keys)."""
        age = np.maximum(today - histories.last_played_day.astype(np.int64), 0)
        request = embedding.ScoreUsersRequest(
            release_id=release_id,
            k=k,
            histories=embedding.UserHistories(
                splits=column(histories.splits, "i8"),
                track_key=column(histories.track_key, "u8"),
                listens=column(histories.listens.astype(np.float32), "f4"),
                age_days=column(age.astype(np.float32), "f4"),
            ),
            exclusions=track_lists(*exclusions),
        )
        with tenant_scope(tenant_id):
            answer = await self._stub.ScoreUsers(request, timeout=30)
        keys = array(answer.track_key, "u8", name="track_key")
        return Scored(
            splits(answer.splits, name="splits", lists=len(histories.splits) - 1, rows=len(keys)),
            keys,
            array(answer.source, "u1", name="source", length=len(keys)),
            array(answer.score, "f4", name="score", length=len(keys)),
            array(answer.evidence, "u8", name="evidence", length=len(keys)),
        )
