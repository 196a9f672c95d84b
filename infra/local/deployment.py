"""The whole system on this machine: servers, topics, schemas, keys and the services, in one folder and with one owner.

    async with Deployment(Path("build/run/demo"), services=("gateway", "ingest")) as deployment:
        async with channel(deployment.addresses["gateway"], token=deployment.admin_token) as gateway:
            …

Leaving the block, in any way, stops everything.
"""

import asyncio
import os
import shutil
import sys
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.parse import urlsplit

from infra.local import credentials, kafka, schemas
from infra.local.environment import ROOT, SERVICES, env_of
from infra.local.ports import LOOPBACK, answers, claim_all
from infra.local.servers import Servers, port_of, start_servers
from infra.local.supervisor import Child, Supervisor
from shared.clock import Clock
from shared.errors import Unusable
from shared.rpc.health import is_serving
from shared.topics import ALL

# What a run leaves in its folder. Only these are removed, whatever folder was named.
_DATA = ("kafka", "postgres", "keys", "registry", "archive", "passwords.json", "clock")


class Deployment:
    """Start it by `async with`. What is to be known about it stands in its attributes from then on.

    servers: where Kafka and Postgres are; addresses: host:port of each of the seven services, of those too that do not
    run yet; admin_token and service_token: the operator's and the services' own; clock_file: the seconds that every
    clock of the system is ahead; logs: the folder of logs.

    The folder's data of an earlier run is removed unless `keep`. `ports` fixes ports by service name, as
    MEIRI_<SERVICE>_PORT does; `settings` are variables that every service gets which reads them; `trainer_interval_s` 0
    leaves training to whoever asks for it. `tell` gets a sentence when something died and is started again.
    """

    servers: Servers
    admin_token: str
    service_token: str

    def __init__(
        self,
        run_dir: Path,
        *,
        services: Sequence[str],
        tell: Callable[[str], None] | None = None,
        keep: bool = False,
        ports: Mapping[str, int] | None = None,
        settings: Mapping[str, str] | None = None,
        trainer_interval_s: int = 0,
    ) -> None:
        self.run_dir = run_dir.resolve()
        self.logs = self.run_dir / "logs"
        self.clock_file = self.run_dir / "clock"
        self.addresses: dict[str, str] = {}
        self._services = services
        self._keep = keep
        self._ports = dict(ports or {})
        self._settings = {"MEIRI_TRAINER_INTERVAL_S": str(trainer_interval_s), **(settings or {})}
        self._supervisor = Supervisor(self.run_dir, tell=tell)
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(self._supervisor)
            if not self._keep:
                await asyncio.to_thread(_remove, self.run_dir)
            self._allot_ports()
            await self._start()
            self._stack = stack.pop_all()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stack.__aexit__(kind, error, trace)

    def env_for(self, name: str) -> dict[str, str]:
        """The whole environment of a service, for a command of its that is run beside it."""
        return env_of(name, self._settings)

    async def start_service(self, name: str, replicas: int = 1) -> None:
        """Start it and return when it serves. Replica 0 is `name` at `addresses[name]`, the others are `name-1`, …"""
        others = claim_all([None] * (replicas - 1))
        addresses = [self.addresses[name], *(f"{LOOPBACK}:{port}" for port in others)]
        await _together(
            self._supervisor.start(self._child(name, number, address)) for number, address in enumerate(addresses)
        )

    async def kill(self, name: str) -> tuple[int, int]:
        """SIGKILL a service (or "kafka", "postgres") and wait until its successor serves: both process ids."""
        killed = self._supervisor.pid(name)
        self._supervisor.kill(name)
        return killed, await self._supervisor.wait_ready(name, other_than=killed)

    async def restart(self, name: str) -> None:
        await self._supervisor.restart(name)

    async def stop(self, name: str) -> None:
        await self._supervisor.stop(name)

    def pid(self, name: str) -> int:
        return self._supervisor.pid(name)

    def starts(self, name: str) -> int:
        """How often it was started: 1 until it died for the first time."""
        return self._supervisor.starts(name)

    def _allot_ports(self) -> None:
        """All at once, before anything listens: each service is told where the others will be."""
        wanted = [port_of(os.environ, f"MEIRI_{name.upper()}_PORT") or self._ports.get(name) for name in SERVICES]
        ports = claim_all(wanted, names=SERVICES)
        self.addresses = {name: f"{LOOPBACK}:{port}" for name, port in zip(SERVICES, ports, strict=True)}

    async def _start(self) -> None:
        if not self.clock_file.exists():
            self.clock_file.write_text("0", encoding="ascii")
        keys = self.run_dir / "keys"
        issued = credentials.issue(keys / "signing", keys, Clock(self.clock_file))
        self.admin_token = issued.admin_token.read_text(encoding="ascii")
        self.service_token = issued.service_token.read_text(encoding="ascii")
        databases: dict[str, str] = {}

        async def with_postgres(admin_url: str) -> None:
            role_passwords = schemas.passwords(self.run_dir / "passwords.json")
            databases.update((await schemas.prepare(admin_url, role_passwords)).env())

        async def with_kafka(bootstrap: str) -> None:
            await kafka.create_topics(bootstrap, ALL)

        self.servers = await start_servers(self._supervisor, with_postgres=with_postgres, with_kafka=with_kafka)
        for folder in ("registry", "archive"):
            (self.run_dir / folder).mkdir(exist_ok=True)
        self._settings = {
            "MEIRI_KAFKA_BOOTSTRAP_SERVERS": self.servers.bootstrap_servers,
            "MEIRI_TOKEN_PUBLIC_KEY": str(issued.public_key),
            "MEIRI_GATEWAY_TOKEN_PRIVATE_KEY": str(issued.private_key),
            "MEIRI_SERVICE_TOKEN": str(issued.service_token),
            "MEIRI_CLOCK_FILE": str(self.clock_file),
            "MEIRI_REGISTRY": (self.run_dir / "registry").as_uri(),
            "MEIRI_ARCHIVE": str(self.run_dir / "archive"),
            **databases,
            **{f"MEIRI_{name.upper()}_ADDRESS": address for name, address in self.addresses.items()},
            **{f"MEIRI_{name.upper()}_LISTEN": address for name, address in self.addresses.items()},
            **self._settings,
        }
        await _together(self.start_service(name) for name in self._services)

    def _child(self, service: str, number: int, address: str) -> Child:
        name = service if number == 0 else f"{service}-{number}"
        env = env_of(
            service,
            {
                **self._settings,
                f"MEIRI_{service.upper()}_LISTEN": address,
                f"MEIRI_{service.upper()}_INSTANCE": name,
            },
        )
        host, port = urlsplit(f"//{address}").hostname or LOOPBACK, int(address.rpartition(":")[2])

        async def ready() -> bool:
            # A connection that is refused costs less than a channel that is.
            return await answers(host, port) and await is_serving(address, timeout_s=1.0)

        argv = [sys.executable, "-m", f"services.{service}"]
        return Child(name, argv, env=env, ready=ready, cwd=ROOT, group="services")


async def _together(starts: Iterable[Coroutine[Any, Any, None]]) -> None:
    """All at once; the first that cannot start is told, not the group of them."""
    try:
        async with asyncio.TaskGroup() as group:
            for start in starts:
                group.create_task(start)
    except* Unusable as errors:
        raise _first(errors) from None


def _first(errors: BaseException) -> BaseException:
    while isinstance(errors, BaseExceptionGroup):
        errors = errors.exceptions[0]
    return errors


def _remove(run_dir: Path) -> None:
    for name in _DATA:
        shutil.rmtree(run_dir / name, ignore_errors=True)
        if (run_dir / name).is_file():
            (run_dir / name).unlink()
    for log in (run_dir / "logs").glob("*.log"):
        log.unlink()
