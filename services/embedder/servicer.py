"""EmbeddingService: one call's path, columns in, columns out."""

import numpy as np
from grpc.aio import ServicerContext
from meiri.columns.v1.column_pb2 import TrackLists
from meiri.embedding.v1 import embedding_service_pb2 as pb
from meiri.embedding.v1.embedding_service_pb2_grpc import EmbeddingServiceServicer

from services.embedder.engine import Engine
from shared.columns import array, column, splits
from shared.errors import Permanent
from shared.rpc.policy import Policies, Policy
from shared.rpc.principal import Scope, principal, require_tenant
from shared.two_tower.data import Histories, Lists

MAX_USERS = 4096
MAX_K = 1000
_MIB = 1 << 20

POLICIES: Policies = {
    "/meiri.embedding.v1.EmbeddingService/GetRelease": Policy(
        scopes=frozenset({Scope.SERVICE}), max_request_bytes=4096, deadline_s=5
    ),
    "/meiri.embedding.v1.EmbeddingService/ScoreUsers": Policy(
        scopes=frozenset({Scope.SERVICE}), max_request_bytes=64 * _MIB, deadline_s=60
    ),
}


class EmbeddingServicer(EmbeddingServiceServicer):
    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def GetRelease(self, request: pb.GetReleaseRequest, context: ServicerContext) -> pb.GetReleaseResponse:
        serving = self._engine.serving(require_tenant(principal()))
        answer = pb.GetReleaseResponse(release_id=serving.release.release_id, track_count=len(serving.scorer))
        answer.released_at.FromDatetime(serving.release.released_at)
        return answer

    async def ScoreUsers(self, request: pb.ScoreUsersRequest, context: ServicerContext) -> pb.ScoreUsersResponse:
        histories = read_histories(request.histories)
        if not 1 <= len(histories) <= MAX_USERS:
            raise Permanent("bad_user_count", f"Send 1 to {MAX_USERS} users, not {len(histories)}.")
        if not 1 <= request.k <= MAX_K:
            raise Permanent("bad_k", f"Ask for 1 to {MAX_K} tracks, not {request.k}.")
        scores = await self._engine.score(
            require_tenant(principal()),
            request.release_id,
            histories,
            read_lists(request, "extra", len(histories)),
            read_lists(request, "exclusions", len(histories)),
            request.k,
        )
        return pb.ScoreUsersResponse(
            release_id=request.release_id,
            splits=column(scores.splits, "i8"),
            track_key=column(scores.track_key, "u8"),
            source=column(scores.source, "u1"),
            score=column(scores.score, "f4"),
            component_names=scores.component_names,
            components=column(scores.components, "f4"),
            component_mask=column(scores.component_mask, "u1"),
            evidence=column(scores.evidence, "u8"),
        )


def read_histories(message: pb.UserHistories) -> Histories:
    """Raises Permanent("bad_column") when the columns do not fit together. Torch reads writable numbers only."""
    keys = array(message.track_key, "u8", name="histories.track_key")
    return Histories(
        splits(message.splits, name="histories.splits", lists=None, rows=len(keys)),
        keys,
        array(message.listens, "f4", name="histories.listens", length=len(keys)).copy(),
        array(message.age_days, "f4", name="histories.age_days", length=len(keys)).copy(),
    )


def read_lists(request: pb.ScoreUsersRequest, name: str, users: int) -> Lists:
    """One list of tracks per user; an absent field is empty lists."""
    if not request.HasField(name):  # type: ignore[arg-type]
        return Lists(np.zeros(users + 1, np.int64), np.zeros(0, np.uint64))
    message: TrackLists = getattr(request, name)
    keys = array(message.track_key, "u8", name=f"{name}.track_key")
    return Lists(splits(message.splits, name=f"{name}.splits", lists=users, rows=len(keys)), keys)
