"""Tracks: check each, store those that pass; the relay publishes them."""

from meiri.catalog.v1.catalog_service_pb2 import RefusedTrack, UpsertTracksRequest, UpsertTracksResponse
from meiri.catalog.v1.catalog_service_pb2_grpc import CatalogServiceServicer

from services.gateway.domain import refuse_track
from services.gateway.store import StateStore
from shared.codec.state import encode_track, track_from_message
from shared.errors import Permanent
from shared.rpc.principal import principal, require_tenant
from shared.topics import TRACKS

MAX_TRACKS = 1000


class Catalog(CatalogServiceServicer):
    def __init__(self, store: StateStore) -> None:
        self._store = store

    async def UpsertTracks(self, request: UpsertTracksRequest, context: object) -> UpsertTracksResponse:
        tenant_id = require_tenant(principal())
        if not 1 <= len(request.tracks) <= MAX_TRACKS:
            raise Permanent(
                "track_count_bad", f"A call has 1 to {MAX_TRACKS} tracks, this has {len(request.tracks)}: split."
            )
        states: dict[str, bytes] = {}
        refused: list[RefusedTrack] = []
        for index, message in enumerate(request.tracks):
            if refusal := refuse_track(message):
                refused.append(RefusedTrack(index=index, reason=refusal.reason, sentence=refusal.sentence))
            else:
                track = track_from_message(message, tenant_id=tenant_id)
                states[f"{tenant_id}|{track.track_id}"] = encode_track(track)
        await self._store.put(TRACKS, states)
        return UpsertTracksResponse(stored_count=len(request.tracks) - len(refused), refused=refused)
