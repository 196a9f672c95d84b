"""The trainer on real Kafka: what is collected is all there, and what is trained has to earn its release."""

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from infra.demo.world import generate
from infra.demo.world.model import TenantWorld
from infra.local.ports import free_port
from services.trainer.app import NOTHING_TO_TRAIN_ON, REFUSED, serve
from services.trainer.archive import Archive
from services.trainer.settings import TrainerSettings
from services.trainer.training import train
from shared.codec.plays import AcceptedEvent, encode_plays
from shared.codec.state import ModelRelease, Track, decode_release, encode_track, key_partition, track_record_key
from shared.ids import new_event_id, partition_of
from shared.kafka.broker import KafkaLog
from shared.kafka.log import Outgoing
from shared.kafka.producer import Producer
from shared.registry import Registry, ReleaseRef
from shared.rpc.health import wait_serving
from shared.topics import ALL, MODEL_RELEASES, PLAYS, TRACKS, Topic
from shared.two_tower.scorer import Scorer
from tests.conftest import RealServers
from tests.integration.doors import PUBLIC, latest, new_tenant
from tests.integration.running import ends_on_sigterm, eventually, running

Topics = Callable[[Sequence[Topic]], None]


class Bench:
    """A trainer's folders and settings."""

    def __init__(self, servers: RealServers, folder: Path) -> None:
        self.servers = servers.bootstrap_servers
        self.folder = folder
        (folder / "key.pub.pem").write_text(PUBLIC)
        self.address = f"127.0.0.1:{free_port()}"
        self.archive = Archive(folder / "archive")
        self.tenant_id = new_tenant()

    @property
    def settings(self) -> TrainerSettings:
        return TrainerSettings(
            kafka_bootstrap_servers=self.servers,
            token_public_key=str(self.folder / "key.pub.pem"),
            trainer_listen=self.address,
            archive=str(self.folder / "archive"),
            registry=str(self.folder / "registry"),
            trainer_interval_s=0,
            trainer_threads=1,  # two would wait for each other where other tests run beside
        )

    async def process(self, *arguments: str) -> asyncio.subprocess.Process:
        """`python -m services.trainer …` with the same settings by the environment."""
        values = self.settings.model_dump(exclude_none=True)
        env = {**os.environ, **{f"MEIRI_{name.upper()}": str(value) for name, value in values.items()}}
        env["PYTHONPATH"] = os.pathsep.join(sys.path)
        with (self.folder / "trainer.log").open("ab") as output:
            return await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "services.trainer", *arguments),
                env=env,
                stdout=output,
                stderr=asyncio.subprocess.PIPE,
            )

    @asynccontextmanager
    async def collecting(self) -> AsyncIterator[asyncio.subprocess.Process]:
        """A collector in a process of its own, which leaves its group at the end: a killed one holds up the next for 10 s."""
        process = await self.process()
        try:
            await wait_serving(self.address, timeout_s=60)
            yield process
        finally:
            if process.returncode is None:
                process.terminate()
            await process.communicate()

    def archived(self) -> list[AcceptedEvent]:
        return self.archive.read(self.tenant_id)

    async def holds(self, count: int) -> None:
        """Until the archive has this many distinct events of the tenant."""

        async def asked() -> bool:
            return len(await asyncio.to_thread(self.archived)) >= count

        await eventually(asked, timeout_s=40)

    async def release(self) -> ModelRelease | None:
        """What is announced for the tenant."""
        async with KafkaLog.open(self.servers) as log:
            values = await latest(log, MODEL_RELEASES, self.tenant_id)
        return decode_release(values[self.tenant_id]) if self.tenant_id in values else None

    async def catalogue(self, world: TenantWorld) -> None:
        tracks = world.tracks
        records = []
        for number, track_id in enumerate(tracks.track_id):
            track = Track(
                self.tenant_id,
                track_id,
                tracks.title[number],
                tracks.artist_id[number],
                tracks.artist_name[number],
                tracks.genre[number],
                tracks.tags[number],
            )
            key = track_record_key(self.tenant_id, track_id)
            records.append(Outgoing(TRACKS, key_partition(key, TRACKS.partitions), key, encode_track(track)))
        async with Producer.open(self.servers) as producer:
            await producer.send_many(records)


@pytest.fixture
def bench(servers: RealServers, topics: Topics, tmp_path: Path) -> Bench:
    topics(ALL)
    return Bench(servers, tmp_path)


@pytest.fixture(scope="module")
def world() -> TenantWorld:
    """Large enough that about 25 listeners hear something new on the last day: the gate's verdict is no matter of luck."""
    return generate(datetime(2026, 10, 2, 23, tzinfo=UTC), scale=0.3).tenants[0]


def events_of(world: TenantWorld, tenant_id: str) -> list[AcceptedEvent]:
    plays, tracks = world.plays, world.tracks
    columns = zip(plays.user, plays.track, plays.event_id, plays.started_at_ms, plays.played_ms, strict=True)
    return [
        AcceptedEvent(
            tenant_id,
            world.listeners.user_id[user],
            tracks.track_id[track],
            event_id.tobytes(),
            int(started),
            int(played) if played >= 0 else None,
            tracks.duration_ms[track],
            None,
            int(started) + 1000,
        )
        for user, track, event_id, started, played in columns
    ]


def some_events(tenant_id: str, count: int) -> list[AcceptedEvent]:
    now_ms = int(datetime.now(UTC).timestamp() * 1000)
    return [
        AcceptedEvent(
            tenant_id,
            f"u-{n % 97}",
            f"t-{n % 31}",
            new_event_id(now_ms),
            now_ms - n * 1000,
            200_000,
            None,
            None,
            now_ms,
        )
        for n in range(count)
    ]


def records_of(events: Sequence[AcceptedEvent]) -> Iterator[Outgoing]:
    """One record per partition."""
    for partition in range(PLAYS.partitions):
        own = [e for e in events if partition_of(e.tenant_id, e.user_id, PLAYS.partitions) == partition]
        if own:
            yield Outgoing(PLAYS, partition, None, encode_plays(own))


async def test_a_collector_that_is_killed_among_20000_events_loses_none(bench: Bench) -> None:
    events = some_events(bench.tenant_id, 20_000)
    sent = 0

    async def send() -> None:
        nonlocal sent
        async with Producer.open(bench.servers) as producer:
            for first in range(0, len(events), 250):
                await producer.send_many(list(records_of(events[first : first + 250])))
                sent += 250
                await asyncio.sleep(0.03)

    async with bench.collecting() as process:
        sending = asyncio.create_task(send())
        await bench.holds(1)
        process.send_signal(signal.SIGKILL)
        await process.wait()
        assert sent < len(events)
    async with bench.collecting():
        await sending
        await bench.holds(len(events))
    assert sorted(bench.archived()) == sorted(events)


async def test_a_record_that_is_no_batch_does_not_stop_the_archive(bench: Bench) -> None:
    events = some_events(bench.tenant_id, 50)
    async with Producer.open(bench.servers) as producer:
        await producer.send_many([Outgoing(PLAYS, partition, None, b"\xff\xff") for partition in range(4)])
        await producer.send_many([*records_of(events), *records_of(events)])
    async with running(serve(bench.settings), bench.address):
        await bench.holds(len(events))
    assert sorted(bench.archived()) == sorted(events)


def test_files_that_overlap_are_read_as_if_each_event_stood_once(tmp_path: Path) -> None:
    events = some_events("aurora", 300)
    once, again = Archive(tmp_path / "once"), Archive(tmp_path / "again")
    once.write(0, 0, 9, events)
    again.write(0, 5, 9, events[150:])
    again.write(0, 0, 7, [*events[:200], events[3]._replace(received_at_ms=events[3].received_at_ms + 5)])
    again.write(0, 0, 7, [*events[:200], events[3]._replace(received_at_ms=events[3].received_at_ms + 5)])
    assert (
        again.read("aurora")
        == once.read("aurora")
        == sorted(events, key=lambda e: (*e[1:3], e.started_at_ms, e.event_id))
    )
    assert again.read("birch") == []
    assert once.tenants() == {"aurora": 300}
    assert again.tenants()["aurora"] == 351


def test_an_event_stands_under_the_day_it_came_through_the_door(tmp_path: Path) -> None:
    (event,) = some_events("aurora", 1)
    day_ms = 86_400_000
    Archive(tmp_path).write(2, 7, 8, [event._replace(received_at_ms=n * day_ms + n) for n in (20_000, 20_001)])
    files = sorted(str(file.relative_to(tmp_path)) for file in tmp_path.rglob("*.parquet"))
    name = f"2-{7:020d}-{8:020d}.parquet"
    assert files == [f"plays/received_day=2024-10-04/{name}", f"plays/received_day=2024-10-05/{name}"]


async def test_a_model_of_a_listening_world_passes_the_gate_and_is_announced(bench: Bench, world: TenantWorld) -> None:
    await bench.catalogue(world)
    bench.archive.write(0, 0, 1, events_of(world, bench.tenant_id))
    told: list[Any] = []
    decision = await train(bench.settings, bench.tenant_id, told.append)
    assert decision is not None
    assert decision.passed, decision.reason
    release = await bench.release()
    assert release is not None
    scorer = Scorer.load(Registry(bench.settings.registry).open(ReleaseRef(release.uri, release.manifest_sha256)))
    assert len(scorer) == len(world.tracks)
    assert told[-1].epoch == told[-1].epochs == len(told)


async def test_shuffled_plays_are_refused_and_nothing_is_announced(bench: Bench, world: TenantWorld) -> None:
    await bench.catalogue(world)
    shuffled = np.random.default_rng(3).permutation(world.plays.user)
    bench.archive.write(0, 0, 1, events_of(replace(world, plays=replace(world.plays, user=shuffled)), bench.tenant_id))
    process = await bench.process("train", "--tenant", bench.tenant_id, "--progress")
    _, progress = await process.communicate()
    assert process.returncode == REFUSED
    assert {"epoch", "epochs", "loss", "examples_per_s"} <= json.loads(progress.splitlines()[0]).keys()
    assert await bench.release() is None
    assert not (bench.folder / "registry").exists()


async def test_a_tenant_with_nothing_to_train_on_ends_with_a_status_of_its_own(bench: Bench) -> None:
    process = await bench.process("train", "--tenant", bench.tenant_id)
    _, told = await process.communicate()
    assert (process.returncode, told) == (NOTHING_TO_TRAIN_ON, b"")
    (line,) = (bench.folder / "trainer.log").read_text().splitlines()[-1:]
    assert json.loads(line)["event"] == "training.impossible"


async def test_sigterm_ends_the_service(bench: Bench) -> None:
    await ends_on_sigterm(serve(bench.settings), bench.address)
