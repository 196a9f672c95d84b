"""UserFeatureService: each call's path from request to answer."""

from typing import Any

from meiri.features.v1 import user_feature_service_pb2 as pb
from meiri.features.v1.user_feature_service_pb2_grpc import UserFeatureServiceServicer
from meiri.feedback.v1.feedback_event_pb2 import FeedbackKind

from services.features import queries
from services.features.feedback import ARTIST, TRACK
from shared.columns import column
from shared.errors import Permanent
from shared.postgres import Database
from shared.rpc.deadline import remaining_s
from shared.rpc.policy import Policies, Policy
from shared.rpc.principal import Scope, principal, require_tenant

MAX_USERS = 512
MAX_PAGE = 10_000
MAX_TRENDING = 1000
DEFAULT_TRENDING = 200
_KIB = 1024
_TARGET_FIELDS = {TRACK: "track_id", ARTIST: "artist_id"}
_SERVICE = frozenset({Scope.SERVICE})

POLICIES: Policies = {
    "/meiri.features.v1.UserFeatureService/BatchGet": Policy(
        scopes=_SERVICE, max_request_bytes=64 * _KIB, deadline_s=30
    ),
    "/meiri.features.v1.UserFeatureService/ListUsers": Policy(
        scopes=_SERVICE, max_request_bytes=4 * _KIB, deadline_s=10
    ),
    "/meiri.features.v1.UserFeatureService/GetTrending": Policy(
        scopes=_SERVICE, max_request_bytes=4 * _KIB, deadline_s=10
    ),
    "/meiri.features.v1.UserFeatureService/GetLedgerCounts": Policy(
        scopes=frozenset({Scope.SERVICE, Scope.ADMIN}), max_request_bytes=4 * _KIB, deadline_s=10
    ),
}


class UserFeatureServicer(UserFeatureServiceServicer):
    def __init__(self, db: Database) -> None:
        self._db = db

    async def BatchGet(self, request: pb.BatchGetRequest, context: Any) -> pb.BatchGetResponse:
        tenant_id = require_tenant(principal())
        user_ids = list(request.user_ids)
        if not 1 <= len(user_ids) <= MAX_USERS or len(set(user_ids)) != len(user_ids):
            raise Permanent("bad_user_ids", f"Send 1 to {MAX_USERS} user ids, each once.")
        if any("\0" in user_id for user_id in user_ids):
            raise Permanent("bad_user_ids", "A user id has a zero byte: no user has such an id.")
        found = await queries.histories(self._db, tenant_id, user_ids, timeout_s=_left_s())
        held = await queries.feedback(
            self._db, tenant_id, user_ids, undo=FeedbackKind.FEEDBACK_KIND_UNDO, timeout_s=_left_s()
        )
        return pb.BatchGetResponse(
            splits=column(found.splits, "i8"),
            track_key=column(found.track_key, "u8"),
            plays=column(found.plays, "u4"),
            listens=column(found.listens, "u4"),
            skips=column(found.skips, "u4"),
            last_played_day=column(found.last_played_day, "i4"),
            feedback=[
                pb.UserFeedback(
                    user_index=said.place,
                    kind=FeedbackKind.ValueType(said.kind),
                    **{_TARGET_FIELDS[said.target_type]: said.target_id},
                )
                for said in held
            ],
        )

    async def ListUsers(self, request: pb.ListUsersRequest, context: Any) -> pb.ListUsersResponse:
        tenant_id = require_tenant(principal())
        size = request.page_size or MAX_PAGE
        if size > MAX_PAGE:
            raise Permanent("bad_page_size", f"Ask for 1 to {MAX_PAGE} users a page, not {size}.")
        if "\0" in request.page_token:
            raise Permanent("bad_page_token", "Send the next_page_token of the page before.")
        # The token is the last id of the page before: users who appear meanwhile move nothing.
        user_ids = await queries.users(self._db, tenant_id, request.page_token, size + 1, timeout_s=_left_s())
        more = len(user_ids) > size
        return pb.ListUsersResponse(user_ids=user_ids[:size], next_page_token=user_ids[size - 1] if more else "")

    async def GetTrending(self, request: pb.GetTrendingRequest, context: Any) -> pb.GetTrendingResponse:
        tenant_id = require_tenant(principal())
        limit = request.limit or DEFAULT_TRENDING
        if limit > MAX_TRENDING:
            raise Permanent("bad_limit", f"Ask for 1 to {MAX_TRENDING} tracks, not {limit}.")
        keys, listens = await queries.trending(self._db, tenant_id, limit, timeout_s=_left_s())
        return pb.GetTrendingResponse(track_key=column(keys, "u8"), listens=column(listens, "u4"))

    async def GetLedgerCounts(
        self,
        request: pb.GetLedgerCountsRequest,
        context: Any,
    ) -> pb.GetLedgerCountsResponse:
        counts = await queries.ledger_counts(self._db, require_tenant(principal()), timeout_s=_left_s())
        return pb.GetLedgerCountsResponse(
            play_events=counts.play_events, duplicates=counts.duplicates, users=counts.users
        )


def _left_s() -> float:
    """What the call still has, so that Postgres does not work for a caller who has gone."""
    left = remaining_s()
    return 10.0 if left is None else left
