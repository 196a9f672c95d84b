"""One suite for UserFeatureService: the fake that stands in for features, and features itself over Postgres, both pass it."""

import itertools
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace

import pytest
from meiri.features.v1 import user_feature_service_pb2 as pb
from meiri.features.v1.user_feature_service_pb2_grpc import (
    UserFeatureServiceStub,
    add_UserFeatureServiceServicer_to_server,
)
from meiri.feedback.v1.feedback_event_pb2 import FeedbackEvent, FeedbackKind

from services.features.servicer import POLICIES, UserFeatureServicer
from services.features.source import Delivered
from shared.clock import Clock
from shared.codec.plays import AcceptedEvent
from shared.columns import Array, array, splits
from shared.errors import Permanent
from shared.ids import new_event_id, partition_of, track_key
from shared.postgres import Database
from shared.rpc.client import channel, tenant_scope
from shared.rpc.errors import PermissionDenied, Unauthenticated, code_of
from shared.rpc.principal import Scope
from shared.rpc.server import Server
from shared.rpc.tokens import Verifier
from shared.topics import FEEDBACK
from tests.fakes import FakeFeatures, Heard, Said, features_server
from tests.integration.doors import PUBLIC, new_tenant, token
from tests.integration.test_features_state import State, contiguous

DAY_MS = 86_400_000
TODAY = 22_800
LOVE, DISLIKE, BAN, UNDO = (
    FeedbackKind.FEEDBACK_KIND_LOVE,
    FeedbackKind.FEEDBACK_KIND_DISLIKE,
    FeedbackKind.FEEDBACK_KIND_BAN,
    FeedbackKind.FEEDBACK_KIND_UNDO,
)


@dataclass
class Under:
    """The service under test, a tenant of its own, and how its listeners play and speak."""

    address: str
    stub: UserFeatureServiceStub
    tenant_id: str
    _hear: Callable[[str, str, dict[str, Heard]], Awaitable[None]]
    _say: Callable[[str, str, Said], Awaitable[None]]

    async def hear(self, user_id: str, **tracks: Heard) -> None:
        """Each track once at most."""
        await self._hear(self.tenant_id, user_id, tracks)

    async def say(self, user_id: str, *said: Said) -> None:
        for one in said:
            await self._say(self.tenant_id, user_id, one)


@pytest.fixture(params=["fake", "features"])
async def under(request: pytest.FixtureRequest) -> AsyncIterator[Under]:
    async with _fake() if request.param == "fake" else _real(request.getfixturevalue("database")) as (address, *ways):
        tenant_id = new_tenant()
        async with channel(address, token=token(None, "materialiser", Scope.SERVICE)) as opened:
            with tenant_scope(tenant_id):
                yield Under(address, UserFeatureServiceStub(opened), tenant_id, *ways)


@asynccontextmanager
async def _fake():  # type: ignore[no-untyped-def]
    fake = FakeFeatures()

    async def hear(tenant_id: str, user_id: str, tracks: dict[str, Heard]) -> None:
        fake.heard.setdefault((tenant_id, user_id), {}).update(tracks)

    async def say(tenant_id: str, user_id: str, said: Said) -> None:
        fake.say(tenant_id, user_id, said)

    async with features_server(fake, PUBLIC) as address:
        yield address, hear, say


@asynccontextmanager
async def _real(database):  # type: ignore[no-untyped-def]
    """Its servicer over a database that play events and feedback reach by its own handlers."""
    seconds = itertools.count(1)
    offsets: dict[int, int] = {}

    async def hear(tenant_id: str, user_id: str, tracks: dict[str, Heard]) -> None:
        events = []
        for track_id, heard in tracks.items():
            for number in range(heard.plays):
                start = heard.last_day * DAY_MS + number * 1_000_000
                played = 200_000 if number < heard.listens else 5_000
                event_id = new_event_id(start)
                events.append(
                    AcceptedEvent(tenant_id, user_id, track_id, event_id, start, played, 200_000, None, start)
                )
        await state.count(events)

    async def say(tenant_id: str, user_id: str, said: Said) -> None:
        event = FeedbackEvent(event_id=new_event_id(next(seconds)), user_id=user_id, kind=said.kind)  # type: ignore[arg-type]
        event.given_at.FromSeconds(next(seconds))
        if said.track_id is not None:
            event.track_id, target = said.track_id, f"track:{said.track_id}"
        else:
            event.artist_id, target = said.artist_id or "", f"artist:{said.artist_id}"
        partition = partition_of(tenant_id, user_id, FEEDBACK.partitions)
        offset = offsets[partition] = offsets.get(partition, -1) + 1
        key = f"{tenant_id}|{user_id}|{target}".encode()
        record = Delivered(FEEDBACK.name, partition, offset, 0, key, event.SerializeToString(), ())
        await state.source.apply([record], contiguous)

    async with Database.open(database.urls["features"], pool_size=4) as db:
        state = State(db)
        await state.clear()
        async with Server(
            "127.0.0.1:0",
            policies=POLICIES,
            verifier=Verifier(PUBLIC, Clock()),
            servicers=[(add_UserFeatureServiceServicer_to_server, UserFeatureServicer(db))],
            max_concurrent=8,
            grace_s=0.1,
        ) as server:
            yield f"127.0.0.1:{server.port}", hear, say


COLUMNS = {"track_key": "u8", "plays": "u4", "listens": "u4", "skips": "u4", "last_played_day": "i4"}


async def histories(under: Under, *user_ids: str) -> list[list[tuple[int, ...]]]:
    """Each user's rows of COLUMNS, as answered."""
    answer = await under.stub.BatchGet(pb.BatchGetRequest(user_ids=user_ids))
    columns = [array(getattr(answer, name), dtype, name=name) for name, dtype in COLUMNS.items()]
    ends = splits(answer.splits, name="splits", lists=len(user_ids), rows=len(columns[0])).tolist()
    assert {len(column) for column in columns} == {ends[-1]}
    rows = [tuple(row) for row in zip(*(column.tolist() for column in columns), strict=True)]
    return [rows[first:last] for first, last in itertools.pairwise(ends)]


async def feedback(under: Under, *user_ids: str) -> list[tuple[int, int, str]]:
    answer = await under.stub.BatchGet(pb.BatchGetRequest(user_ids=user_ids))
    return [(item.user_index, item.kind, getattr(item, item.WhichOneof("target"))) for item in answer.feedback]


async def trending(under: Under, limit: int = 0) -> list[tuple[int, int]]:
    answer = await under.stub.GetTrending(pb.GetTrendingRequest(limit=limit))
    keys: Array = array(answer.track_key, "u8", name="track_key")
    listens = array(answer.listens, "u4", name="listens", length=len(keys))
    return list(zip(keys.tolist(), listens.tolist(), strict=True))


async def test_histories_come_in_the_order_asked_and_an_unknown_user_has_an_empty_one(under: Under) -> None:
    await under.hear("mira", song=Heard(3, 2, TODAY), other=Heard(1, 0, TODAY - 9))
    await under.hear("joan", song=Heard(1, 1, TODAY - 2))
    mira = sorted([(track_key("song"), 3, 2, 1, TODAY), (track_key("other"), 1, 0, 1, TODAY - 9)])
    joan = [(track_key("song"), 1, 1, 0, TODAY - 2)]
    assert await histories(under, "joan", "nobody", "mira") == [joan, [], mira]
    assert await histories(under, "mira", "joan") == [mira, joan]
    assert await histories(under, "nobody") == [[]]


async def test_a_users_rows_are_in_track_key_order_by_the_unsigned_number(under: Under) -> None:
    await under.hear("mira", **{f"track-{number}": Heard(1, 1, TODAY) for number in range(40)})
    (rows,) = await histories(under, "mira")
    keys = [row[0] for row in rows]
    assert keys == sorted(track_key(f"track-{number}") for number in range(40))
    assert keys[0] < 2**63 <= keys[-1]


async def test_the_same_question_has_the_same_bytes_for_an_answer(under: Under) -> None:
    await under.hear("mira", song=Heard(3, 2, TODAY), other=Heard(1, 0, TODAY))
    await under.say("mira", Said(LOVE, track_id="song"), Said(BAN, artist_id="a"))
    answers = [await under.stub.BatchGet(pb.BatchGetRequest(user_ids=["x", "mira"])) for _ in range(2)]
    first, second = (answer.SerializeToString(deterministic=True) for answer in answers)
    assert first == second


async def test_feedback_is_what_holds_now_in_user_kind_and_target_order(under: Under) -> None:
    await under.say(
        "mira",
        Said(BAN, artist_id="z"),
        Said(BAN, artist_id="a"),
        Said(BAN, track_id="m"),
        Said(DISLIKE, track_id="changed"),
        Said(LOVE, track_id="changed"),
        Said(LOVE, track_id="Apart"),
        Said(LOVE, track_id="undone"),
        Said(UNDO, track_id="undone"),
    )
    await under.say("joan", Said(DISLIKE, track_id="changed"))
    mira = [(LOVE, "Apart"), (LOVE, "changed"), (BAN, "m"), (BAN, "a"), (BAN, "z")]
    assert await feedback(under, "joan", "nobody", "mira") == [(0, DISLIKE, "changed"), *((2, *said) for said in mira)]
    assert await feedback(under, "nobody") == []


@pytest.mark.parametrize(
    ("user_ids", "sentence"),
    [
        ([], "Send 1 to 512 user ids"),
        (["mira", "mira"], "each once"),
        ([f"user-{number}" for number in range(513)], "Send 1 to 512 user ids"),
        (["a\0b"], "zero byte"),
    ],
)
async def test_a_bad_list_of_users_is_refused_with_what_is_wrong_with_it(
    under: Under, user_ids: list[str], sentence: str
) -> None:
    with pytest.raises(Permanent, match=sentence) as refused:
        await under.stub.BatchGet(pb.BatchGetRequest(user_ids=user_ids))
    assert code_of(refused.value).name == "INVALID_ARGUMENT"


async def test_everyone_who_played_or_spoke_is_listed_in_order_page_by_page(under: Under) -> None:
    for number in range(5):
        await under.hear(f"user-{number}", song=Heard(1, 1, TODAY))
    await under.say("Zoë", Said(LOVE, track_id="song"))
    await under.say("åsa", Said(LOVE, track_id="song"), Said(UNDO, track_id="song"))
    everyone = ["Zoë", *(f"user-{number}" for number in range(5)), "åsa"]
    whole = await under.stub.ListUsers(pb.ListUsersRequest())
    assert (list(whole.user_ids), whole.next_page_token) == (everyone, "")
    pages: list[list[str]] = []
    page_token = ""
    while not pages or page_token:
        page = await under.stub.ListUsers(pb.ListUsersRequest(page_size=3, page_token=page_token))
        pages.append(list(page.user_ids))
        page_token = page.next_page_token
    assert pages == [everyone[:3], everyone[3:6], everyone[6:]]
    exact = await under.stub.ListUsers(pb.ListUsersRequest(page_size=7))
    assert exact.next_page_token == ""
    with pytest.raises(Permanent, match="1 to 10000 users a page"):
        await under.stub.ListUsers(pb.ListUsersRequest(page_size=10_001))


async def test_trending_is_the_most_listened_first_and_no_skips(under: Under) -> None:
    await under.hear("mira", most=Heard(4, 4, TODAY), skipped=Heard(9, 0, TODAY), tie1=Heard(2, 2, TODAY))
    await under.hear("joan", most=Heard(1, 1, TODAY - 1), tie2=Heard(2, 2, TODAY), tie3=Heard(3, 2, TODAY - 2))
    ties = sorted(track_key(track_id) for track_id in ("tie1", "tie2", "tie3"))
    expected = [(track_key("most"), 5), *((key, 2) for key in ties)]
    assert await trending(under) == expected
    assert await trending(under, limit=2) == expected[:2]
    with pytest.raises(Permanent, match="1 to 1000 tracks"):
        await trending(under, limit=1001)


async def test_trending_is_of_the_newest_seven_days_that_have_listens(under: Under) -> None:
    days = {f"day{number}": Heard(1, 1, TODAY - 3 * number) for number in range(9)}
    await under.hear("mira", **days, skipped=Heard(1, 0, TODAY + 1))
    assert {key for key, _ in await trending(under)} == {track_key(f"day{number}") for number in range(7)}


async def test_the_operator_is_told_how_much_was_counted(under: Under) -> None:
    await under.hear("mira", song=Heard(3, 2, TODAY), other=Heard(1, 0, TODAY))
    await under.hear("joan", song=Heard(1, 1, TODAY))
    await under.say("quiet", Said(LOVE, track_id="song"))
    bearer = token(under.tenant_id, "operator", Scope.ADMIN)
    async with channel(under.address, token=bearer) as opened:
        for stub in (under.stub, UserFeatureServiceStub(opened)):
            counts = await stub.GetLedgerCounts(pb.GetLedgerCountsRequest())
            assert (counts.play_events, counts.users) == (5, 2)


async def test_another_tenants_listeners_are_not_seen(under: Under) -> None:
    other = new_tenant()
    await replace(under, tenant_id=other).hear("mira", theirs=Heard(1, 1, TODAY))
    await under.hear("mira", ours=Heard(1, 1, TODAY))
    assert [row[0] for row in (await histories(under, "mira"))[0]] == [track_key("ours")]
    assert await trending(under) == [(track_key("ours"), 1)]
    with tenant_scope(other):
        assert await trending(under) == [(track_key("theirs"), 1)]


async def test_only_other_services_may_ask_and_they_name_the_tenant(under: Under) -> None:
    calls = {"BatchGet": pb.BatchGetRequest(user_ids=["u"]), "ListUsers": pb.ListUsersRequest()}
    calls |= {"GetTrending": pb.GetTrendingRequest(), "GetLedgerCounts": pb.GetLedgerCountsRequest()}
    app, nobody = token(under.tenant_id, "shop", Scope.APP), None
    with tenant_scope(""):
        for method, request in calls.items():
            with pytest.raises(PermissionDenied):
                await getattr(under.stub, method)(request)
    for bearer, refusal in ((app, PermissionDenied), (nobody, Unauthenticated)):
        async with channel(under.address, token=bearer) as opened:
            for method, request in calls.items():
                with pytest.raises(refusal):
                    await getattr(UserFeatureServiceStub(opened), method)(request)
