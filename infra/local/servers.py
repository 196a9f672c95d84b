"""Kafka and PostgreSQL for one run: those that the environment names, else the built-in ones."""

import asyncio
import os
from collections.abc import Mapping
from dataclasses import dataclass

from infra.local import kafka, postgres
from infra.local.supervisor import Supervisor
from shared.errors import Unusable


@dataclass(frozen=True)
class Servers:
    """Where they are. `own_…` is false for a server that someone else runs: it is used, never stopped or killed."""

    bootstrap_servers: str
    admin_url: str
    own_kafka: bool
    own_postgres: bool


async def start_servers(supervisor: Supervisor, env: Mapping[str, str] | None = None) -> Servers:
    """Start what `env` does not name, each below the run folder, and return when both are ready.

    KAFKA_BOOTSTRAP_SERVERS and DATABASE_URL (an administrator's) name servers that run already; MEIRI_KAFKA_PORT and
    MEIRI_POSTGRES_PORT fix the ports of the built-in ones. Raises Unusable, before anything is started, when a named
    server cannot be used or a port is taken.
    """
    env = os.environ if env is None else env
    bootstrap, admin_url = env.get("KAFKA_BOOTSTRAP_SERVERS", ""), env.get("DATABASE_URL", "")
    ports = {name: _port(env, name) for name in ("MEIRI_KAFKA_PORT", "MEIRI_POSTGRES_PORT")}
    if bootstrap:
        await kafka.reach(bootstrap)
    if admin_url:
        await postgres.reach(admin_url)
    own_kafka, own_postgres = not bootstrap, not admin_url
    children = []
    if own_postgres:
        child, admin_url = await postgres.prepare(
            supervisor.run_dir / "postgres", supervisor.logs / "postgres.log", port=ports["MEIRI_POSTGRES_PORT"]
        )
        children.append(child)
    if own_kafka:
        child, bootstrap = await kafka.prepare(
            supervisor.run_dir / "kafka", supervisor.logs / "kafka.log", port=ports["MEIRI_KAFKA_PORT"]
        )
        children.append(child)
    try:
        async with asyncio.TaskGroup() as group:
            for child in children:
                group.create_task(supervisor.start(child))
    except* Unusable as errors:
        raise errors.exceptions[0] from None
    if own_postgres:
        await postgres.create_database(admin_url)
    return Servers(bootstrap, admin_url, own_kafka, own_postgres)


def _port(env: Mapping[str, str], name: str) -> int | None:
    text = env.get(name, "")
    if not text:
        return None
    if not text.isdecimal() or not 0 < int(text) < 65536:
        raise Unusable(f"{name} is {text!r}: write a port number, for example 15432.")
    return int(text)
