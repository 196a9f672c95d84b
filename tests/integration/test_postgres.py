"""The database wrapper on a real PostgreSQL: bounded when it is frozen, restarted, exhausted, or its caller goes away."""

import asyncio
import os
import random
import signal
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path

import asyncpg
import pytest

from shared.errors import Transient, Unusable
from shared.postgres import Database
from tests.conftest import RealServers


@pytest.fixture
def dsn(servers: RealServers) -> str:
    return servers.admin_url


@pytest.fixture
async def db(dsn: str) -> AsyncIterator[Database]:
    async with Database.open(dsn, pool_size=4) as opened:
        yield opened


@contextmanager
def frozen(postmaster: int) -> Iterator[None]:
    """Stop the server and every process of it, as a machine that hangs does."""
    pids = [postmaster, *children(postmaster)]
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in reversed(pids):
            os.kill(pid, signal.SIGCONT)


def children(parent: int) -> list[int]:
    direct = [int(pid) for pid in Path(f"/proc/{parent}/task/{parent}/children").read_text().split()]
    return [pid for child in direct for pid in (child, *children(child))]


async def usable(db: Database, within_s: float) -> float:
    """Seconds until the database answers again."""
    started = time.monotonic()
    while True:
        try:
            await db.fetchval("SELECT 1", timeout_s=1.0)
        except Transient:
            assert time.monotonic() - started < within_s
            await asyncio.sleep(0.1)
        else:
            return time.monotonic() - started


async def test_calls_return_rows_values_and_tags(db: Database) -> None:
    async with db.transaction() as tx:
        await tx.execute("CREATE TEMP TABLE t (a int, b text) ON COMMIT DROP")
        await tx.executemany("INSERT INTO t VALUES ($1, $2)", [(1, "x"), (2, "y"), (3, "z")])
        assert await tx.execute("UPDATE t SET b = 'w' WHERE a < 3") == "UPDATE 2"
        rows = await tx.fetch("SELECT a, b FROM t ORDER BY a")
        assert [(row["a"], row[1]) for row in rows] == [(1, "w"), (2, "w"), (3, "z")]
        assert await tx.fetchrow("SELECT a FROM t WHERE a = 9") is None
        assert await tx.fetchval("SELECT count(*) FROM t") == 3


async def test_a_failing_block_is_rolled_back_and_its_error_stays_itself(db: Database) -> None:
    await db.execute("CREATE TABLE IF NOT EXISTS rolled (a int PRIMARY KEY)")
    await db.execute("TRUNCATE rolled")
    with pytest.raises(ValueError, match="mine"):  # noqa: PT012
        async with db.transaction() as tx:
            await tx.execute("INSERT INTO rolled VALUES (1)")
            raise ValueError("mine")
    with pytest.raises(asyncpg.UniqueViolationError):  # noqa: PT012
        async with db.transaction() as tx:
            await tx.execute("INSERT INTO rolled VALUES (2)")
            await tx.execute("INSERT INTO rolled VALUES (2)")
    assert await db.fetchval("SELECT count(*) FROM rolled") == 0
    assert db.in_use == 0


async def test_the_servers_own_limits_are_set(db: Database) -> None:
    names = ("application_name", "statement_timeout", "lock_timeout", "idle_in_transaction_session_timeout")
    assert [await db.fetchval(f"SHOW {name}") for name in names] == ["meiri", "30s", "5s", "30s"]


async def test_a_late_call_ends_at_its_deadline_and_its_slot_comes_back(db: Database) -> None:
    for _ in range(6):  # more often than there are slots
        started = time.monotonic()
        with pytest.raises(Transient, match="did not answer"):
            await db.execute("SELECT pg_sleep(30)", timeout_s=0.3)
        assert time.monotonic() - started < 3
    assert await db.fetchval("SELECT 1") == 1
    await asyncio.sleep(2.5)  # the server notices that nobody waits
    assert await db.fetchval("SELECT count(*) FROM pg_stat_activity WHERE query LIKE 'SELECT pg_sleep(30)%'") == 0


async def test_a_transactions_deadline_holds_for_all_its_statements(db: Database) -> None:
    started = time.monotonic()
    with pytest.raises(Transient):  # noqa: PT012
        async with db.transaction(timeout_s=0.5) as tx:
            for _ in range(10):
                await tx.execute("SELECT pg_sleep(0.2)")
    assert time.monotonic() - started < 1.9  # all of them would take 2 s
    assert db.in_use == 0


async def test_a_frozen_server_bounds_every_call_and_is_usable_soon_after(servers: RealServers, db: Database) -> None:
    await asyncio.gather(*(db.fetchval("SELECT 1") for _ in range(4)))

    async def call(number: int) -> float:
        started = time.monotonic()
        with pytest.raises(Transient):  # noqa: PT012
            if number % 3 == 0:
                await db.fetchval("SELECT 1", timeout_s=2.0)
            elif number % 3 == 1:
                async with db.transaction(timeout_s=2.0) as tx:
                    await tx.execute("SELECT 1")
            else:
                await db.executemany("SELECT $1::int", [(n,) for n in range(10)], timeout_s=2.0)
        return time.monotonic() - started

    with frozen(servers.pid("postgres")):
        took = await asyncio.gather(*(call(number) for number in range(40)))
        took += [await call(0)]
    assert max(took) <= 2.5
    assert await usable(db, 5.0) <= 5.0
    assert db.in_use == 0
    await asyncio.gather(*(db.fetchval("SELECT pg_sleep(0.2)") for _ in range(4)))  # all four slots are there


async def test_a_transaction_caught_by_the_freeze_is_gone_after_the_thaw(servers: RealServers, db: Database) -> None:
    await db.execute("CREATE TABLE IF NOT EXISTS caught (a int)")
    await db.execute("TRUNCATE caught")
    with pytest.raises(Transient):  # noqa: PT012
        async with db.transaction(timeout_s=1.5) as tx:
            await tx.execute("INSERT INTO caught VALUES (1)")
            with frozen(servers.pid("postgres")):
                await tx.execute("INSERT INTO caught VALUES (2)")
    await usable(db, 5.0)
    assert await db.fetchval("SELECT count(*) FROM caught") == 0


async def test_an_exhausted_pool_says_so_within_a_second(dsn: str) -> None:
    async with Database.open(dsn, pool_size=2, acquire_timeout_s=0.5) as db:
        release = asyncio.Event()

        async def hold() -> None:
            async with db.transaction():
                await release.wait()

        holders = [asyncio.create_task(hold()) for _ in range(2)]
        await asyncio.sleep(0.2)
        started = time.monotonic()
        results = await asyncio.gather(*(db.fetchval("SELECT 1") for _ in range(20)), return_exceptions=True)
        assert all(isinstance(result, Transient) and "pool exhausted" in str(result) for result in results)
        assert time.monotonic() - started < 3  # they do not wait for the holders, who wait for us
        release.set()
        await asyncio.gather(*holders)
        assert await db.fetchval("SELECT 1") == 1
        assert db.in_use == 0


async def test_cancelled_callers_leak_no_slot_and_no_transaction(db: Database) -> None:
    seed = random.Random(7)

    async def call() -> None:
        async with db.transaction(timeout_s=5.0) as tx:
            await tx.fetchval("SELECT 1")
            await tx.execute("SELECT pg_sleep(0.002)")

    for _ in range(60):
        tasks = [asyncio.create_task(call()) for _ in range(4)]
        await asyncio.sleep(seed.random() * 0.008)
        for task in tasks:
            if seed.random() < 0.5:
                task.cancel()
        for result in await asyncio.gather(*tasks, return_exceptions=True):
            assert result is None or isinstance(result, asyncio.CancelledError)
    assert db.in_use == 0
    await asyncio.sleep(1.5)
    idle = "SELECT count(*) FROM pg_stat_activity WHERE state = 'idle in transaction' AND application_name = 'meiri'"
    assert await db.fetchval(idle) == 0
    assert await asyncio.gather(*(db.fetchval("SELECT 1") for _ in range(4))) == [1, 1, 1, 1]


async def test_a_restart_in_between_costs_transient_errors_only(servers: RealServers, db: Database) -> None:
    await asyncio.gather(*(db.fetchval("SELECT 1") for _ in range(4)))
    before = servers.pid("postgres")
    servers.kill("postgres")
    successor = asyncio.create_task(asyncio.to_thread(lambda: servers.wait_ready("postgres", other_than=before)))
    failures = 0
    while not successor.done():
        try:
            await db.fetchval("SELECT 1", timeout_s=1.0)
        except Transient:
            failures += 1
        await asyncio.sleep(0.02)
    await successor
    assert failures > 0
    await usable(db, 5.0)
    assert db.in_use == 0


async def test_connections_ended_by_an_administrator_cost_transient_errors_only(dsn: str, db: Database) -> None:
    async with Database.open(dsn, pool_size=1, application_name="administrator") as administrator:
        for pause_s in (0.0, 0.0, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.05):
            await asyncio.gather(*(db.fetchval("SELECT pg_sleep(0.01)") for _ in range(4)))
            await administrator.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'meiri'"
            )
            await asyncio.sleep(pause_s)
            results = await asyncio.gather(*(db.fetchval("SELECT 1") for _ in range(8)), return_exceptions=True)
            assert all(result == 1 or isinstance(result, Transient) for result in results), results
            assert await usable(db, 5.0) < 1.0
    assert db.in_use == 0


async def test_a_held_lock_is_transient(dsn: str) -> None:
    async with Database.open(dsn, pool_size=3, lock_timeout_s=0.5) as db:
        await db.execute("CREATE TABLE IF NOT EXISTS locked (a int PRIMARY KEY)")
        await db.execute("INSERT INTO locked VALUES (1) ON CONFLICT DO NOTHING")
        async with db.transaction() as tx:
            await tx.execute("SELECT * FROM locked FOR UPDATE")
            with pytest.raises(Transient, match="55P03"):
                await db.fetch("SELECT * FROM locked FOR UPDATE")


async def test_a_wrong_address_is_one_sentence_without_the_password() -> None:
    with pytest.raises(Unusable) as told:
        async with Database.open("postgresql://meiri:hunter2@127.0.0.1:1/meiri"):
            pass
    assert "127.0.0.1:1/meiri" in str(told.value)
    assert "hunter2" not in str(told.value)
    with pytest.raises(Unusable):
        async with Database.open("not a url"):
            pass
