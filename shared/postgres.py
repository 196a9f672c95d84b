"""Postgres, bounded in every case: each call ends by its deadline even when the server is frozen; no pool slot leaks.

asyncpg's own pool does not return while the server is stopped, so this is a small pool of bare connections. A timer
terminates the connection when a call's deadline passes: that aborts the socket, which wakes the call without the server.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from types import TracebackType
from typing import Any, Self
from urllib.parse import urlsplit

import asyncpg
import structlog

from shared.errors import MeiriError, Transient, Unusable

log = structlog.get_logger()

Connection = Any  # asyncpg.Connection, which has no types
Row = Any  # asyncpg.Record: by name and by index

_RETRYABLE = (
    "08",
    "40",
    "53",
    "57",
)  # connection, rollback (deadlock, serialisation), resources, operator intervention
_RETRYABLE_CODES = frozenset({"25006", "55P03"})  # read-only (a failover), lock not available
_BROKEN = ("08", "57P", "25006")  # the connection itself is of no more use
_LIFETIME_S = 900.0  # plans cached on small tables go with their connection
_CONNECT_S = 3.0


class Queries:
    """The calls that `Database` and `Transaction` share. Errors that a retry may cure come as `Transient`."""

    def _connection(self, timeout_s: float) -> "_Guarded":
        raise NotImplementedError

    async def fetch(self, sql: str, *args: Any, timeout_s: float = 5.0) -> list[Row]:
        async with self._connection(timeout_s) as connection:
            return list(await connection.fetch(sql, *args))

    async def fetchrow(self, sql: str, *args: Any, timeout_s: float = 5.0) -> Row | None:
        async with self._connection(timeout_s) as connection:
            return await connection.fetchrow(sql, *args)

    async def fetchval(self, sql: str, *args: Any, timeout_s: float = 5.0) -> Any:
        async with self._connection(timeout_s) as connection:
            return await connection.fetchval(sql, *args)

    async def execute(self, sql: str, *args: Any, timeout_s: float = 5.0) -> str:
        """Run one statement; returns the server's tag, such as "UPDATE 3"."""
        async with self._connection(timeout_s) as connection:
            return str(await connection.execute(sql, *args))

    async def executemany(self, sql: str, rows: Iterable[Sequence[Any]], *, timeout_s: float = 5.0) -> None:
        """Run `sql` once per row, all or none."""
        async with self._connection(timeout_s) as connection:
            await connection.executemany(sql, rows)


class Transaction(Queries):
    """One open transaction. A statement has its deadline, and the transaction's deadline holds for all of them."""

    def __init__(self, connection: Connection, ends_at: float) -> None:
        self._raw = connection
        self._ends_at = ends_at

    def _connection(self, timeout_s: float) -> "_Guarded":
        return _Guarded(self._raw, min(timeout_s, self._ends_at - time.monotonic()))


class Database(Queries):
    """A pool of `pool_size` connections, opened with `Database.open`. `fetch` and its like use one for one call."""

    def __init__(self, dsn: str, pool_size: int, acquire_timeout_s: float, settings: Mapping[str, str]) -> None:
        self._dsn = dsn
        self._pool_size = pool_size
        self._acquire_timeout_s = acquire_timeout_s
        self._server_settings = settings
        self._slots = asyncio.Semaphore(pool_size)
        self._idle: list[tuple[float, Connection]] = []  # (monotonic birth, connection), the last used at the end
        self._in_use = 0
        self._closed = False

    @classmethod
    @asynccontextmanager
    async def open(
        cls,
        dsn: str,
        *,
        pool_size: int = 8,
        application_name: str = "meiri",
        acquire_timeout_s: float = 1.0,
        statement_timeout_s: float = 30.0,
        lock_timeout_s: float = 5.0,
        server_settings: Mapping[str, str] | None = None,
    ) -> AsyncIterator[Self]:
        """Connect, or raise `Unusable` with a sentence.

        The server's own time limits back the client's: they end a statement whose client died.
        """
        settings = {
            "application_name": application_name,
            "statement_timeout": f"{statement_timeout_s:g}s",
            "lock_timeout": f"{lock_timeout_s:g}s",
            "idle_in_transaction_session_timeout": f"{statement_timeout_s:g}s",
            "client_connection_check_interval": "1s",
            **(server_settings or {}),
        }
        db = cls(dsn, pool_size, acquire_timeout_s, settings)
        try:
            connection = await db._connect(_CONNECT_S)
        except (MeiriError, OSError, ValueError, asyncpg.PostgresError, asyncpg.InterfaceError) as error:
            raise Unusable(
                f"Postgres at {_address(dsn)} cannot be used ({_short(error)}). "
                "Check the database URL and that the server runs."
            ) from None
        db._idle.append((time.monotonic(), connection))
        try:
            yield db
        finally:
            await db._close()

    @property
    def in_use(self) -> int:
        """Connections now lent out, for health and tests."""
        return self._in_use

    @asynccontextmanager
    async def transaction(self, timeout_s: float = 10.0) -> AsyncIterator[Transaction]:
        """Begin; commit at the end of the block, roll back when it raises; all of it within `timeout_s`.

        `Transient` from the commit itself means that its outcome is unknown: repeat the block only if twice is once.
        """
        ends_at = time.monotonic() + timeout_s
        async with self._connection(timeout_s) as connection:
            await connection.execute("BEGIN")
            try:
                yield Transaction(connection, ends_at)
            except Exception:  # cancelled: the guard terminates the connection, and the server rolls back
                if not connection.is_closed():
                    with suppress(OSError, asyncpg.PostgresError, asyncpg.InterfaceError):
                        await connection.execute("ROLLBACK")
                raise
            await connection.execute("COMMIT")

    def _connection(self, timeout_s: float) -> "_Guarded":
        return _Guarded(None, timeout_s, self)

    async def _acquire(self, timeout_s: float) -> tuple[float, Connection]:
        if self._closed:
            raise Transient("The database is closed: the process is shutting down.")
        if self._slots.locked():
            try:
                async with asyncio.timeout(min(self._acquire_timeout_s, timeout_s)):
                    await self._slots.acquire()
            except TimeoutError:
                raise Transient(
                    f"All {self._pool_size} database connections are busy: slow down and try again (pool exhausted)."
                ) from None
        else:
            await self._slots.acquire()  # does not wait: a slot is free
        self._in_use += 1
        try:
            while self._idle:
                born, connection = self._idle.pop()
                if not connection.is_closed():
                    return born, connection
            with _translated():
                return time.monotonic(), await self._connect(min(_CONNECT_S, timeout_s))
        except BaseException:
            self._in_use -= 1
            self._slots.release()
            raise

    async def _connect(self, timeout_s: float) -> Connection:
        try:
            async with asyncio.timeout(timeout_s):
                return await asyncpg.connect(self._dsn, timeout=timeout_s, server_settings=self._server_settings)
        except TimeoutError:
            raise Transient(f"Postgres did not accept a connection within {timeout_s:.1f} s: try again.") from None

    def _release(self, born: float, connection: Connection) -> None:
        self._in_use -= 1
        keep = not self._closed and not connection.is_closed() and time.monotonic() - born < _LIFETIME_S
        # A transaction left open would leak its locks to the next caller.
        if keep and not connection.is_in_transaction():
            self._idle.append((born, connection))
        else:
            connection.terminate()
        self._slots.release()

    async def _close(self) -> None:
        self._closed = True
        idle, self._idle = self._idle, []
        for _, connection in idle:
            try:
                await connection.close(timeout=1.0)
            except (TimeoutError, OSError, asyncpg.PostgresError, asyncpg.InterfaceError):
                connection.terminate()


class _Guarded:
    """Lends a connection for one block that ends by its deadline: late or cancelled, the connection is terminated."""

    def __init__(self, connection: Connection | None, timeout_s: float, database: Database | None = None) -> None:
        self._raw = connection
        self._database = database
        self._timeout_s = timeout_s
        self._born = 0.0
        self._expired = False
        self._timer: asyncio.TimerHandle | None = None

    async def __aenter__(self) -> Connection:
        started = time.monotonic()
        if self._database is not None:
            self._born, self._raw = await self._database._acquire(self._timeout_s)  # noqa: SLF001
        left = max(0.0, self._timeout_s - (time.monotonic() - started))
        self._timer = asyncio.get_running_loop().call_later(left, self._expire)
        return self._raw

    def _expire(self) -> None:
        self._expired = True
        assert self._raw is not None  # noqa: S101
        self._raw.terminate()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        assert self._timer is not None and self._raw is not None  # noqa: S101, PT018
        self._timer.cancel()
        if isinstance(error, asyncio.CancelledError) or _breaks_connection(error):
            self._raw.terminate()  # its state is unknown: a query may still be running on it
        if self._database is not None:
            self._database._release(self._born, self._raw)  # noqa: SLF001
        if self._expired and error is not None and _is_database_error(error):
            raise Transient(
                f"Postgres did not answer within {self._timeout_s:.1f} s: the connection is dropped, try again."
            ) from error
        with _translated():
            if error is not None and _is_database_error(error):
                raise error


def _is_database_error(error: BaseException) -> bool:
    return isinstance(error, asyncpg.PostgresError | asyncpg.InterfaceError | asyncpg.InternalClientError | OSError)


def _breaks_connection(error: BaseException | None) -> bool:
    if isinstance(error, asyncpg.PostgresError):
        return str(error.sqlstate or "08").startswith(_BROKEN)
    return isinstance(error, asyncpg.InternalClientError | OSError)


@contextmanager
def _translated() -> Iterator[None]:
    try:
        yield
    except asyncpg.PostgresError as error:
        code = str(error.sqlstate or "")
        stale = isinstance(
            error, asyncpg.InvalidCachedStatementError
        )  # the schema changed; asyncpg forgot the plan by now
        if stale or code.startswith(_RETRYABLE) or code in _RETRYABLE_CODES:
            raise Transient(f"Postgres could not do it now ({code}, {type(error).__name__}): try again.") from error
        raise
    except asyncpg.InterfaceError as error:
        if "closed" in str(error):  # a connection that was lost between two statements
            raise Transient("The connection to Postgres was lost: try again.") from error
        raise
    except asyncpg.InternalClientError as error:  # the server's farewell came between two calls
        raise Transient("The connection to Postgres was lost: try again.") from error
    except OSError as error:
        raise Transient(f"Postgres cannot be reached ({_short(error)}): try again.") from error


def _short(error: BaseException) -> str:
    return str(error).split("\n", 1)[0] or type(error).__name__


def _address(dsn: str) -> str:
    """Where a DSN points to, without its user and password."""
    try:
        parts = urlsplit(dsn)
        port = parts.port or 5432
    except ValueError:
        return "an unreadable address"
    return f"{parts.hostname or 'the local socket'}:{port}{parts.path}"
