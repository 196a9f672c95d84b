"""One publish call's path, top to bottom: whose → check → stamp → send → acknowledged → answer."""

from collections import Counter
from collections.abc import Sequence

from google.protobuf.timestamp_pb2 import Timestamp
from meiri.playback.v1.play_event_pb2 import PlayEvent
from meiri.playback.v1.play_event_service_pb2 import (
    ImportPlaysRequest,
    ImportPlaysResponse,
    PublishPlaysRequest,
    PublishPlaysResponse,
    RefusedPlayEvent,
)
from meiri.playback.v1.play_event_service_pb2_grpc import PlayEventServiceServicer

from services.gateway.domain import refuse_play
from shared.clock import Clock
from shared.errors import Permanent
from shared.ids import partition_of, user_topic_key
from shared.kafka.log import Headers, Outgoing, Publisher
from shared.limits import EVENT_TOO_LARGE, MAX_EVENT_BYTES, USER_ID, USER_ID_BAD
from shared.rpc.errors import Exhausted
from shared.rpc.principal import Scope, principal, require_tenant
from shared.telemetry import TRACE_HEADER, trace_id
from shared.topics import PLAY_EVENTS, PLAY_IMPORTS, Topic

MAX_EVENTS = 1000
MAX_IN_FLIGHT_BYTES = 32 << 20
"""What may wait for Kafka's acknowledgement before calls are shed; imports get a quarter, so that live plays find room."""


class PlayEvents(PlayEventServiceServicer):
    def __init__(self, publisher: Publisher, clock: Clock, *, max_in_flight_bytes: int = MAX_IN_FLIGHT_BYTES) -> None:
        self.counts: Counter[str] = Counter()
        self._publisher = publisher
        self._clock = clock
        self._in_flight_bytes = 0
        self._room_bytes = {PLAY_EVENTS: max_in_flight_bytes, PLAY_IMPORTS: max_in_flight_bytes // 4}

    async def PublishPlays(self, request: PublishPlaysRequest, context: object) -> PublishPlaysResponse:
        accepted, refused = await self._publish(PLAY_EVENTS, request.events)
        return PublishPlaysResponse(accepted_count=accepted, refused=refused)

    async def ImportPlays(self, request: ImportPlaysRequest, context: object) -> ImportPlaysResponse:
        accepted, refused = await self._publish(PLAY_IMPORTS, request.events)
        return ImportPlaysResponse(accepted_count=accepted, refused=refused)

    async def _publish(self, topic: Topic, events: Sequence[PlayEvent]) -> tuple[int, list[RefusedPlayEvent]]:
        if not 1 <= len(events) <= MAX_EVENTS:
            raise Permanent(
                "event_count_bad", f"A call has 1 to {MAX_EVENTS} events, this one has {len(events)}: split it."
            )
        if self._in_flight_bytes >= self._room_bytes[topic]:
            self.counts["shed"] += len(events)
            raise Exhausted("Too many events wait for Kafka: send these again after a second.")
        records, refused = self._check(topic, events)
        waiting_bytes = sum(len(record.value or b"") for record in records)
        self._in_flight_bytes += waiting_bytes
        try:
            if len(records) == 1:  # lone events wait some milliseconds for company
                record = records[0]
                await self._publisher.send(record.topic, record.partition, record.key, record.value, record.headers)
            else:
                await self._publisher.send_many(records)
        finally:
            self._in_flight_bytes -= waiting_bytes
        self.counts["imported" if topic is PLAY_IMPORTS else "published"] += len(records)
        self.counts["refused"] += len(refused)
        return len(records), refused

    def _check(self, topic: Topic, events: Sequence[PlayEvent]) -> tuple[list[Outgoing], list[RefusedPlayEvent]]:
        caller = principal()
        tenant_id = require_tenant(caller)
        own_id = caller.subject if caller.scope is Scope.USER else None
        received_at = Timestamp()
        received_at.FromDatetime(self._clock.now())
        headers: Headers = [(TRACE_HEADER, trace_id.get().encode())]
        routes: dict[str, tuple[bytes, int] | None] = {}  # a batch is mostly of few users
        records: list[Outgoing] = []
        refused: list[RefusedPlayEvent] = []
        for index, event in enumerate(events):
            if own_id is not None:
                event.user_id = own_id
            user_id = event.user_id
            if user_id not in routes:
                routes[user_id] = _route(tenant_id, user_id, topic.partitions)
            route = routes[user_id]
            refusal = USER_ID_BAD if route is None else refuse_play(event)
            if refusal is None and route is not None:
                event.received_at.CopyFrom(received_at)
                value = event.SerializeToString()
                if len(value) <= MAX_EVENT_BYTES:
                    records.append(Outgoing(topic, route[1], route[0], value, headers))
                    continue
                refusal = EVENT_TOO_LARGE
            assert refusal is not None  # noqa: S101  either there is a route or a refusal
            refused.append(RefusedPlayEvent(index=index, reason=refusal.reason, sentence=refusal.sentence))
        return records, refused


def _route(tenant_id: str, user_id: str, partitions: int) -> tuple[bytes, int] | None:
    """Key and partition of everything about a user; None where there is no such user id."""
    if USER_ID.fullmatch(user_id) is None:
        return None
    return user_topic_key(tenant_id, user_id), partition_of(tenant_id, user_id, partitions)
