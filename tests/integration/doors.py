"""Gateway and ingest as they run, in the test's own event loop, on real Kafka and Postgres."""

import asyncio
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

from meiri.playback.v1.play_event_pb2 import PlayEvent

from infra.local.ports import free_port
from services.gateway.app import serve as serve_gateway
from services.gateway.settings import GatewaySettings
from services.ingest.app import serve as serve_ingest
from services.ingest.settings import IngestSettings
from shared.codec.plays import AcceptedEvent, decode_plays
from shared.errors import Permanent
from shared.ids import new_event_id
from shared.kafka.broker import KafkaLog
from shared.kafka.log import Record, TopicPartition
from shared.rpc.client import Channel, channel
from shared.rpc.principal import Scope
from shared.rpc.tokens import generate_key_pair, mint
from shared.topics import PLAYS, Topic
from tests.integration.running import running

PRIVATE, PUBLIC = generate_key_pair()


def token(tenant_id: str | None, subject: str, scope: Scope) -> str:
    now = datetime.now(UTC)
    return mint(PRIVATE, tenant_id=tenant_id, subject=subject, scope=scope, now=now, ttl=timedelta(hours=1))


def new_tenant() -> str:
    return f"t{secrets.token_hex(6)}"


def play(**fields: object) -> PlayEvent:
    now = datetime.now(UTC)
    event_id = new_event_id(int(now.timestamp() * 1000))
    event = PlayEvent(**{"event_id": event_id, "user_id": "mira", "track_id": "t-1", **fields})  # type: ignore[arg-type]
    event.started_at.FromDatetime(now - timedelta(minutes=4))
    return event


class Doors:
    """What the tests of one module share."""

    def __init__(self, folder: Path, bootstrap_servers: str, gateway_url: str) -> None:
        self.bootstrap_servers = bootstrap_servers
        self.gateway_url = gateway_url
        self._private, self._public = folder / "key.pem", folder / "key.pub.pem"
        self._private.write_text(PRIVATE)
        self._public.write_text(PUBLIC)

    @asynccontextmanager
    async def gateway(self) -> AsyncIterator[str]:
        """A running gateway's address."""
        address = f"127.0.0.1:{free_port()}"
        settings = GatewaySettings(
            kafka_bootstrap_servers=self.bootstrap_servers,
            token_public_key=str(self._public),
            gateway_listen=address,
            gateway_database_url=self.gateway_url,
            gateway_token_private_key=str(self._private),
        )
        async with running(serve_gateway(settings), address):
            yield address

    @asynccontextmanager
    async def ingest(self) -> AsyncIterator[str]:
        """A running ingest's address, for health."""
        address = f"127.0.0.1:{free_port()}"
        settings = IngestSettings(
            kafka_bootstrap_servers=self.bootstrap_servers, token_public_key=str(self._public), ingest_listen=address
        )
        async with running(serve_ingest(settings), address):
            yield address

    @asynccontextmanager
    async def log(self) -> AsyncIterator[KafkaLog]:
        async with KafkaLog.open(self.bootstrap_servers) as opened:
            yield opened


def calling(address: str, bearer: str) -> Channel:
    return channel(address, token=bearer, default_deadline_s=20.0)


async def everything(log: KafkaLog, topic: Topic) -> list[Record]:
    """All records that the topic holds now."""
    partitions = [TopicPartition(topic.name, number) for number in range(topic.partitions)]
    bounds = await log.bounds(partitions)
    found: list[Record] = []
    partitions = [partition for partition in partitions if bounds[partition].end > bounds[partition].start]
    if not partitions:
        return found
    async with log.read({partition: bounds[partition].start for partition in partitions}) as reader:
        for partition in partitions:
            while await reader.position(partition) < bounds[partition].end:
                found += await reader.poll(partition, 5000, 0.2)
    return found


async def latest(log: KafkaLog, topic: Topic, prefix: str) -> Mapping[str, bytes]:
    """The compacted topic's state of the keys that start so."""
    state = {(record.key or b"").decode(): record.value or b"" for record in await everything(log, topic)}
    return {key: value for key, value in state.items() if key.startswith(prefix)}


async def accepted(log: KafkaLog, tenant_id: str, count: int, timeout_s: float = 20.0) -> list[AcceptedEvent]:
    """The tenant's events in PLAYS, as soon as there are `count`."""
    async with asyncio.timeout(timeout_s):
        while True:
            events = [
                event
                for record in await everything(log, PLAYS)
                for event in _readable(record)
                if event.tenant_id == tenant_id
            ]
            if len(events) >= count:
                return events
            await asyncio.sleep(0.1)


def _readable(record: Record) -> list[AcceptedEvent]:
    """Its events; none when it is one of the poison records that the tests of features put into the same topic."""
    try:
        return decode_plays(record.value or b"")
    except Permanent:
        return []


async def until(question: Callable[[], Awaitable[object]], wanted: object, timeout_s: float = 20.0) -> None:
    """Ask until the answer is `wanted`; on timeout the assertion shows both."""
    found: object = None
    end = asyncio.get_running_loop().time() + timeout_s
    while asyncio.get_running_loop().time() < end:
        found = await question()
        if found == wanted:
            return
        await asyncio.sleep(0.1)
    assert found == wanted
