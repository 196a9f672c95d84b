"""features as a process, on real Kafka and Postgres: killed, misled about offsets, poisoned, misconfigured."""

import asyncio
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from pathlib import Path

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, OffsetAndMetadata
from aiokafka import TopicPartition as KafkaPartition
from meiri.ingest.v1.dead_letter_pb2 import DeadLetter

from infra.local.ports import free_port
from infra.local.schemas import Databases
from services.features.settings import FeaturesSettings
from shared.codec.plays import AcceptedEvent
from shared.kafka.broker import KafkaLog
from shared.kafka.log import Outgoing, TopicPartition
from shared.kafka.producer import Producer
from shared.postgres import Database
from shared.rpc.health import is_serving, wait_serving
from shared.rpc.tokens import generate_key_pair
from shared.settings import env_name
from shared.topics import ALL, DEAD_LETTERS, FEEDBACK, PLAYS
from tests.conftest import RealServers
from tests.integration.features_world import hard_events, records_of, recount

ROOT = Path(__file__).parents[2]


class Process:
    """One features process after another, with the same settings."""

    def __init__(self, env: Mapping[str, str], output: Path) -> None:
        self.env = {**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'protos/gen'}", **env}
        self.address = env["MEIRI_FEATURES_LISTEN"]
        self._output = output.open("ab")
        self.running: subprocess.Popen[bytes] | None = None

    def start(self, *arguments: str) -> subprocess.Popen[bytes]:
        self.running = subprocess.Popen(
            [sys.executable, "-m", "services.features", *arguments],
            cwd=ROOT,
            env=self.env,
            stdout=self._output,
            stderr=self._output,
        )
        return self.running

    async def serving(self) -> None:
        self.start()
        await wait_serving(self.address, 60)

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        assert self.running is not None
        self.running.send_signal(number)
        return self.running.wait(timeout=30)

    def close(self) -> None:
        if self.running is not None and self.running.poll() is None:
            self.running.kill()
            self.running.wait()
        self._output.close()


@pytest.fixture
def process(
    servers: RealServers, database: Databases, topics: Callable[[object], None], tmp_path: Path
) -> Iterator[Process]:
    topics(ALL)
    (tmp_path / "public.pem").write_text(generate_key_pair()[1])
    made = Process(
        {
            "MEIRI_KAFKA_BOOTSTRAP_SERVERS": servers.bootstrap_servers,
            "MEIRI_TOKEN_PUBLIC_KEY": str(tmp_path / "public.pem"),
            "MEIRI_FEATURES_LISTEN": f"127.0.0.1:{free_port()}",
            "MEIRI_FEATURES_DATABASE_URL": database.urls["features"],
        },
        tmp_path / "features.log",
    )
    yield made
    made.close()
    sys.stdout.write((tmp_path / "features.log").read_text()[-6000:])


@pytest.fixture
def tenant() -> str:
    """A tenant that no test had before: the topics keep what earlier tests, and earlier runs on this Kafka, sent."""
    return f"tenant-{time.time_ns()}"


@pytest.fixture
async def db(database: Databases) -> AsyncIterator[Database]:
    async with Database.open(database.urls["features"], pool_size=2) as opened:
        yield opened


@pytest.fixture
async def producer(servers: RealServers) -> AsyncIterator[Producer]:
    async with Producer.open(servers.bootstrap_servers) as opened:
        yield opened


async def send(producer: Producer, events: list[AcceptedEvent], *, size: int = 50) -> None:
    await producer.send_many([Outgoing(PLAYS, r.partition, None, r.value) for r in records_of(events, size=size)])


async def counted(db: Database, tenant_id: str, events: int, *, within_s: float = 120) -> None:
    """Wait until the tenant's ledger holds so many events, and a little longer: no more may come."""
    end = time.monotonic() + within_s
    while (found := await db.fetchval("SELECT count(*) FROM ledger WHERE tenant_id = $1", tenant_id)) < events:
        assert time.monotonic() < end, f"{found} of {events} events after {within_s} s"
        await asyncio.sleep(0.2)


async def assert_counted_once(db: Database, tenant_id: str, events: list[AcceptedEvent]) -> None:
    rows = await db.fetch("SELECT user_id, event_id FROM ledger WHERE tenant_id = $1", tenant_id, timeout_s=30)
    assert {tuple(row) for row in rows} == {(event.user_id, event.event_id) for event in events}
    assert len(rows) == len({(event.user_id, event.event_id) for event in events})
    cells = await db.fetch("SELECT * FROM cells WHERE tenant_id = $1", tenant_id, timeout_s=30)
    assert {tuple(row)[:4]: tuple(row)[4:] for row in cells} == recount(events)


async def test_killed_again_and_again_amid_20000_plays_it_counts_each_once(
    process: Process, db: Database, producer: Producer, tenant: str
) -> None:
    events = hard_events(11, 20_000, tenants=[tenant], users=200, tracks=60)
    rng = random.Random(11)
    await process.serving()

    async def publish() -> None:
        for place in range(0, len(events), 250):
            again = rng.sample(events[: place + 1], min(place, 5))
            await send(producer, events[place : place + 250] + again)
            await asyncio.sleep(0.25)

    publishing = asyncio.create_task(publish())
    pauses = []
    for _ in range(4):
        await asyncio.sleep(rng.uniform(0.5, 2.0))
        assert process.stop(signal.SIGKILL) == -signal.SIGKILL
        before = await db.fetchval("SELECT count(*) FROM ledger WHERE tenant_id = $1", tenant)
        started = time.monotonic()
        await process.serving()
        if before < len(events):
            await counted(db, tenant, before + 1)
            pauses.append(time.monotonic() - started)
    await publishing
    await counted(db, tenant, len(events))
    await assert_counted_once(db, tenant, events)
    assert max(pauses) < 20, f"a restarted process was idle for {pauses} s"
    assert process.stop() == 0


async def test_it_reads_on_from_its_own_offsets_whatever_the_group_has_committed(
    process: Process, db: Database, producer: Producer, servers: RealServers, tenant: str
) -> None:
    first = hard_events(12, 400, tenants=[tenant])
    await process.serving()
    await send(producer, first)
    await counted(db, tenant, len(first))
    assert process.stop() == 0

    partitions = [KafkaPartition(topic.name, n) for topic in (PLAYS, FEEDBACK) for n in range(topic.partitions)]
    second = hard_events(13, 400, tenants=[tenant])
    await send(producer, second)
    await asyncio.sleep(11)  # the group forgets the member that left; before, it would refuse our commit
    consumer = AIOKafkaConsumer(
        bootstrap_servers=servers.bootstrap_servers, group_id="features", enable_auto_commit=False
    )
    consumer.assign(partitions)
    await consumer.start()
    starts, ends = await consumer.beginning_offsets(partitions), await consumer.end_offsets(partitions)
    wrong = {partition: (starts if partition.partition < 2 else ends)[partition] for partition in partitions}
    await consumer.commit({partition: OffsetAndMetadata(offset, "") for partition, offset in wrong.items()})
    await consumer.stop()
    duplicates = await db.fetchval("SELECT coalesce(sum(play_events), 0) FROM duplicates")
    await process.serving()
    await counted(db, tenant, len(first) + len(second))
    await asyncio.sleep(1)
    await assert_counted_once(db, tenant, first + second)
    # Nothing was read twice.
    assert await db.fetchval("SELECT coalesce(sum(play_events), 0) FROM duplicates") == duplicates
    assert process.stop() == 0


@pytest.mark.parametrize("name", ["kafka", "postgres"])
async def test_it_outlives_a_killed_server_and_counts_each_play_once(
    process: Process, database: Databases, producer: Producer, servers: RealServers, name: str, tenant: str
) -> None:
    if not (servers.at.own_kafka if name == "kafka" else servers.at.own_postgres):
        pytest.skip("the server is not ours to kill")
    events = hard_events(16, 4000, tenants=[tenant], users=100, tracks=50)
    await process.serving()
    await send(producer, events[:1500])
    pid = servers.pid(name)
    servers.kill(name)
    servers.wait_ready(name, other_than=pid)
    await send(producer, events[1500:])
    async with Database.open(database.urls["features"], pool_size=2) as db:
        await counted(db, tenant, len(events))
        await assert_counted_once(db, tenant, events)
    assert process.running is not None
    assert process.running.poll() is None, "it ended instead of waiting"
    await wait_serving(process.address, 20)


async def test_replicas_that_come_and_go_hand_partitions_over_and_count_each_play_once(
    process: Process, db: Database, producer: Producer, tmp_path: Path, tenant: str
) -> None:
    events = hard_events(17, 12_000, tenants=[tenant], users=100, tracks=50)
    other = Process(
        {
            **{name: value for name, value in process.env.items() if name.startswith("MEIRI_")},
            "MEIRI_FEATURES_LISTEN": f"127.0.0.1:{free_port()}",
            "MEIRI_FEATURES_INSTANCE": "other",
        },
        tmp_path / "other.log",
    )
    try:
        await process.serving()

        async def publish() -> None:
            for place in range(0, len(events), 200):
                await send(producer, events[place : place + 200])
                await asyncio.sleep(0.3)

        publishing = asyncio.create_task(publish())
        await asyncio.sleep(2)
        await other.serving()  # a rebalance amid the flow
        await asyncio.sleep(3)
        assert other.stop(signal.SIGKILL) == -signal.SIGKILL  # its partitions come back after the session's end
        await publishing
        await counted(db, tenant, len(events))
        await assert_counted_once(db, tenant, events)
        assert process.stop() == 0
        assert '"plays.counted"' in (tmp_path / "other.log").read_text()
    finally:
        other.close()


async def test_a_poison_record_goes_to_the_dead_letters_and_the_next_is_counted(
    process: Process, db: Database, producer: Producer, servers: RealServers, tenant: str
) -> None:
    await process.serving()
    for topic in (PLAYS, FEEDBACK):
        poison = os.urandom(40)
        offset = await producer.send(topic, 1, b"a|b|c", poison)
        assert (await dead_letter(servers, poison)).source_offset == offset
    await producer.send(FEEDBACK, 1, b"a|b|track:c", None)
    events = hard_events(14, 50, tenants=[tenant])
    await send(producer, events)
    await counted(db, tenant, len(events))


async def test_holes_in_the_log_are_no_skipped_records(
    process: Process, db: Database, servers: RealServers, tenant: str
) -> None:
    await process.serving()
    events = hard_events(18, 300, tenants=[tenant])
    transactional = AIOKafkaProducer(bootstrap_servers=servers.bootstrap_servers, transactional_id=tenant)
    await transactional.start()
    try:
        for record in records_of(events, size=10):
            async with transactional.transaction():  # its marker takes an offset that no consumer ever sees
                await transactional.send_and_wait(PLAYS.name, record.value, partition=record.partition)
    finally:
        await transactional.stop()
    await counted(db, tenant, len(events))
    await assert_counted_once(db, tenant, events)
    assert process.stop() == 0


async def dead_letter(servers: RealServers, value: bytes) -> DeadLetter:
    async with KafkaLog.open(servers.bootstrap_servers) as log:
        partitions = [TopicPartition(DEAD_LETTERS.name, n) for n in range(DEAD_LETTERS.partitions)]
        async with log.read(dict.fromkeys(partitions, 0)) as reader:
            for _ in range(50):
                for partition in partitions:
                    for record in await reader.poll(partition, 100, 0.1):
                        letter = DeadLetter.FromString(record.value or b"")
                        if letter.value == value:
                            return letter
    raise AssertionError("no dead letter holds the record")


async def test_it_listens_on_its_own_port_only_and_writes_no_files(process: Process) -> None:
    before = set(ROOT.iterdir())
    await process.serving()
    assert process.running is not None
    assert listening_ports(process.running.pid) == {int(process.address.rpartition(":")[2])}
    assert set(ROOT.iterdir()) - before == set()
    assert process.stop() == 0
    assert not await is_serving(process.address, 0.5)


def listening_ports(pid: int) -> set[int]:
    sockets = {str(file.readlink()) for file in Path(f"/proc/{pid}/fd").iterdir() if file.is_symlink()}
    found = set()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and f"socket:[{fields[9]}]" in sockets:
                found.add(int(fields[1].rpartition(":")[2], 16))
    return found


async def test_a_log_that_was_cut_off_above_the_stored_offset_stops_it_with_a_sentence_until_the_loss_is_adopted(
    process: Process, db: Database
) -> None:
    await process.serving()
    assert process.stop() == 0
    await db.execute(
        "UPDATE consumer_offset SET next_offset = 1000000000 WHERE topic = $1 AND partition = 2", PLAYS.name
    )
    try:
        stopped = process.start()
        assert await asyncio.to_thread(stopped.wait, 60) == 2
        assert "below the stored offset 1000000000: " in Path(process._output.name).read_text()
        assert await asyncio.to_thread(process.start("adopt-offsets").wait, 60) == 0
        await process.serving()
        assert process.stop() == 0
    finally:
        await db.execute("DELETE FROM consumer_offset WHERE topic = $1 AND partition = 2", PLAYS.name)


@pytest.mark.parametrize(
    "missing", [name for name, field in FeaturesSettings.model_fields.items() if field.is_required()]
)
def test_a_missing_setting_is_named_with_its_purpose_and_an_example(missing: str) -> None:
    required = [name for name, field in FeaturesSettings.model_fields.items() if field.is_required()]
    env = {env_name(FeaturesSettings, name): "x" for name in required if name != missing}
    ended = subprocess.run(
        [sys.executable, "-m", "services.features"],
        cwd=ROOT,
        env={"PATH": os.environ["PATH"], "PYTHONPATH": f"{ROOT}:{ROOT / 'protos/gen'}", **env},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    field = FeaturesSettings.model_fields[missing]
    assert ended.returncode == 2
    assert ended.stderr.count("\n") == 1
    for part in (env_name(FeaturesSettings, missing), field.description, (field.examples or ["?"])[0]):
        assert str(part) in ended.stderr
