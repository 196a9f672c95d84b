"""The embedder as it runs, on real Kafka and a registry in a folder."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pytest
from meiri.columns.v1.column_pb2 import Column
from meiri.embedding.v1 import embedding_service_pb2 as pb
from meiri.embedding.v1.embedding_service_pb2_grpc import EmbeddingServiceStub

from infra.local.ports import free_port
from services.embedder.app import serve
from services.embedder.engine import Engine
from services.embedder.settings import EmbedderSettings
from shared.codec.state import ModelRelease, encode_release, key_partition, tenant_record_key
from shared.columns import array, column, track_lists
from shared.errors import Permanent, Transient
from shared.ids import track_key
from shared.kafka.producer import Producer
from shared.registry import Registry, ReleaseContent, folder
from shared.rpc.client import channel, tenant_scope
from shared.rpc.errors import FailedPrecondition, NotFound, PermissionDenied
from shared.rpc.principal import Scope
from shared.topics import ALL, MODEL_RELEASES, Topic
from shared.two_tower.data import Plays, TrackFeatures
from shared.two_tower.release import release_content
from shared.two_tower.train import Recipe, train
from tests.conftest import RealServers
from tests.integration.doors import PUBLIC, new_tenant, token
from tests.integration.running import ends_on_sigterm, eventually, running

Topics = Callable[[Sequence[Topic]], None]
NOW = datetime(2032, 6, 15, 12, 0, tzinfo=UTC)
TRACKS, USERS = 300, 40


@pytest.fixture(scope="module")
def contents() -> list[ReleaseContent]:
    """Two models of one small world."""
    rng = np.random.default_rng(5)
    artist = np.arange(TRACKS, dtype=np.int32) // 6
    tracks = TrackFeatures(
        track_key=np.array([track_key(f"t-{number}") for number in range(TRACKS)], np.uint64),
        artist=artist,
        genre=artist % 5,
        tag_splits=np.zeros(TRACKS + 1, np.int64),
        tag_ids=np.zeros(0, np.int32),
        tag_weights=np.zeros(0, np.float32),
        artist_vocab=[str(number) for number in range(int(artist[-1]) + 1)],
        genre_vocab=list("abcde"),
        tag_vocab=[],
    )
    until_ms = int(NOW.timestamp() * 1000)
    user, track = rng.integers(0, USERS, 2000), rng.integers(0, TRACKS, 2000)
    started = until_ms - rng.integers(1, 60 * 86_400_000, 2000)
    plays = Plays(user.astype(np.int32), track.astype(np.int32), started)
    recipe = Recipe(epochs=1)
    return [
        release_content(
            tracks,
            plays,
            train(tracks, plays, until_ms=until_ms, seed=seed, recipe=recipe),
            until_ms=until_ms,
            seed=seed,
            recipe=recipe,
        )
        for seed in (1, 2)
    ]


class Bench:
    """A tenant whose releases a test publishes, and the embedder that should serve them."""

    def __init__(self, servers: RealServers, directory: Path, contents: list[ReleaseContent]) -> None:
        self._servers = servers.bootstrap_servers
        self._key = directory / "key.pub.pem"
        self._key.write_text(PUBLIC)
        self._registry = directory / "registry"
        self._contents = contents
        self._address = f"127.0.0.1:{free_port()}"
        self.tenant_id = new_tenant()

    @property
    def settings(self) -> EmbedderSettings:
        return EmbedderSettings(
            kafka_bootstrap_servers=self._servers,
            token_public_key=str(self._key),
            embedder_listen=self._address,
            registry=self._registry.as_uri(),
        )

    @asynccontextmanager
    async def running(self) -> AsyncIterator[EmbeddingServiceStub]:
        bearer = token(None, "materialiser", Scope.SERVICE)
        async with running(serve(self.settings), self._address), channel(self._address, token=bearer) as opened:
            with tenant_scope(self.tenant_id):
                yield EmbeddingServiceStub(opened)

    async def release(self, release_id: str, content: int = 0, *, corrupt: bool = False) -> None:
        """Publish and announce; a corrupt one has a file that is not what its manifest says."""
        ref = Registry(str(self._registry)).publish(
            self._contents[content], tenant=self.tenant_id, release_id=release_id, created_at=NOW, code_version="test"
        )
        if corrupt:
            file = folder(ref.uri) / "index.safetensors"
            file.write_bytes(file.read_bytes()[:-1] + b"\0")
        await self.announce(ModelRelease(self.tenant_id, release_id, ref.uri, ref.sha256, NOW))

    async def announce(self, release: ModelRelease | None) -> None:
        key = tenant_record_key(self.tenant_id)
        async with Producer.open(self._servers) as producer:
            value = None if release is None else encode_release(release)
            await producer.send(MODEL_RELEASES, key_partition(key, MODEL_RELEASES.partitions), key, value)


@pytest.fixture
def bench(servers: RealServers, topics: Topics, tmp_path: Path, contents: list[ReleaseContent]) -> Bench:
    topics(ALL)
    return Bench(servers, tmp_path, contents)


def question(users: int, release_id: str, *, first: int = 0, k: int = 20) -> pb.ScoreUsersRequest:
    """Users `first` to `first + users`, each with their own history and one exclusion."""
    ends, keys, listens, ages, excluded = [0], [], [], [], []
    for user in range(first, first + users):
        rng = np.random.default_rng(user)
        own = rng.choice(TRACKS, 3 + user % 30, replace=False)
        keys += [track_key(f"t-{number}") for number in own] + [track_key("unknown")]
        listens += [*rng.integers(0, 9, len(own)), 1]
        ages += [*rng.integers(0, 90, len(own)), 2]
        ends.append(len(keys))
        excluded.append(track_key(f"t-{user % TRACKS}"))
    return pb.ScoreUsersRequest(
        release_id=release_id,
        k=k,
        histories=pb.UserHistories(
            splits=column(ends, "i8"),
            track_key=column(keys, "u8"),
            listens=column(listens, "f4"),
            age_days=column(ages, "f4"),
        ),
        exclusions=track_lists(np.arange(users + 1), np.array(excluded, np.uint64)),
    )


def rows_of(answer: pb.ScoreUsersResponse, user: int) -> list[bytes]:
    """The bytes of one user's rows, column by column."""
    ends = array(answer.splits, "i8", name="splits")
    own = slice(int(ends[user]), int(ends[user + 1]))
    width = len(answer.component_names)
    types = {"track_key": "u8", "source": "u1", "score": "f4", "component_mask": "u1", "evidence": "u8"}
    columns = [array(getattr(answer, name), dtype, name=name)[own] for name, dtype in types.items()]
    columns.append(array(answer.components, "f4", name="components").reshape(-1, width)[own])
    return [part.tobytes() for part in columns]


async def serves(stub: EmbeddingServiceStub, release_id: str | None) -> None:
    """Until this release is the one that serves; None: until there is none."""

    async def asked() -> bool:
        try:
            answer = await stub.GetRelease(pb.GetReleaseRequest())
        except NotFound:
            return release_id is None
        return bool(answer.release_id == release_id)

    await eventually(asked)


async def test_the_announced_release_serves_from_the_start_and_a_newer_one_takes_over(bench: Bench) -> None:
    await bench.release("r1")
    async with bench.running() as stub:
        first = await stub.GetRelease(pb.GetReleaseRequest())
        assert (first.release_id, first.track_count) == ("r1", TRACKS)
        assert first.released_at.ToDatetime(UTC) == NOW
        before = await stub.ScoreUsers(question(2, "r1"))
        await bench.release("r2", content=1)
        await serves(stub, "r2")
        with pytest.raises(FailedPrecondition, match="Release r2 serves, not r1"):
            await stub.ScoreUsers(question(2, "r1"))
        after = await stub.ScoreUsers(question(2, "r2"))
        assert (before.release_id, after.release_id) == ("r1", "r2")
        assert rows_of(before, 0) != rows_of(after, 0)


async def test_a_corrupt_release_leaves_the_one_before_it_serving(bench: Bench) -> None:
    await bench.release("r1")
    async with bench.running() as stub:
        await bench.release("r2", content=1, corrupt=True)
        await bench.announce(ModelRelease(bench.tenant_id, "r3", "file:///nowhere", b"0" * 32, NOW + timedelta(days=1)))
        await asyncio.sleep(1.0)
        await serves(stub, "r1")
        assert (await stub.ScoreUsers(question(1, "r1"))).release_id == "r1"
        await bench.release("r4", content=1)
        await serves(stub, "r4")


async def test_a_tenant_without_a_release_is_told_so_and_a_withdrawn_one_stops_serving(bench: Bench) -> None:
    async with bench.running() as stub:
        with pytest.raises(NotFound, match="no model release yet"):
            await stub.GetRelease(pb.GetReleaseRequest())
        with pytest.raises(NotFound):
            await stub.ScoreUsers(question(1, "r1"))
        await bench.release("r1")
        await serves(stub, "r1")
        await bench.announce(None)
        await serves(stub, None)


async def test_a_tenant_is_not_said_to_have_no_release_before_all_of_them_are_loaded(tmp_path: Path) -> None:
    engine = Engine(Registry(str(tmp_path)), threads=1)
    with pytest.raises(Transient):
        engine.serving("aurora")
    engine.caught_up()
    with pytest.raises(NotFound):
        engine.serving("aurora")


async def test_the_answer_for_a_user_is_the_same_to_the_bit_whoever_else_is_in_the_call(bench: Bench) -> None:
    await bench.release("r1")
    async with bench.running() as stub:
        together = await stub.ScoreUsers(question(USERS, "r1"))
        for user in range(USERS):
            alone = await stub.ScoreUsers(question(1, "r1", first=user))
            assert rows_of(alone, 0) == rows_of(together, user)


async def test_a_call_that_does_not_fit_is_refused_with_what_is_wrong_with_it(bench: Bench) -> None:
    await bench.release("r1")
    good = question(2, "r1")

    def but(**columns: Column) -> pb.ScoreUsersRequest:
        request = pb.ScoreUsersRequest()
        request.CopyFrom(good)
        for name, value in columns.items():
            getattr(request.histories, name).CopyFrom(value)
        return request

    wrong = {
        "listens has 1 elements": but(listens=column([1], "f4")),
        "must be of type COLUMN_TYPE_UINT64": but(track_key=good.histories.listens),
        "no whole number of elements": but(age_days=replace_data(good.histories.age_days)),
        "must rise from 0": but(splits=column([0, 9, 3], "i8")),
        "Ask for 1 to 1000": question(2, "r1", k=0),
        "Send 1 to 4096 users": question(0, "r1"),
        "no number": but(listens=column(np.full(len(good.histories.listens.data) // 4, np.nan), "f4")),
    }
    async with bench.running() as stub:
        for sentence, request in wrong.items():
            with pytest.raises(Permanent, match=sentence):
                await stub.ScoreUsers(request)
        assert (await stub.ScoreUsers(good)).release_id == "r1"


async def test_only_other_services_may_ask(bench: Bench) -> None:
    await bench.release("r1")
    async with bench.running():
        bearer = token(bench.tenant_id, "shop", Scope.APP)
        async with channel(bench._address, token=bearer) as opened:
            with pytest.raises(PermissionDenied):
                await EmbeddingServiceStub(opened).GetRelease(pb.GetReleaseRequest())


def replace_data(whole: Column) -> Column:
    return Column(type=whole.type, data=whole.data[:-1])


async def test_sigterm_ends_the_service(bench: Bench) -> None:
    await ends_on_sigterm(serve(bench.settings), bench._address)
