"""One suite for EmbeddingService: the fake that stands in for the embedder, and the real engine over a small release."""

import itertools
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from meiri.columns.v1.column_pb2 import Column
from meiri.embedding.v1 import embedding_service_pb2 as pb
from meiri.embedding.v1.embedding_service_pb2_grpc import (
    EmbeddingServiceStub,
    add_EmbeddingServiceServicer_to_server,
)

from services.embedder.engine import Engine
from services.embedder.servicer import POLICIES, EmbeddingServicer
from shared.clock import Clock
from shared.codec.state import ModelRelease
from shared.columns import array, column, splits, track_lists
from shared.errors import Permanent
from shared.ids import track_key
from shared.registry import Registry, ReleaseContent
from shared.rpc.client import channel, tenant_scope
from shared.rpc.errors import FailedPrecondition, NotFound, PermissionDenied, Unauthenticated, code_of
from shared.rpc.principal import Scope
from shared.rpc.server import Server
from shared.rpc.tokens import Verifier
from shared.two_tower.release import release_content
from shared.two_tower.train import Recipe, train
from tests.fakes import FakeEmbedder, embedder_server
from tests.integration.doors import PUBLIC, new_tenant, token
from tests.unit.two_tower_world import NOW_MS, TRACKS, world

RELEASED_AT = datetime(2032, 6, 15, 12, 0, tzinfo=UTC)
INDEX = [track_key(f"track-{number}") for number in range(TRACKS)]
STRANGE = track_key("a track that no release knows")
RETRIEVED, HISTORY, EXTRA = (
    pb.ScoreSource.SCORE_SOURCE_RETRIEVED,
    pb.ScoreSource.SCORE_SOURCE_HISTORY,
    pb.ScoreSource.SCORE_SOURCE_EXTRA,
)
Release = Callable[[str, str], Awaitable[None]]


@dataclass
class Under:
    """The service under test and a tenant of its own, which `release` gives a release of the tracks of INDEX."""

    address: str
    stub: EmbeddingServiceStub
    tenant_id: str
    _release: Release

    async def release(self, release_id: str = "r1") -> None:
        await self._release(self.tenant_id, release_id)


@pytest.fixture(scope="module")
def content() -> ReleaseContent:
    """What a release holds; how well it recommends does not matter here."""
    tracks, plays = world(users=40, plays_each=20)
    recipe = Recipe(dim=16, epochs=1)
    trained = train(tracks, plays, until_ms=NOW_MS, seed=1, recipe=recipe)
    return release_content(tracks, plays, trained, until_ms=NOW_MS, seed=1, recipe=recipe)


@pytest.fixture(params=["fake", "embedder"])
async def under(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Under]:
    real = request.param == "embedder"
    async with _real(tmp_path, request.getfixturevalue("content")) if real else _fake() as (address, release):
        tenant_id = new_tenant()
        async with channel(address, token=token(None, "materialiser", Scope.SERVICE)) as opened:
            with tenant_scope(tenant_id):
                yield Under(address, EmbeddingServiceStub(opened), tenant_id, release)


@asynccontextmanager
async def _fake() -> AsyncIterator[tuple[str, Release]]:
    tracks: dict[str, Sequence[str]] = {}
    fake = FakeEmbedder(tracks, released_at=RELEASED_AT)

    async def release(tenant_id: str, release_id: str) -> None:
        tracks[tenant_id], fake.release_id = [f"track-{number}" for number in range(TRACKS)], release_id

    async with embedder_server(fake, PUBLIC) as address:
        yield address, release


@asynccontextmanager
async def _real(folder: Path, content: ReleaseContent) -> AsyncIterator[tuple[str, Release]]:
    registry = Registry(str(folder))

    async def release(tenant_id: str, release_id: str) -> None:
        ref = registry.publish(
            content, tenant=tenant_id, release_id=release_id, created_at=RELEASED_AT, code_version="test"
        )
        await engine.load(ModelRelease(tenant_id, release_id, ref.uri, ref.sha256, RELEASED_AT))

    async with (
        Engine(registry, threads=1) as engine,
        Server(
            "127.0.0.1:0",
            policies=POLICIES,
            verifier=Verifier(PUBLIC, Clock()),
            servicers=[(add_EmbeddingServiceServicer_to_server, EmbeddingServicer(engine))],
            max_concurrent=8,
            grace_s=0.1,
        ) as server,
    ):
        engine.caught_up()
        yield f"127.0.0.1:{server.port}", release


class Asks(NamedTuple):
    """One user of a call. `heard`: (track_key, listens, age in days)."""

    heard: Sequence[tuple[int, float, float]] = ()
    excluded: Sequence[int] = ()
    extra: Sequence[int] = ()


class Row(NamedTuple):
    track_key: int
    source: int
    score: float
    evidence: int


def asks(seed: int) -> Asks:
    """Somebody who skipped some, heard one that no release knows, and has exclusions."""
    rng = np.random.default_rng(seed)
    own = [int(key) for key in rng.choice(np.array(INDEX, np.uint64), 3 + seed, replace=False)]
    heard = [(key, float(rng.integers(0, 4)), float(rng.integers(0, 90))) for key in own]
    return Asks([*heard, (STRANGE, 2.0, 1.0)], excluded=[INDEX[seed], INDEX[-1 - seed], own[0], STRANGE])


def question(*users: Asks, k: int = 20, release_id: str = "r1") -> pb.ScoreUsersRequest:
    rows = [row for user in users for row in user.heard]

    def ends(lists: Iterator[Sequence[object]]) -> np.ndarray:
        return np.cumsum([0, *map(len, lists)])

    request = pb.ScoreUsersRequest(
        release_id=release_id,
        k=k,
        histories=pb.UserHistories(
            splits=column(ends(user.heard for user in users), "i8"),
            track_key=column([row[0] for row in rows], "u8"),
            listens=column([row[1] for row in rows], "f4"),
            age_days=column([row[2] for row in rows], "f4"),
        ),
    )
    for name in ("excluded", "extra"):
        lists: list[Sequence[int]] = [getattr(user, name) for user in users]
        if any(lists):
            keys = np.array([key for own in lists for key in own], np.uint64)
            field = request.exclusions if name == "excluded" else request.extra
            field.CopyFrom(track_lists(ends(iter(lists)), keys))
    return request


async def scored(under: Under, *users: Asks, k: int = 20) -> list[list[Row]]:
    """Each user's rows as answered, checked for what holds of every answer."""
    answer = await under.stub.ScoreUsers(question(*users, k=k))
    assert answer.release_id == "r1"
    keys = array(answer.track_key, "u8", name="track_key")
    count, width = len(keys), len(answer.component_names)
    ends = splits(answer.splits, name="splits", lists=len(users), rows=count).tolist()
    mask = array(answer.component_mask, "u1", name="component_mask", length=count)
    components = array(answer.components, "f4", name="components", length=count * width)
    assert np.isfinite(components).all()
    assert ((mask > 0) & (mask < 2**width)).all()
    columns = (
        keys,
        array(answer.source, "u1", name="source", length=count),
        array(answer.score, "f4", name="score", length=count),
        array(answer.evidence, "u8", name="evidence", length=count),
    )
    rows = [Row(*row) for row in zip(*(part.tolist() for part in columns), strict=True)]
    assert np.isfinite(columns[2]).all()
    return [rows[first:last] for first, last in itertools.pairwise(ends)]


def of(rows: Sequence[Row], source: int) -> list[int]:
    return [row.track_key for row in rows if row.source == source]


async def test_the_release_that_serves_is_told(under: Under) -> None:
    await under.release()
    answer = await under.stub.GetRelease(pb.GetReleaseRequest())
    assert (answer.release_id, answer.track_count) == ("r1", TRACKS)
    assert answer.released_at.ToDatetime(UTC) == RELEASED_AT


async def test_a_tenant_without_a_release_is_told_so_whoever_else_has_one(under: Under) -> None:
    await under.release()
    with tenant_scope(new_tenant()):
        with pytest.raises(NotFound, match="no model release yet"):
            await under.stub.GetRelease(pb.GetReleaseRequest())
        with pytest.raises(NotFound, match="no model release yet"):
            await under.stub.ScoreUsers(question(asks(1)))


async def test_another_release_than_the_one_that_serves_is_refused_with_its_name(under: Under) -> None:
    await under.release()
    await under.release("r2")
    with pytest.raises(FailedPrecondition, match="Release r2 serves, not r1"):
        await under.stub.ScoreUsers(question(asks(1)))
    assert (await under.stub.ScoreUsers(question(asks(1), release_id="r2"))).release_id == "r2"


async def test_users_are_answered_in_the_order_asked_each_by_source_then_score_then_key(under: Under) -> None:
    await under.release()
    users = [asks(seed) for seed in (4, 0, 9, 2)]
    for user, rows in zip(users, await scored(under, *users), strict=True):
        assert set(of(rows, HISTORY)) == {key for key, _, _ in user.heard}
        assert rows == sorted(rows, key=lambda row: (row.source, -row.score, row.track_key))
        assert len({row.track_key for row in rows}) == len(rows)


async def test_everything_heard_is_scored_even_what_the_release_does_not_know(under: Under) -> None:
    await under.release()
    user = asks(12)
    (rows,) = await scored(under, user, k=1)
    assert sorted(of(rows, HISTORY)) == sorted(key for key, _, _ in user.heard)
    assert STRANGE in of(rows, HISTORY)


async def test_more_listens_score_higher(under: Under) -> None:
    await under.release()
    (rows,) = await scored(under, Asks([(STRANGE, 1.0, 5.0), (STRANGE + 1, 9.0, 5.0), (STRANGE + 2, 0.0, 5.0)]))
    assert of(rows, HISTORY) == [STRANGE + 1, STRANGE, STRANGE + 2]


@pytest.mark.parametrize("k", [1, 7, 200])
async def test_k_tracks_are_retrieved_none_of_them_heard_or_excluded(under: Under, k: int) -> None:
    await under.release()
    users = [asks(seed) for seed in range(6)]
    for user, rows in zip(users, await scored(under, *users, k=k), strict=True):
        found = of(rows, RETRIEVED)
        assert len(found) == k
        assert set(found) <= set(INDEX) - {key for key, _, _ in user.heard} - set(user.excluded)


async def test_a_greater_k_adds_to_the_end(under: Under) -> None:
    await under.release()
    (few,), (many,) = await scored(under, asks(3), k=10), await scored(under, asks(3), k=30)
    assert of(many, RETRIEVED)[:10] == of(few, RETRIEVED)


async def test_where_fewer_than_k_are_left_all_of_them_come(under: Under) -> None:
    await under.release()
    user = asks(5)._replace(excluded=INDEX[:400])
    (rows,) = await scored(under, user, k=1000)
    assert set(of(rows, RETRIEVED)) == set(INDEX[400:]) - {key for key, _, _ in user.heard}


async def test_excluding_what_would_come_brings_the_next_best(under: Under) -> None:
    await under.release()
    (before,) = await scored(under, asks(3)._replace(excluded=()), k=10)
    best = of(before, RETRIEVED)
    (after,) = await scored(under, asks(3)._replace(excluded=best[:4]), k=6)
    assert of(after, RETRIEVED) == best[4:]


async def test_somebody_who_has_heard_nothing_has_tracks_retrieved_for_no_reason_of_their_own(under: Under) -> None:
    await under.release()
    nobody, rows = await scored(under, Asks(), asks(2))
    assert len(of(nobody, RETRIEVED)) == len(nobody) == 20
    assert {row.evidence for row in nobody} == {0}
    assert len(of(rows, RETRIEVED)) == 20


async def test_the_evidence_is_something_that_the_user_listened_to(under: Under) -> None:
    await under.release()
    users = [asks(seed) for seed in range(5, 10)]
    for user, rows in zip(users, await scored(under, *users), strict=True):
        listened = {key for key, listens, _ in user.heard if listens}
        assert {row.evidence for row in rows} <= listened | {0}
        assert any(row.evidence for row in rows if row.source == RETRIEVED)
        for row in rows:
            if row.source == HISTORY:
                assert row.evidence == (row.track_key if row.track_key in listened else 0)


async def test_extras_are_scored_beside_the_rest_and_each_track_once(under: Under) -> None:
    await under.release()
    user = asks(6)
    (plain,) = await scored(under, user)
    wanted, heard = of(plain, RETRIEVED)[0], user.heard[0][0]
    (rows,) = await scored(under, user._replace(extra=[wanted, heard, STRANGE + 9, user.excluded[0], wanted]))
    assert set(of(rows, EXTRA)) == {wanted, user.excluded[0]} - {key for key, _, _ in user.heard}
    assert of(rows, RETRIEVED)[:19] == of(plain, RETRIEVED)[1:]
    score = {row.track_key: row.score for row in plain}
    assert {row.score for row in rows if row.track_key == wanted} == {score[wanted]}


async def test_the_answer_for_a_user_is_the_same_to_the_bit_whoever_else_is_in_the_call(under: Under) -> None:
    await under.release()
    users = [asks(seed) for seed in range(8)]
    together = await scored(under, *users)
    for user, rows in zip(users, together, strict=True):
        assert await scored(under, user) == [rows]
    assert await scored(under, *reversed(users)) == together[::-1]


async def test_a_call_that_does_not_fit_is_refused_with_what_is_wrong_with_it(under: Under) -> None:
    await under.release()
    good = question(asks(1), asks(2))
    rows = len(good.histories.track_key.data) // 8

    def but(**columns: Column) -> pb.ScoreUsersRequest:
        request = pb.ScoreUsersRequest()
        request.CopyFrom(good)
        for name, value in columns.items():
            getattr(request.histories, name).CopyFrom(value)
        return request

    lists = pb.ScoreUsersRequest()
    lists.CopyFrom(good)
    lists.exclusions.splits.CopyFrom(column([0, 8], "i8"))
    wrong = [
        ("has 1 elements where", but(listens=column([1], "f4"))),
        ("has 1 elements where", but(age_days=column([1], "f4"))),
        ("must be of type COLUMN_TYPE_UINT64", but(track_key=good.histories.listens)),
        ("no whole number of elements", but(age_days=Column(type=good.histories.age_days.type, data=b"\0" * 5))),
        ("must rise from 0", but(splits=column([0, rows + 1, rows], "i8"))),
        ("must rise from 0", but(splits=column([0, 1, rows - 1], "i8"))),
        ("no number", but(listens=column(np.full(rows, np.nan), "f4"))),
        ("no number", but(age_days=column(np.full(rows, np.inf), "f4"))),
        ("has 2 elements where 3", lists),
        ("Ask for 1 to 1000", question(asks(1), k=0)),
        ("Ask for 1 to 1000", question(asks(1), k=1001)),
        ("Send 1 to 4096 users", question()),
        ("Send 1 to 4096 users", question(*[Asks()] * 4097)),
    ]
    for sentence, request in wrong:
        with pytest.raises(Permanent, match=sentence) as refused:
            await under.stub.ScoreUsers(request)
        assert code_of(refused.value).name == "INVALID_ARGUMENT"
    assert (await under.stub.ScoreUsers(good)).release_id == "r1"


async def test_only_other_services_may_ask_and_they_name_the_tenant(under: Under) -> None:
    await under.release()
    calls = {"GetRelease": pb.GetReleaseRequest(), "ScoreUsers": question(asks(1))}
    with tenant_scope(""):
        for method, request in calls.items():
            with pytest.raises(PermissionDenied):
                await getattr(under.stub, method)(request)
    for bearer, refusal in (
        (token(under.tenant_id, "shop", Scope.APP), PermissionDenied),
        (token(under.tenant_id, "operator", Scope.ADMIN), PermissionDenied),
        (None, Unauthenticated),
    ):
        async with channel(under.address, token=bearer) as opened:
            for method, request in calls.items():
                with pytest.raises(refusal):
                    await getattr(EmbeddingServiceStub(opened), method)(request)
