"""The door for plays, on the event log in memory."""

import asyncio
from collections.abc import Iterator
from datetime import UTC, datetime

import pytest
from meiri.playback.v1.play_event_pb2 import PlayEvent
from meiri.playback.v1.play_event_service_pb2 import ImportPlaysRequest, PublishPlaysRequest

from services.gateway.play_events import PlayEvents
from shared.clock import Clock
from shared.errors import Permanent, Transient
from shared.ids import TenantId, partition_of
from shared.kafka.log import Headers, Outgoing
from shared.kafka.memory import MemoryLog
from shared.rpc.errors import Exhausted
from shared.rpc.principal import Principal, Scope, current
from shared.telemetry import bound_trace
from shared.topics import PLAY_EVENTS, PLAY_IMPORTS, Topic

APP = Principal(TenantId("aurora"), "backend", Scope.APP)


@pytest.fixture(autouse=True)
def _app_caller() -> Iterator[None]:
    token = current.set(APP)
    with bound_trace("abc"):
        yield
    current.reset(token)


def _event(number: int = 1, **fields: object) -> PlayEvent:
    event = PlayEvent(event_id=number.to_bytes(16, "big"), **{"user_id": "u-1", "track_id": "t-1", **fields})  # type: ignore[arg-type]
    event.started_at.FromDatetime(datetime(2026, 1, 1, tzinfo=UTC))
    return event


def _door(log: MemoryLog, **limits: int) -> PlayEvents:
    return PlayEvents(log, Clock(), **limits)


@pytest.fixture
def log() -> MemoryLog:
    return MemoryLog([PLAY_EVENTS, PLAY_IMPORTS])


async def test_a_call_is_answered_when_every_event_is_in_its_users_partition(log: MemoryLog) -> None:
    events = [_event(n, user_id=f"u-{n % 7}") for n in range(20)]
    answer = await _door(log).PublishPlays(PublishPlaysRequest(events=events), None)
    assert (answer.accepted_count, list(answer.refused)) == (20, [])
    records = log.records(PLAY_EVENTS)
    assert len(records) == 20
    for record in records:
        user_id = PlayEvent.FromString(record.value or b"").user_id
        assert record.key == f"aurora|{user_id}".encode()
        assert record.partition == partition_of("aurora", user_id, PLAY_EVENTS.partitions)
        assert list(record.headers) == [("meiri-trace-id", b"abc")]


async def test_the_arrival_is_stamped_by_the_door_and_the_clients_is_dropped(log: MemoryLog) -> None:
    event = _event()
    event.received_at.FromDatetime(datetime(1999, 1, 1, tzinfo=UTC))
    before = datetime.now(UTC)
    await _door(log).PublishPlays(PublishPlaysRequest(events=[event]), None)
    stored = PlayEvent.FromString(log.records(PLAY_EVENTS)[0].value or b"")
    assert before <= stored.received_at.ToDatetime(UTC) <= datetime.now(UTC)


async def test_a_users_own_token_overrides_the_user(log: MemoryLog) -> None:
    current.set(Principal(TenantId("aurora"), "mira", Scope.USER))
    await _door(log).PublishPlays(PublishPlaysRequest(events=[_event(user_id="tobin")]), None)
    assert [record.key for record in log.records(PLAY_EVENTS)] == [b"aurora|mira"]


async def test_a_refused_event_does_not_take_the_others_with_it(log: MemoryLog) -> None:
    timeless = _event(3)
    timeless.ClearField("started_at")
    events = [
        _event(0),
        PlayEvent(event_id=b"short", user_id="u-1", track_id="t"),
        _event(2, user_id="not an id"),
        timeless,
        _event(4, track_id="", title="Low Tide"),
        _event(5, title="x" * 20_000),
        _event(6, track_id="", title="Low Tide", artist_name="Glass Heron"),
    ]
    answer = await _door(log).PublishPlays(PublishPlaysRequest(events=events), None)
    assert answer.accepted_count == 2
    assert [(refused.index, refused.reason) for refused in answer.refused] == [
        (1, "event_id_bad"),
        (2, "user_id_bad"),
        (3, "started_at_missing"),
        (4, "track_unnamed"),
        (5, "event_too_large"),
    ]
    assert all(refused.sentence.endswith(".") for refused in answer.refused)
    assert len(log.records(PLAY_EVENTS)) == 2


@pytest.mark.parametrize("count", [0, 1001])
async def test_an_empty_call_or_too_large_a_one_is_refused_whole(log: MemoryLog, count: int) -> None:
    with pytest.raises(Permanent, match="1 to 1000"):
        await _door(log).PublishPlays(PublishPlaysRequest(events=[_event()] * count), None)


async def test_history_has_its_own_topic(log: MemoryLog) -> None:
    answer = await _door(log).ImportPlays(ImportPlaysRequest(events=[_event(1), _event(2)]), None)
    assert answer.accepted_count == 2
    assert (len(log.records(PLAY_EVENTS)), len(log.records(PLAY_IMPORTS))) == (0, 2)


async def test_no_acknowledgement_is_no_success(log: MemoryLog) -> None:
    log.refuse = True
    with pytest.raises(Transient):
        await _door(log).PublishPlays(PublishPlaysRequest(events=[_event()]), None)


class _SlowPublisher:
    """Acknowledges when told to."""

    def __init__(self) -> None:
        self.acknowledge = asyncio.Event()

    async def send(
        self, topic: Topic, partition: int, key: bytes | None, value: bytes | None, headers: Headers = ()
    ) -> int:
        await self.acknowledge.wait()
        return 0

    async def send_many(self, records: list[Outgoing]) -> None:
        await self.acknowledge.wait()


async def test_calls_are_shed_while_too_much_waits_for_kafka_imports_first() -> None:
    kafka = _SlowPublisher()
    door = PlayEvents(kafka, Clock(), max_in_flight_bytes=300)  # type: ignore[arg-type]
    first = asyncio.create_task(door.PublishPlays(PublishPlaysRequest(events=[_event(n) for n in range(3)]), None))
    await asyncio.sleep(0)
    with pytest.raises(Exhausted):
        await door.ImportPlays(ImportPlaysRequest(events=[_event()]), None)
    second = asyncio.create_task(door.PublishPlays(PublishPlaysRequest(events=[_event(n) for n in range(5)]), None))
    await asyncio.sleep(0)
    with pytest.raises(Exhausted):
        await door.PublishPlays(PublishPlaysRequest(events=[_event()]), None)
    kafka.acknowledge.set()
    assert [(await call).accepted_count for call in (first, second)] == [3, 5]
    assert (await door.PublishPlays(PublishPlaysRequest(events=[_event()]), None)).accepted_count == 1
