"""Kafka and PostgreSQL for one run: those that the environment names, else the built-in ones."""

import asyncio
import os
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field

from infra.local import kafka, postgres
from infra.local.supervisor import Supervisor
from shared.errors import Unusable


@dataclass(frozen=True)
class Servers:
    """Where they are. `own_…` is false for a server that someone else runs: it is used, never stopped or killed."""

    bootstrap_servers: str
    admin_url: str = field(repr=False)
    own_kafka: bool
    own_postgres: bool


async def _nothing(_: str) -> None:
    pass


async def start_servers(
    supervisor: Supervisor,
    env: Mapping[str, str] | None = None,
    *,
    with_kafka: Callable[[str], Awaitable[None]] = _nothing,
    with_postgres: Callable[[str], Awaitable[None]] = _nothing,
) -> Servers:
    """Start what `env` does not name, each below the run folder, and return when both are ready.

    `with_kafka` gets the bootstrap address as soon as Kafka is ready, `with_postgres` the administrator's URL as soon
    as PostgreSQL is: what they do is done before this returns.

    KAFKA_BOOTSTRAP_SERVERS and DATABASE_URL (an administrator's) name servers that run already; MEIRI_KAFKA_PORT and
    MEIRI_POSTGRES_PORT fix the ports of the built-in ones. Raises Unusable, before anything is started, when a named
    server cannot be used or a port is taken.
    """
    env = os.environ if env is None else env
    bootstrap, admin_url = env.get("KAFKA_BOOTSTRAP_SERVERS", ""), env.get("DATABASE_URL", "")
    kafka_port, postgres_port = port_of(env, "MEIRI_KAFKA_PORT"), port_of(env, "MEIRI_POSTGRES_PORT")
    if bootstrap:
        await kafka.reach(bootstrap)
    if admin_url:
        await postgres.reach(admin_url)
    own_kafka, own_postgres = not bootstrap, not admin_url
    run_dir, logs = supervisor.run_dir, supervisor.logs

    async def start_kafka(address: str) -> str:
        if own_kafka:
            broker, address = await kafka.prepare(run_dir / "kafka", logs / "kafka.log", port=kafka_port)
            await supervisor.start(broker)
        await with_kafka(address)
        return address

    async def start_postgres(url: str) -> str:
        if own_postgres:
            database, url = await postgres.prepare(run_dir / "postgres", logs / "postgres.log", port=postgres_port)
            await supervisor.start(database)
            await postgres.create_database(url)
        await with_postgres(url)
        return url

    try:
        # Each claims its port before it does anything else, so a port that is taken is told before anything runs.
        async with asyncio.TaskGroup() as group:
            at = group.create_task(start_kafka(bootstrap)), group.create_task(start_postgres(admin_url))
    except* Unusable as errors:
        raise errors.exceptions[0] from None
    return Servers(at[0].result(), at[1].result(), own_kafka, own_postgres)


def port_of(env: Mapping[str, str], name: str) -> int | None:
    """The port number in the variable `name`; None when it is not set. Raises Unusable when it is none."""
    text = env.get(name, "")
    if not text:
        return None
    if not text.isdecimal() or not 0 < int(text) < 65536:
        raise Unusable(f"{name} is {text!r}: write a port number, for example 15432.")
    return int(text)
