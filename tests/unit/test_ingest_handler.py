"""A batch of records through ingest's handler, on the event log in memory."""

import time
from collections.abc import Sequence

import pytest
from google.protobuf.timestamp_pb2 import Timestamp
from meiri.ingest.v1.dead_letter_pb2 import DeadLetter
from meiri.playback.v1.play_event_pb2 import PlayEvent
from structlog.testing import capture_logs

from services.ingest.handler import Handler, _owner, owner, owner_of_key
from shared.clock import Clock
from shared.codec.plays import AcceptedEvent, decode_plays
from shared.errors import Transient
from shared.ids import partition_of, provisional_track_id
from shared.kafka.log import Headers, TopicPartition
from shared.kafka.memory import MemoryLog, MemoryRecord
from shared.topics import DEAD_LETTERS, PLAY_EVENTS, PLAY_IMPORTS, PLAYS, Topic, ingress_topic

NOW_MS = int(time.time() * 1000)
KEY = b"aurora|u-1"
CATALOGUE = {"aurora|t-1": 212_000, "aurora|t-2": 0}


def _event(number: int = 1, **fields: object) -> PlayEvent:
    event = PlayEvent(event_id=number.to_bytes(16, "big"), **{"track_id": "t-1", **fields})  # type: ignore[arg-type]
    event.started_at.FromMilliseconds(NOW_MS - 60_000)
    event.received_at.FromMilliseconds(NOW_MS - 1000)
    return event


def _records(
    values: Sequence[bytes], *, topic: Topic = PLAY_EVENTS, key: bytes | None = KEY, headers: Headers = ()
) -> list[MemoryRecord]:
    return [MemoryRecord(topic.name, 1, 40 + n, NOW_MS, key, value, tuple(headers)) for n, value in enumerate(values)]


class Rig:
    def __init__(self, *, with_breaker: bool = True, tenants: int = 1) -> None:
        self.log = MemoryLog([PLAYS, DEAD_LETTERS])
        self.handler = Handler(self.log, CATALOGUE.get, lambda: tenants, Clock(), with_breaker=with_breaker)

    async def handle(self, records: Sequence[MemoryRecord]) -> None:
        await self.handler(TopicPartition(records[0].topic, 1), records)

    @property
    def accepted(self) -> list[AcceptedEvent]:
        return [event for record in self.log.records(PLAYS) for event in decode_plays(record.value or b"")]

    @property
    def letters(self) -> list[DeadLetter]:
        return [DeadLetter.FromString(record.value or b"") for record in self.log.records(DEAD_LETTERS)]


async def test_events_of_one_partition_become_one_record_there() -> None:
    rig = Rig()
    await rig.handle(_records([_event(n).SerializeToString() for n in range(5)]))
    (record,) = rig.log.records(PLAYS)
    assert record.partition == partition_of("aurora", "u-1", PLAYS.partitions)
    assert [event.event_id[-1] for event in rig.accepted] == [0, 1, 2, 3, 4]
    assert {(event.duration_ms, event.received_at_ms) for event in rig.accepted} == {(212_000, NOW_MS - 1000)}


async def test_the_same_event_twice_is_accepted_twice() -> None:
    rig = Rig()
    await rig.handle(_records([_event().SerializeToString()] * 2))
    assert len(rig.accepted) == 2


async def test_an_unknown_track_keeps_its_id_and_a_nameless_one_gets_a_provisional() -> None:
    rig = Rig()
    unknown = _event(1, track_id="t-new")
    named = _event(2, track_id="", title="Low Tide", artist_name="Glass Heron")
    await rig.handle(_records([unknown.SerializeToString(), named.SerializeToString()]))
    assert [event.track_id for event in rig.accepted] == ["t-new", provisional_track_id("Low Tide", "Glass Heron")]
    assert rig.letters == []
    assert rig.handler.counts["unknown_tracks"] == 2


async def test_an_invalid_record_goes_whole_into_a_dead_letter_and_the_rest_goes_on() -> None:
    rig = Rig()
    bad = b"\x0a\xff\xff"
    await rig.handle(_records([_event(1).SerializeToString(), bad, _event(2).SerializeToString()]))
    assert len(rig.accepted) == 2
    (letter,) = rig.letters
    assert (letter.value, letter.key, letter.tenant_id, letter.reason) == (bad, KEY, "aurora", "not_a_play_event")
    assert (letter.source_topic, letter.source_partition, letter.source_offset) == (PLAY_EVENTS.name, 1, 41)
    assert letter.received_at.ToMilliseconds() == NOW_MS
    assert letter.sentence.endswith(".")


@pytest.mark.parametrize(
    ("value", "key", "reason"),
    [
        (b"", KEY, "event_empty"),
        (b"\x00" * 20_000, KEY, "event_too_large"),
        (Timestamp(seconds=5).SerializeToString(), KEY, "event_id_bad"),
        (PlayEvent(event_id=b"short").SerializeToString(), KEY, "event_id_bad"),
        (_event().SerializeToString(), b"aurora", "key_bad"),
        (_event().SerializeToString(), None, "key_bad"),
        (_event().SerializeToString(), b"aurora|not an id", "key_bad"),
        (_event().SerializeToString(), b"AURORA|u-1", "key_bad"),
    ],
    ids=range(8),
)
async def test_each_kind_of_garbage_has_its_reason(value: bytes, key: bytes | None, reason: str) -> None:
    rig = Rig()
    await rig.handle(_records([value], key=key))
    assert [letter.reason for letter in rig.letters] == [reason]
    assert rig.accepted == []


async def test_unknown_fields_of_a_later_contract_are_no_fault() -> None:
    rig = Rig()
    await rig.handle(_records([_event().SerializeToString() + b"\xfa\x07\x03abc"]))
    assert len(rig.accepted) == 1


async def test_on_an_ingress_topic_the_topic_is_the_tenant_and_append_time_the_arrival() -> None:
    rig = Rig()
    event = _event(user_id="u-9")
    event.received_at.FromMilliseconds(NOW_MS - 9_999_999)
    await rig.handle(_records([event.SerializeToString()], topic=ingress_topic("birch"), key=b"aurora|u-1"))
    (accepted,) = rig.accepted
    assert (accepted.tenant_id, accepted.user_id, accepted.received_at_ms) == ("birch", "u-9", NOW_MS)


async def test_an_ingress_event_without_a_fit_user_is_a_dead_letter_of_the_topics_tenant() -> None:
    rig = Rig()
    await rig.handle(_records([_event(user_id="a b").SerializeToString()], topic=ingress_topic("birch"), key=None))
    assert [(letter.reason, letter.tenant_id) for letter in rig.letters] == [("user_id_bad", "birch")]


def test_ids_of_any_length_are_judged_and_only_fit_ones_fill_the_memory() -> None:
    longest = "t" * 40, "u" * 64
    assert owner_of_key("|".join(longest).encode()) == owner(*longest) is not None
    remembered = _owner.cache_info().currsize
    assert owner("t", "u" * 200) is owner_of_key(b"t|" + b"u" * 200) is owner_of_key(b"x" * 1_000_000) is None
    assert _owner.cache_info().currsize == remembered


async def test_an_arrival_that_no_door_can_have_stamped_is_replaced_by_append_time() -> None:
    rig = Rig()
    event = _event()
    event.received_at.seconds = 2**62
    await rig.handle(_records([event.SerializeToString()]))
    assert [accepted.received_at_ms for accepted in rig.accepted] == [NOW_MS]


async def test_a_record_bears_the_traces_of_all_its_events() -> None:
    rig = Rig()
    records = [
        record
        for trace in (b"aa", b"bb", b"aa")
        for record in _records([_event().SerializeToString()], headers=[("meiri-trace-id", trace)])
    ]
    await rig.handle(records)
    assert list(rig.log.records(PLAYS)[0].headers) == [("meiri-trace-id", b"aa"), ("meiri-trace-id", b"bb")]


async def test_nothing_is_done_when_kafka_does_not_acknowledge_and_the_retry_makes_it_whole() -> None:
    rig = Rig()
    rig.log.refuse = True
    records = _records([_event().SerializeToString(), b"bad"])
    with pytest.raises(Transient):
        await rig.handle(records)
    assert rig.handler.counts["records"] == 0
    rig.log.refuse = False
    await rig.handle(records)
    assert (len(rig.accepted), len(rig.letters)) == (1, 1)


async def test_an_all_invalid_topic_halts_before_it_drains_and_the_others_go_on() -> None:
    rig = Rig()
    invalid = _records([b"bad"] * 100)
    with capture_logs() as logs:
        for _ in range(2):
            with pytest.raises(Transient, match="halted"):
                await rig.handle(invalid)
    assert [entry["event"] for entry in logs] == ["ingest.halted"]
    assert rig.letters == []
    await rig.handle(_records([_event().SerializeToString()], topic=PLAY_IMPORTS))
    assert len(rig.accepted) == 1
    with pytest.raises(Transient):
        await rig.handle(_records([_event().SerializeToString()]))


async def test_one_tenants_wrong_clock_stops_nobody_else() -> None:
    rig = Rig(tenants=2)
    event = _event()
    event.started_at.FromSeconds(0)
    await rig.handle(_records([event.SerializeToString()] * 300))
    await rig.handle(_records([_event().SerializeToString()], key=b"birch|u-1"))
    assert (len(rig.letters), len(rig.accepted)) == (300, 1)


async def test_a_fault_that_two_tenants_share_halts_the_topic() -> None:
    rig = Rig(tenants=5)
    event = _event()
    event.started_at.FromSeconds(0)
    await rig.handle(_records([event.SerializeToString()] * 100))
    with pytest.raises(Transient, match="halted"):
        await rig.handle(_records([event.SerializeToString()] * 100, key=b"birch|u-1"))
    assert len(rig.letters) == 100


async def test_without_the_breaker_a_topic_drains_into_dead_letters() -> None:
    rig = Rig(with_breaker=False)
    await rig.handle(_records([b"bad"] * 150))
    assert len(rig.letters) == 150
