"""A play's way from the gateway through ingest, on real Kafka."""

import asyncio
from datetime import UTC, datetime

from aiokafka.admin import AIOKafkaAdminClient
from meiri.catalog.v1.catalog_service_pb2 import UpsertTracksRequest
from meiri.catalog.v1.catalog_service_pb2_grpc import CatalogServiceStub
from meiri.catalog.v1.track_pb2 import Track
from meiri.ingest.v1.dead_letter_pb2 import DeadLetter
from meiri.playback.v1.play_event_service_pb2 import ImportPlaysRequest, PublishPlaysRequest
from meiri.playback.v1.play_event_service_pb2_grpc import PlayEventServiceStub

from shared.ids import partition_of, provisional_track_id, user_topic_key
from shared.kafka.broker import KafkaLog
from shared.kafka.log import Outgoing, TopicPartition
from shared.kafka.producer import Producer
from shared.rpc.health import is_serving
from shared.rpc.principal import Scope
from shared.topics import DEAD_LETTERS, PLAY_EVENTS, PLAYS, TRACKS, Topic, ingress_topic
from tests.integration.doors import Doors, accepted, calling, everything, latest, new_tenant, play, token, until


async def test_each_acknowledged_play_live_or_imported_is_in_plays_once(doors: Doors) -> None:
    tenant_id = new_tenant()
    live = [play(user_id=f"u-{n % 9}") for n in range(300)]
    history = [play(user_id=f"u-{n % 9}") for n in range(200)]
    async with (
        doors.gateway() as address,
        doors.ingest(),
        doors.log() as log,
        calling(address, token(tenant_id, "backend", Scope.APP)) as opened,
    ):
        stub = PlayEventServiceStub(opened)
        answers = await asyncio.gather(
            stub.PublishPlays(PublishPlaysRequest(events=live)),
            stub.ImportPlays(ImportPlaysRequest(events=history)),
        )
        assert sum(answer.accepted_count for answer in answers) == 500
        events = await accepted(log, tenant_id, 500)
        records = [record for record in await everything(log, PLAYS) if tenant_id.encode() in (record.value or b"")]
    assert len(events) == 500
    assert {event.event_id for event in events} == {event.event_id for event in [*live, *history]}
    assert all(0 <= event.received_at_ms - event.started_at_ms < 400_000 for event in events)
    assert len(records) < 100, "a record holds many events"


async def test_the_same_event_twice_gives_two_accepted_events_in_its_users_partition(doors: Doors) -> None:
    tenant_id = new_tenant()
    event = play(user_id="mira")
    async with (
        doors.gateway() as address,
        doors.ingest(),
        doors.log() as log,
        calling(address, token(tenant_id, "mira", Scope.USER)) as opened,
    ):
        for _ in range(2):
            await PlayEventServiceStub(opened).PublishPlays(PublishPlaysRequest(events=[event]))
        events = await accepted(log, tenant_id, 2)
    assert [found.event_id for found in events] == [event.event_id] * 2


async def test_malformed_records_become_dead_letters_and_the_valid_between_them_go_on(doors: Doors) -> None:
    tenant_id = new_tenant()
    key = user_topic_key(tenant_id, "mira")
    partition = partition_of(tenant_id, "mira", PLAY_EVENTS.partitions)
    values = [play().SerializeToString(), b"\x0a\xff", b"", play(event_id=b"short").SerializeToString()]
    async with doors.ingest() as address, doors.log() as log, Producer.open(doors.bootstrap_servers) as producer:
        offsets = [
            await producer.send(PLAY_EVENTS, partition, key, value, [("meiri-trace-id", b"t")])
            for value in [*values, play().SerializeToString()]
        ]
        assert len(await accepted(log, tenant_id, 2)) == 2
        letters = [
            letter
            for record in await everything(log, DEAD_LETTERS)
            for letter in [DeadLetter.FromString(record.value or b"")]
            if letter.tenant_id == tenant_id
        ]
        assert await is_serving(address, 1.0)
    assert [(letter.reason, letter.value, letter.key) for letter in letters] == [
        ("not_a_play_event", values[1], key),
        ("event_empty", values[2], key),
        ("event_id_bad", values[3], key),
    ]
    assert [letter.source_offset for letter in letters] == offsets[1:4]
    assert {(letter.source_topic, letter.source_partition) for letter in letters} == {(PLAY_EVENTS.name, partition)}


async def test_an_unknown_track_is_no_poison_and_the_catalogue_tells_a_known_ones_length(doors: Doors) -> None:
    tenant_id = new_tenant()
    known = Track(track_id="t-1", title="Low Tide", artist_id="a-1", artist_name="Glass Heron")
    known.duration.FromMilliseconds(212_000)
    plays = [play(), play(track_id="t-new"), play(track_id="", title="Low Tide", artist_name="Glass Heron")]
    async with doors.gateway() as address, doors.log() as log:
        async with calling(address, token(tenant_id, "backend", Scope.APP)) as opened:
            await CatalogServiceStub(opened).UpsertTracks(UpsertTracksRequest(tracks=[known]))
            await until(lambda: _keys(log, TRACKS, tenant_id), {f"{tenant_id}|t-1"})
            await PlayEventServiceStub(opened).PublishPlays(PublishPlaysRequest(events=plays))
        async with doors.ingest():
            events = await accepted(log, tenant_id, 3)
    assert [(event.track_id, event.duration_ms) for event in events] == [
        ("t-1", 212_000),
        ("t-new", None),
        (provisional_track_id("Low Tide", "Glass Heron"), None),
    ]


async def test_a_tenants_own_ingress_topic_is_found_while_ingest_runs(doors: Doors) -> None:
    tenant_id = new_tenant()
    topic = ingress_topic(tenant_id)
    async with doors.ingest(), doors.log() as log, Producer.open(doors.bootstrap_servers) as producer:
        await log.create([topic])
        before_ms = int(datetime.now(UTC).timestamp() * 1000)
        await producer.send(topic, 3, None, play(user_id="mira").SerializeToString())
        (event,) = await accepted(log, tenant_id, 1, timeout_s=30.0)
    assert (event.tenant_id, event.user_id) == (tenant_id, "mira")
    assert event.received_at_ms >= before_ms - 1000


async def test_an_all_invalid_topic_is_halted_and_told_to_health_while_others_go_on(doors: Doors) -> None:
    tenant_id = new_tenant()
    broken, sound = ingress_topic(tenant_id), ingress_topic(f"{tenant_id}-b")
    async with doors.log() as log, Producer.open(doors.bootstrap_servers) as producer:
        await log.create([broken, sound])
        partition = TopicPartition(broken.name, 0)
        try:
            await producer.send_many([Outgoing(broken, 0, None, b"bad")] * 500)
            async with doors.ingest() as address:
                await until(lambda: is_serving(address, 1.0), wanted=False)
                await producer.send(sound, 0, None, play(user_id="mira").SerializeToString())
                assert len(await accepted(log, f"{tenant_id}-b", 1)) == 1
            assert not await log.committed("ingest", [partition])
            letters = [DeadLetter.FromString(r.value or b"") for r in await everything(log, DEAD_LETTERS)]
            assert [letter for letter in letters if letter.source_topic == broken.name] == []
        finally:
            await _delete(doors.bootstrap_servers, broken.name)  # else it halts every later ingest of this broker


async def _keys(log: KafkaLog, topic: Topic, prefix: str) -> set[str]:
    return set(await latest(log, topic, prefix))


async def _delete(bootstrap_servers: str, topic: str) -> None:
    admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap_servers)
    await admin.start()
    try:
        await admin.delete_topics([topic])
    finally:
        await admin.close()
