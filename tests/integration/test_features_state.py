"""The ledger and what is derived from it, on a real Postgres."""

import asyncio
import random
from collections.abc import AsyncIterator, Sequence

import pytest
from meiri.features.v1 import user_feature_service_pb2 as pb
from meiri.feedback.v1.feedback_event_pb2 import FeedbackEvent, FeedbackKind
from meiri.ingest.v1.dead_letter_pb2 import DeadLetter

from services.features import queries
from services.features.dead_letters import DeadLetters
from services.features.feedback import FeedbackHandler
from services.features.handler import PlaysHandler
from services.features.servicer import UserFeatureServicer
from services.features.source import Delivered, SkippedRecordsError, Source
from shared.clock import Clock
from shared.codec.plays import AcceptedEvent, encode_plays
from shared.columns import array
from shared.errors import Permanent
from shared.ids import TenantId, partition_of, track_key
from shared.kafka.log import TopicPartition
from shared.kafka.memory import MemoryLog
from shared.kafka.partition import Moved, StoredOffsets
from shared.kafka.progress import Progress
from shared.plays.grouping import Counts
from shared.postgres import Database
from shared.rpc import principal as principals
from shared.rpc.principal import Principal, Scope
from shared.topics import DEAD_LETTERS, FEEDBACK, PLAYS
from tests.integration.features_world import DAY_MS, NEW_YEAR_MS, hard_events, records_of, recount

TABLES = "ledger, cells, users, trending, feedback, duplicates, consumer_offset"


def contiguous(partition: TopicPartition, offset: int, position: int) -> bool:
    return offset <= position


class State:
    """A state that starts empty, fed without Kafka."""

    def __init__(self, db: Database) -> None:
        self.db = db
        self.log = MemoryLog([PLAYS, FEEDBACK, DEAD_LETTERS])
        letters = DeadLetters(self.log, Clock())
        self.source = Source(
            self.log,
            StoredOffsets(db, "memory"),
            {PLAYS.name: PlaysHandler(letters), FEEDBACK.name: FeedbackHandler(letters)},
            progress=Progress(),
        )
        self.offsets: dict[int, int] = {}

    async def clear(self) -> None:
        await self.db.execute(f"TRUNCATE {TABLES}")
        self.offsets.clear()
        topics = (PLAYS, FEEDBACK)
        await self.source.begin(frozenset(TopicPartition(t.name, n) for t in topics for n in range(t.partitions)))

    async def count(self, events: Sequence[AcceptedEvent], *, size: int = 20, at_once: int = 3) -> None:
        records = records_of(events, size=size, first=self.offsets)
        for place in range(0, len(records), at_once):
            await self.source.apply(records[place : place + at_once], contiguous)

    async def cells(self) -> dict[tuple[str, str, int, int], Counts]:
        rows = await self.db.fetch("SELECT * FROM cells")
        return {tuple(row)[:4]: Counts(*tuple(row)[4:]) for row in rows}

    async def answers(self, tenant_id: str, users: int) -> list[bytes]:
        """Every answer about a tenant, as sent, but for the count of duplicates."""
        principals.current.set(Principal(TenantId(tenant_id), "test", Scope.SERVICE))
        servicer = UserFeatureServicer(self.db)
        known = await servicer.ListUsers(pb.ListUsersRequest(), None)
        user_ids = [f"user-{number}" for number in range(users)]
        histories = await servicer.BatchGet(pb.BatchGetRequest(user_ids=[*user_ids, "nobody"]), None)
        trending = await servicer.GetTrending(pb.GetTrendingRequest(), None)
        counts = await servicer.GetLedgerCounts(pb.GetLedgerCountsRequest(), None)
        counts.duplicates = 0
        return [message.SerializeToString(deterministic=True) for message in (known, histories, trending, counts)]


@pytest.fixture
async def state(database) -> AsyncIterator[State]:  # type: ignore[no-untyped-def]
    async with Database.open(database.urls["features"], pool_size=4) as db:
        made = State(db)
        await made.clear()
        yield made


@pytest.mark.parametrize("seed", range(6))
async def test_counts_equal_a_recount_of_all_events_in_any_order_with_any_repeats(state: State, seed: int) -> None:
    rng = random.Random(seed)
    events = hard_events(seed, 250)
    expected = recount(events)
    answers: list[list[bytes]] = []
    for size, at_once in ((1, 40), (7, 3), (250, 10)):
        await state.clear()
        sent = events + rng.sample(events, rng.randrange(200))
        rng.shuffle(sent)
        await state.count(sent, size=size, at_once=at_once)
        assert await state.cells() == expected
        assert await state.db.fetchval("SELECT count(*) FROM ledger") == len(events)
        assert await state.db.fetchval("SELECT sum(play_events) FROM duplicates") == len(sent) - len(events) or len(
            sent
        ) == len(events)
        assert await state.db.fetchval("SELECT sum(play_events) FROM users") == len(events)
        answers.append(await state.answers("aurora", 4) + await state.answers("birch", 4))
    assert answers[1:] == answers[:1] * 2


async def test_histories_and_trending_are_the_sums_of_the_counts(state: State) -> None:
    events = hard_events(3, 300)
    await state.count(events)
    cells = recount(events)
    await state.answers("aurora", 4)
    answer = await UserFeatureServicer(state.db).BatchGet(
        pb.BatchGetRequest(user_ids=["user-2", "nobody", "user-0"]), None
    )
    splits = array(answer.splits, "i8", name="splits").tolist()
    keys = array(answer.track_key, "u8", name="track_key").tolist()
    columns = [
        array(getattr(answer, name), kind, name=name).tolist()
        for name, kind in (("plays", "u4"), ("listens", "u4"), ("skips", "u4"), ("last_played_day", "i4"))
    ]
    assert splits[1] == splits[2]
    for place, user_id in ((0, "user-2"), (2, "user-0")):
        rows = range(splits[place], splits[place + 1])
        assert [keys[row] for row in rows] == sorted(track_key(f"track-{n}") for n in range(3))
        for row in rows:
            own = {day: c for (t, u, k, day), c in cells.items() if (t, u, k % 2**64) == ("aurora", user_id, keys[row])}
            sums = [
                sum(c.plays for c in own.values()),
                sum(c.listens for c in own.values()),
                sum(c.skips for c in own.values()),
            ]
            assert [column[row] for column in columns] == [*sums, max(own)]
    trending = await UserFeatureServicer(state.db).GetTrending(pb.GetTrendingRequest(limit=2), None)
    listens: dict[int, int] = {}
    for (tenant_id, _, key, _), counts in cells.items():
        if tenant_id == "aurora":
            listens[key % 2**64] = listens.get(key % 2**64, 0) + counts.listens
    best = sorted(listens, key=lambda key: (-listens[key], key))[:2]
    assert array(trending.track_key, "u8", name="track_key").tolist() == best
    assert array(trending.listens, "u4", name="listens").tolist() == [listens[key] for key in best]


async def test_trending_looks_at_the_newest_seven_days_that_have_listens(state: State) -> None:
    def listen(track: str, day: int) -> AcceptedEvent:
        start = NEW_YEAR_MS + day * DAY_MS
        return AcceptedEvent("aurora", "user-0", track, random.randbytes(16), start, 200_000, 200_000, None, start)

    days = [0, 10, 11, 20, 30, 31, 40, 50]
    await state.count([listen("old", 0), *(listen("seldom", day) for day in days[1:]), listen("new", 50)])
    keys, listens = await queries.trending(state.db, "aurora", 10, timeout_s=5)
    assert dict(zip(keys.tolist(), listens.tolist(), strict=True)) == {track_key("seldom"): 7, track_key("new"): 1}


async def test_a_resend_that_was_resolved_to_another_track_counts_once(state: State) -> None:
    event = hard_events(1, 1)[0]
    await state.count([event])
    await state.count(
        [event._replace(track_id="elsewhere"), event._replace(started_at_ms=event.started_at_ms - 30 * DAY_MS)]
    )
    assert await state.cells() == recount([event])
    assert await state.db.fetchval("SELECT sum(play_events) FROM duplicates") == 2


async def test_an_event_that_joins_two_plays_empties_the_cell_of_the_second(state: State) -> None:
    late = NEW_YEAR_MS - 60_000
    first = AcceptedEvent("aurora", "user-0", "track-0", b"a" * 16, late, 30_000, 600_000, None, late)
    second = first._replace(event_id=b"b" * 16, started_at_ms=NEW_YEAR_MS + 60_000)
    bridge = first._replace(event_id=b"c" * 16, started_at_ms=late + 10_000, played_ms=300_000)
    await state.count([first, second])
    assert len(await state.cells()) == 2
    await state.count([bridge])
    assert await state.cells() == recount([first, second, bridge])
    assert len(await state.cells()) == 1


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (b"no batch", "not_a_play_batch"),
        (b"", "bad_column"),
        ("elsewhere", "wrong_partition"),
        ("zero", "zero_byte"),
        ("early", "time_out_of_range"),
    ],
)
async def test_a_record_that_cannot_be_counted_goes_to_the_dead_letters_and_the_rest_is_counted(
    state: State, value: bytes | str, reason: str
) -> None:
    good = hard_events(2, 1, tenants=["aurora"])[0]
    partition = partition_of(good.tenant_id, good.user_id, PLAYS.partitions)
    made = {
        "elsewhere": next(e for e in hard_events(4, 50) if partition_of(e.tenant_id, e.user_id, 4) != partition),
        "zero": good._replace(track_id="a\0b"),
        "early": good._replace(started_at_ms=-(2**62)),
    }
    poison = encode_plays([made[value]]) if isinstance(value, str) else value
    record = Delivered(PLAYS.name, partition, 0, 7_000, b"key", poison, ())
    await state.source.apply([record, record._replace(offset=1, value=encode_plays([good]))], contiguous)
    assert await state.cells() == recount([good])
    letters = state.log.records(DEAD_LETTERS)
    assert len(letters) == 1
    letter = DeadLetter.FromString(letters[0].value or b"")
    assert (letter.value, letter.key, letter.reason) == (poison, b"key", reason)
    assert (letter.tenant_id, letter.received_at.ToMilliseconds()) == ("", 7_000)
    assert (letter.source_topic, letter.source_partition, letter.source_offset) == (PLAYS.name, partition, 0)


async def test_a_poison_record_too_large_for_a_dead_letter_leaves_its_origin_there(state: State) -> None:
    await state.source.apply([Delivered(PLAYS.name, 0, 0, 0, None, b"\xff" * (4 << 20), ())], contiguous)
    letter = DeadLetter.FromString(state.log.records(DEAD_LETTERS)[0].value or b"")
    assert (letter.value, letter.source_topic, letter.source_offset) == (b"", PLAYS.name, 0)
    assert "too large" in letter.sentence


async def test_records_that_were_skipped_are_noticed_and_nothing_of_them_is_stored(state: State) -> None:
    records = [record for record in records_of(hard_events(5, 200), size=5) if record.partition == 1]
    await state.source.apply(records[:2], contiguous)
    with pytest.raises(ExceptionGroup) as raised:
        await state.source.apply(records[3:], contiguous)
    assert raised.group_contains(SkippedRecordsError)
    stored = await state.db.fetchval(
        "SELECT next_offset FROM consumer_offset WHERE topic = $1 AND partition = 1", PLAYS.name
    )
    assert stored == 2
    await state.source.apply(records[1:], contiguous)
    assert await state.db.fetchval(
        "SELECT next_offset FROM consumer_offset WHERE topic = $1 AND partition = 1", PLAYS.name
    ) == len(records)


def said(
    kind: int, seconds: int, event_id: bytes, *, user: str = "user-0", target: str = "track:t"
) -> tuple[bytes, bytes]:
    event = FeedbackEvent(event_id=event_id, user_id=user, kind=FeedbackKind.ValueType(kind))
    if target.startswith("track:"):
        event.track_id = target[6:]
    else:
        event.artist_id = target[7:]
    event.given_at.FromSeconds(seconds)
    return f"aurora|{user}|{target}".encode(), event.SerializeToString()


async def give(state: State, records: Sequence[tuple[bytes, bytes | None]]) -> None:
    partition = partition_of("aurora", "user-0", FEEDBACK.partitions)
    start = state.offsets.setdefault(100, 0)
    state.offsets[100] = start + len(records)
    await state.source.apply(
        [Delivered(FEEDBACK.name, partition, start + n, 0, key, value, ()) for n, (key, value) in enumerate(records)],
        contiguous,
    )


async def held(state: State) -> list[tuple[int, int, str]]:
    found = await queries.feedback(state.db, "aurora", ["user-0"], undo=FeedbackKind.FEEDBACK_KIND_UNDO, timeout_s=5)
    return [(row.kind, row.target_type, row.target_id) for row in found]


async def test_an_offset_that_another_moved_back_ends_the_process_and_is_not_waited_for(state: State) -> None:
    await state.count([event for event in hard_events(6, 40) if event.user_id == "user-0"], size=1)
    await state.db.execute("UPDATE consumer_offset SET next_offset = 0")
    with pytest.raises(ExceptionGroup) as left:
        await asyncio.wait_for(state.count(hard_events(7, 40), size=1), 10)
    assert left.group_contains(Moved)


async def test_the_newest_feedback_of_a_target_holds_in_any_order(state: State) -> None:
    records = [
        said(FeedbackKind.FEEDBACK_KIND_LOVE, 10, b"1" * 16),
        said(FeedbackKind.FEEDBACK_KIND_DISLIKE, 20, b"2" * 16),
        said(FeedbackKind.FEEDBACK_KIND_LOVE, 20, b"1" * 16),  # as new, a smaller id: does not win
        said(FeedbackKind.FEEDBACK_KIND_BAN, 5, b"3" * 16, target="artist:a"),
        said(FeedbackKind.FEEDBACK_KIND_LOVE, 1, b"4" * 16, target="track:undone"),
        said(FeedbackKind.FEEDBACK_KIND_UNDO, 2, b"5" * 16, target="track:undone"),
    ]
    for seed in range(5):
        await state.clear()
        shuffled: list[tuple[bytes, bytes | None]] = [*records, *records[:3], (records[0][0], None)]
        random.Random(seed).shuffle(shuffled)
        cut = seed + 1
        await give(state, shuffled[:cut])
        await give(state, shuffled[cut:])
        assert await held(state) == [
            (FeedbackKind.FEEDBACK_KIND_DISLIKE, 1, "t"),
            (FeedbackKind.FEEDBACK_KIND_BAN, 2, "a"),
        ]
        assert (await queries.users(state.db, "aurora", "", 10, timeout_s=5)) == ["user-0"]


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (b"aurora|user-0|track:t", b"\xff\xff"),
        (b"aurora|user-0", said(1, 1, b"1" * 16)[1]),
        (b"aurora|user-1|track:t", said(1, 1, b"1" * 16)[1]),
        (b"aurora|user-0|track:other", said(1, 1, b"1" * 16)[1]),
        (b"aurora|user-0|track:t", said(0, 1, b"1" * 16)[1]),
        (b"aurora|user-0|track:t", said(1, 1, b"1")[1]),
    ],
)
async def test_feedback_that_cannot_be_kept_goes_to_the_dead_letters(state: State, key: bytes, value: bytes) -> None:
    await give(state, [(key, value)])
    assert await held(state) == []
    (letter,) = state.log.records(DEAD_LETTERS)
    assert DeadLetter.FromString(letter.value or b"").tenant_id == "aurora"


async def test_users_are_listed_page_by_page(state: State) -> None:
    await state.count(hard_events(7, 200, users=25))
    await state.answers("aurora", 1)
    servicer = UserFeatureServicer(state.db)
    everyone = (await servicer.ListUsers(pb.ListUsersRequest(), None)).user_ids
    paged: list[str] = []
    token = ""
    while True:
        page = await servicer.ListUsers(pb.ListUsersRequest(page_size=7, page_token=token), None)
        paged += page.user_ids
        token = page.next_page_token
        if not token:
            break
    assert (
        paged == list(everyone) == sorted({e.user_id for e in hard_events(7, 200, users=25) if e.tenant_id == "aurora"})
    )


@pytest.mark.parametrize("user_ids", [[], ["a", "a"], [f"user-{n}" for n in range(513)]])
async def test_a_bad_list_of_users_is_refused(state: State, user_ids: list[str]) -> None:
    await state.answers("aurora", 1)
    with pytest.raises(Permanent):
        await UserFeatureServicer(state.db).BatchGet(pb.BatchGetRequest(user_ids=user_ids), None)
