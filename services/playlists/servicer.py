"""PlaylistService: one call's path."""

from datetime import date

from grpc.aio import ServicerContext
from meiri.playlist.v1 import playlist_service_pb2 as pb
from meiri.playlist.v1.playlist_service_pb2_grpc import PlaylistServiceServicer

from services.playlists import store
from shared.errors import Permanent
from shared.limits import USER_ID, USER_ID_BAD
from shared.postgres import Database
from shared.rpc.errors import NotFound
from shared.rpc.policy import Policies, Policy
from shared.rpc.principal import Scope, principal, require_tenant, require_user

POLICIES: Policies = {
    "/meiri.playlist.v1.PlaylistService/GetDailyPlaylist": Policy(
        scopes=frozenset({Scope.APP, Scope.USER, Scope.SERVICE}), max_request_bytes=4096, deadline_s=5
    ),
}


class PlaylistServicer(PlaylistServiceServicer):
    def __init__(self, db: Database) -> None:
        self._db = db

    async def GetDailyPlaylist(
        self,
        request: pb.GetDailyPlaylistRequest,
        context: ServicerContext,
    ) -> pb.GetDailyPlaylistResponse:
        caller = principal()
        user_id = request.user_id or (caller.subject if caller.scope is Scope.USER else "")
        if not user_id:
            raise Permanent("user_missing", "Say whose list in user_id.")
        if USER_ID.fullmatch(user_id) is None:
            raise Permanent(*USER_ID_BAD)
        require_user(caller, user_id)
        found = await store.find(self._db, require_tenant(caller), user_id, _date(request))
        if found is None:
            raise NotFound("no_list", "This listener has no list for that date: one is made when their day begins.")
        answer = pb.GetDailyPlaylistResponse()
        answer.playlist.ParseFromString(found)
        return answer


def _date(request: pb.GetDailyPlaylistRequest) -> date | None:
    if not request.HasField("playlist_date"):
        return None
    try:
        return date.fromisoformat(request.playlist_date)
    except ValueError:
        raise Permanent("bad_date", "playlist_date must be a date like 2026-11-30.") from None
