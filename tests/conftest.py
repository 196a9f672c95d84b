"""Real servers for every test that asks for them: started once, in a thread of their own, when the first test does.

They run beside the tests' event loops, so that a killed broker is restarted while a test waits for it.
"""

import asyncio
import itertools
import os
import shutil
import signal
import threading
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

import pytest

from infra.local import kafka, postgres, schemas
from infra.local.servers import Servers, start_servers
from infra.local.supervisor import Supervisor
from shared.topics import Topic

_RUNS = Path(__file__).parents[1] / "build" / "run"
T = TypeVar("T")


def pytest_configure() -> None:
    """A shell starts what it runs in the background with Ctrl-C ignored, and every process below would inherit that."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


class RealServers:
    """Kafka and PostgreSQL, and the supervisor's hand on them, from any thread or event loop."""

    def __init__(self) -> None:
        self.run_dir = _RUNS / f"test-{os.getpid()}"
        self.at: Servers
        self._loop = asyncio.new_event_loop()
        self._supervisor: Supervisor
        self._stop = asyncio.Event()
        self._started = threading.Event()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="servers", daemon=True)

    @property
    def bootstrap_servers(self) -> str:
        return self.at.bootstrap_servers

    @property
    def admin_url(self) -> str:
        return self.at.admin_url

    def call(self, work: Coroutine[object, object, T]) -> T:
        """Run it in the servers' loop and wait."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(timeout=120)

    def pid(self, name: str) -> int:
        """Of "kafka" or "postgres"."""
        return self._supervisor.pid(name)

    def kill(self, name: str) -> None:
        """SIGKILL "kafka" or "postgres"; the supervisor starts it again with the same port and data."""

        async def kill() -> None:
            self._supervisor.kill(name)

        self.call(kill())

    def wait_ready(self, name: str, *, other_than: int | None = None) -> int:
        return self.call(self._supervisor.wait_ready(name, other_than=other_than))

    def start(self) -> None:
        self._thread.start()
        self._started.wait()
        if self._error is not None:
            pytest.exit(str(self._error), returncode=2)

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(timeout=60)
        # The logs stay, for whoever has to find out why a test failed.
        for data in ("kafka", "postgres"):
            shutil.rmtree(self.run_dir / data, ignore_errors=True)

    def _run(self) -> None:
        self._loop.run_until_complete(self._main())

    async def _main(self) -> None:
        try:
            async with Supervisor(self.run_dir) as self._supervisor:
                self.at = await start_servers(self._supervisor)
                self._started.set()
                await self._stop.wait()
        except BaseException as error:  # noqa: BLE001  told to the thread that waits
            self._error = error
        finally:
            self._started.set()


@pytest.fixture(scope="session")
def servers() -> Iterator[RealServers]:
    """Kafka and PostgreSQL of this test session (or those that KAFKA_BOOTSTRAP_SERVERS and DATABASE_URL name)."""
    running = RealServers()
    running.start()
    yield running
    running.stop()


_databases = itertools.count(1)


@pytest.fixture(scope="module")
def database(servers: RealServers) -> Iterator[schemas.Databases]:
    """A fresh database for the module, every schema migrated; `.urls["features"]` is that of the service's own role."""
    name = f"test_{os.getpid()}_{next(_databases)}"

    async def create() -> schemas.Databases:
        await postgres.create_database(servers.admin_url, name)
        url = postgres.with_database(servers.admin_url, name)
        return await schemas.prepare(url, schemas.passwords(servers.run_dir / "passwords.json"))

    yield servers.call(create())
    servers.call(postgres.drop_database(servers.admin_url, name))


@pytest.fixture(scope="session")
def topic_name() -> Callable[[str], str]:
    """Make a name that no other test uses, from a readable stem."""
    started, numbers = time.time_ns() // 1_000_000, itertools.count(1)
    return lambda stem: f"{stem}.t{started}-{next(numbers)}"


@pytest.fixture(scope="session")
def topics(servers: RealServers) -> Callable[[Sequence[Topic]], None]:
    """Create topics on the real broker."""
    return lambda wanted: servers.call(kafka.create_topics(servers.bootstrap_servers, wanted))
