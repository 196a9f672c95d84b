"""One schema and one role for each service that owns tables, and dbmate's migrations of each schema."""

import json
import os
import secrets
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote, urlencode, urlsplit

import asyncpg

from infra.local.tool import finish
from shared.errors import Unusable

SCHEMAS = ("gateway", "features", "materialiser", "playlists")
MIGRATIONS = Path(__file__).parents[1] / "migrations"
# Types that every schema may use (pgvector) and none owns.
_SHARED = "extensions"


@dataclass(frozen=True)
class Databases:
    """The administrator's URL, and each service's own: its role sees its own schema only."""

    admin_url: str
    urls: dict[str, str]

    def env(self) -> dict[str, str]:
        """The setting of each service: MEIRI_<SERVICE>_DATABASE_URL."""
        return {f"MEIRI_{service.upper()}_DATABASE_URL": url for service, url in self.urls.items()}


def passwords(file: Path) -> dict[str, str]:
    """A password for each role, made once and kept in `file`, which its owner alone may read."""
    known: dict[str, str] = json.loads(file.read_text(encoding="ascii")) if file.exists() else {}
    if set(SCHEMAS) - set(known):
        known = {schema: known.get(schema, secrets.token_urlsafe(24)) for schema in SCHEMAS}
        file.parent.mkdir(parents=True, exist_ok=True)
        file.unlink(missing_ok=True)
        file.touch(mode=0o600)
        file.write_text(json.dumps(known), encoding="ascii")
    return known


async def roles(admin_url: str) -> set[str]:
    """Those of SCHEMAS whose role is there already."""
    connection = await asyncpg.connect(admin_url, timeout=10, command_timeout=60)
    try:
        return {row[0] for row in await connection.fetch("SELECT rolname FROM pg_roles")} & set(SCHEMAS)
    finally:
        await connection.close()


async def prepare(admin_url: str, role_passwords: Mapping[str, str], migrations: Path = MIGRATIONS) -> Databases:
    """Make what is missing of roles, schemas and rights, then apply the migrations that are new. Twice is once.

    A role that `role_passwords` lacks has to be there, and keeps its password.
    """
    connection = await asyncpg.connect(admin_url, timeout=10, command_timeout=60)
    try:
        encrypted = await connection.fetchval("SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()")
        async with connection.transaction():
            # Two that prepare the same server at once wait for each other.
            await connection.execute("SELECT pg_advisory_xact_lock(hashtext('meiri.prepare'))")
            await connection.execute(f"CREATE SCHEMA IF NOT EXISTS {_SHARED}")
            await connection.execute(f"CREATE EXTENSION IF NOT EXISTS vector WITH SCHEMA {_SHARED}")
            for schema in SCHEMAS:
                await _role(connection, schema, role_passwords.get(schema))
    finally:
        await connection.close()
    for schema in SCHEMAS:
        if any((migrations / schema).glob("*.sql")):
            await _migrate(admin_url, schema, migrations / schema, encrypted=bool(encrypted))
    return Databases(admin_url, {role: _as_role(admin_url, role, word) for role, word in role_passwords.items()})


async def _role(connection: asyncpg.Connection, schema: str, password: str | None) -> None:
    """Log in, use its own schema's tables and sequences, nothing else."""
    own = f"IN SCHEMA {schema}"
    known = await connection.fetchval("SELECT 1 FROM pg_roles WHERE rolname = $1", schema)
    verb = "ALTER" if known else "CREATE"
    database = await connection.fetchval("SELECT quote_ident(current_database())")
    secret = "" if password is None else "PASSWORD " + await connection.fetchval("SELECT quote_literal($1)", password)
    await connection.execute(
        f"""
        {verb} ROLE {schema} LOGIN NOSUPERUSER NOCREATEDB NOCREATEROLE {secret};
        ALTER ROLE {schema} IN DATABASE {database} SET search_path = {schema}, {_SHARED};
        CREATE SCHEMA IF NOT EXISTS {schema};
        GRANT USAGE ON SCHEMA {schema}, {_SHARED} TO {schema};
        GRANT SELECT, INSERT, UPDATE, DELETE, TRUNCATE ON ALL TABLES {own} TO {schema};
        GRANT USAGE, SELECT ON ALL SEQUENCES {own} TO {schema};
        ALTER DEFAULT PRIVILEGES {own} GRANT SELECT, INSERT, UPDATE, DELETE, TRUNCATE ON TABLES TO {schema};
        ALTER DEFAULT PRIVILEGES {own} GRANT USAGE, SELECT ON SEQUENCES TO {schema};
        REVOKE ALL ON SCHEMA public FROM PUBLIC;
        """  # noqa: S608  names of this file
    )


async def _migrate(admin_url: str, schema: str, folder: Path, *, encrypted: bool) -> None:
    parts = urlsplit(admin_url)
    # The unqualified names of a migration are the schema's own; dbmate's driver insists on encryption unless told.
    query = {"search_path": f"{schema},{_SHARED}"}
    if "sslmode=" not in parts.query:
        query["sslmode"] = "require" if encrypted else "disable"
    url = parts._replace(query="&".join(filter(None, (parts.query, urlencode(query))))).geturl()
    dbmate = Path(sys.executable).with_name("dbmate")
    options = ("--migrations-dir", ".", "--migrations-table", f"{schema}.schema_migrations", "--no-dump-schema")
    status, output = await finish(
        (str(dbmate), "--migration-lock", *options, "migrate"),
        cwd=folder,
        # By the environment: an argument could be read in the list of processes.
        env={**os.environ, "DATABASE_URL": url},
    )
    if status != 0:
        told = output.decode("utf-8", "replace").strip()
        raise Unusable(f"The migrations of {folder} could not be applied: correct the one that is named here.\n{told}")


def _as_role(admin_url: str, role: str, password: str) -> str:
    parts = urlsplit(admin_url)
    where = parts.netloc.rpartition("@")[2]
    return parts._replace(netloc=f"{role}:{quote(password, safe='')}@{where}").geturl()
