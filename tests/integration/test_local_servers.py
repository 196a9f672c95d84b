"""The built-in Kafka and PostgreSQL, and the sentences for servers that cannot be had."""

import asyncio
import os
import socket
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import asyncpg
import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer

from shared.topics import Topic
from tests.conftest import RealServers

_ROOT = Path(__file__).parents[2]
_START = """
import sys
from pathlib import Path
from infra.local import program
from infra.local.servers import start_servers
from infra.local.supervisor import Supervisor

async def main():
    async with Supervisor(Path(sys.argv[1])) as supervisor:
        print(await start_servers(supervisor))

sys.exit(program.run(main()))
"""


def _start(run_dir: Path, prefix: Sequence[str] = (), **env: str) -> subprocess.CompletedProcess[str]:
    """Start and stop servers in a process of its own, with nothing but `env` set about them."""
    kept = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    return subprocess.run(
        [*prefix, sys.executable, "-c", _START, str(run_dir)],
        env={**kept, "PYTHONPATH": str(_ROOT), **env},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.fixture
def taken_port() -> Iterator[int]:
    """A port on which something else listens, and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        yield other.getsockname()[1]


def test_a_database_url_where_nothing_answers_is_told_in_one_sentence(tmp_path: Path) -> None:
    ended = _start(tmp_path, DATABASE_URL="postgresql://someone:secret@127.0.0.1:1/meiri")
    assert ended.returncode == 2
    assert ended.stderr == (
        "DATABASE_URL points to 127.0.0.1:1, where nothing answers: "
        "start PostgreSQL there or unset it to use the built-in one.\n"
    )


def test_a_database_url_that_is_refused_is_told_without_its_password(servers: RealServers, tmp_path: Path) -> None:
    where = servers.admin_url.partition("@")[2].partition("/")[0]
    ended = _start(tmp_path, DATABASE_URL=f"postgresql://someone:secret@{where}/meiri")
    assert ended.returncode == 2
    assert ended.stderr.startswith(f"DATABASE_URL points to {where}, which refuses it (password authentication failed")
    assert ended.stderr.count("\n") == 1
    assert "secret" not in ended.stderr


@pytest.mark.parametrize("url", ["meiri", "mysql://a@b/c", "postgresql://a:b@host:port/c"])
def test_a_database_url_that_is_none_is_told_in_one_sentence(tmp_path: Path, url: str) -> None:
    ended = _start(tmp_path, DATABASE_URL=url)
    assert (ended.returncode, ended.stderr.count("\n")) == (2, 1)
    assert ended.stderr.startswith("DATABASE_URL cannot be read: write postgresql://")


def test_kafka_servers_where_nothing_answers_are_told_in_one_sentence(tmp_path: Path) -> None:
    ended = _start(tmp_path, KAFKA_BOOTSTRAP_SERVERS="127.0.0.1:1")
    assert ended.returncode == 2
    assert ended.stderr == (
        "KAFKA_BOOTSTRAP_SERVERS points to 127.0.0.1:1, where nothing answers: "
        "start Kafka there or unset it to use the built-in one.\n"
    )


def test_kafka_servers_that_are_no_kafka_are_told_in_one_sentence(tmp_path: Path, taken_port: int) -> None:
    ended = _start(tmp_path, KAFKA_BOOTSTRAP_SERVERS=f"127.0.0.1:{taken_port}")
    assert (ended.returncode, ended.stderr.count("\n")) == (2, 1)
    assert "does not answer as a Kafka broker" in ended.stderr


@pytest.mark.parametrize(("setting", "what"), [("MEIRI_KAFKA_PORT", "Kafka"), ("MEIRI_POSTGRES_PORT", "PostgreSQL")])
def test_a_taken_port_is_told_in_one_sentence(tmp_path: Path, taken_port: int, setting: str, what: str) -> None:
    ended = _start(tmp_path, **{setting: str(taken_port)})
    assert ended.returncode == 2
    assert ended.stderr == (
        f"Port {taken_port}, where {what} should listen, is taken by another program: "
        f"stop that program, or set {setting} to a free port.\n"
    )


def _without_network() -> list[str]:
    """What goes before a command to run it where only loopback is; empty where that is not allowed."""
    # "; exec" keeps the arguments as they are; a new network namespace has its loopback down.
    prefix = ["unshare", "--map-root-user", "--net", "sh", "-c", 'ip link set lo up 2>/dev/null; exec "$@"', "sh"]
    if os.geteuid() == 0:
        prefix.remove("--map-root-user")
    try:
        works = subprocess.run([*prefix, "true"], capture_output=True, check=False).returncode == 0
    except FileNotFoundError:
        works = False
    return prefix if works else []


def test_jars_that_cannot_be_fetched_are_told_in_one_sentence(tmp_path: Path) -> None:
    prefix = _without_network()
    if not prefix:
        pytest.skip("this machine lets nobody make a network namespace")
    fetch = "import sys; from pathlib import Path; from infra.local import jars, program\n"
    fetch += "async def main(): jars.class_path(Path(sys.argv[1]))\nsys.exit(program.run(main()))"
    ended = subprocess.run(
        [*prefix, sys.executable, "-c", fetch, str(tmp_path / "jars")],
        # An empty home: no jar of an earlier fetch is found.
        env={"PATH": os.environ["PATH"], "PYTHONPATH": str(_ROOT), "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert ended.returncode == 2, ended.stderr
    *_, sentence = ended.stderr.splitlines()
    assert "could not be fetched" in sentence
    assert "Traceback" not in ended.stderr


def test_servers_start_without_a_network_once_their_packages_are_there(servers: RealServers, tmp_path: Path) -> None:
    prefix = _without_network()
    if not prefix:
        pytest.skip("this machine lets nobody make a network namespace")
    ended = _start(tmp_path / "run", prefix)
    assert ended.returncode == 0, ended.stderr
    assert ended.stderr == ""


async def test_a_broker_killed_with_9_comes_back_with_its_port_and_its_records(
    servers: RealServers, topics: Callable[[Sequence[Topic]], None], topic_name: Callable[[str], str]
) -> None:
    topic = Topic(topic_name("servers.survivors"), partitions=1)
    await asyncio.to_thread(topics, [topic])
    sent = [uuid.uuid4().bytes for _ in range(500)]
    async with AIOKafkaProducer(bootstrap_servers=servers.bootstrap_servers, acks="all") as producer:
        for value in sent:
            await producer.send(topic.name, value)
        await producer.flush()
    first = servers.pid("kafka")
    servers.kill("kafka")
    await asyncio.to_thread(servers.wait_ready, "kafka", other_than=first)
    async with AIOKafkaConsumer(
        topic.name, bootstrap_servers=servers.bootstrap_servers, auto_offset_reset="earliest"
    ) as consumer:
        found = [(await asyncio.wait_for(anext(consumer), 20)).value for _ in sent]
    assert found == sent


async def test_postgres_killed_with_9_comes_back_with_its_port_and_its_rows(servers: RealServers) -> None:
    connection = await asyncpg.connect(servers.admin_url)
    await connection.execute("CREATE TABLE survivor (x integer); INSERT INTO survivor VALUES (7)")
    first = servers.pid("postgres")
    servers.kill("postgres")
    await asyncio.to_thread(servers.wait_ready, "postgres", other_than=first)
    connection.terminate()
    again = await asyncpg.connect(servers.admin_url)
    try:
        assert await again.fetchval("SELECT x FROM survivor") == 7
        assert await again.fetchval("SHOW fsync") == "on"
        await again.execute("DROP TABLE survivor")
    finally:
        await again.close()
