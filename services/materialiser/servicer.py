"""MaterialiserService: the operator's questions."""

from grpc.aio import ServicerContext
from meiri.playlist.v1 import materialiser_service_pb2 as pb
from meiri.playlist.v1.materialiser_service_pb2_grpc import MaterialiserServiceServicer

from services.materialiser.store import Store
from shared.clock import Clock
from shared.rpc.policy import Policies, Policy
from shared.rpc.principal import Scope, principal, require_tenant

POLICIES: Policies = {
    "/meiri.playlist.v1.MaterialiserService/GetListCounts": Policy(
        scopes=frozenset({Scope.ADMIN, Scope.SERVICE}), max_request_bytes=4096, deadline_s=10
    ),
}


class MaterialiserServicer(MaterialiserServiceServicer):
    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock

    async def GetListCounts(
        self, request: pb.GetListCountsRequest, context: ServicerContext
    ) -> pb.GetListCountsResponse:
        counts = await self._store.counts(require_tenant(principal()), self._clock.now())
        return pb.GetListCountsResponse(
            users=counts.users,
            due=counts.due,
            dates=[
                pb.DateCount(playlist_date=day.isoformat(), lists=lists, fallbacks=fallbacks)
                for day, lists, fallbacks in counts.dates
            ],
        )
