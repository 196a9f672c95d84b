"""Roles, schemas and migrations on a real PostgreSQL."""

from collections.abc import AsyncIterator
from pathlib import Path

import asyncpg
import pytest

from infra.local import postgres, schemas
from shared.errors import Unusable
from tests.conftest import RealServers

_FIRST = """-- migrate:up
CREATE TABLE counts (track_key bigint PRIMARY KEY, plays integer NOT NULL, seen extensions.vector(2));
-- migrate:down
DROP TABLE counts;
"""


@pytest.fixture
async def fresh(servers: RealServers) -> AsyncIterator[str]:
    """The administrator's URL of an empty database."""
    await postgres.create_database(servers.admin_url, "schemas")
    yield postgres.with_database(servers.admin_url, "schemas")
    await postgres.drop_database(servers.admin_url, "schemas")


def _passwords(servers: RealServers) -> dict[str, str]:
    return schemas.passwords(servers.run_dir / "passwords.json")


async def test_each_role_uses_its_own_schema_and_sees_no_other(
    servers: RealServers, fresh: str, tmp_path: Path
) -> None:
    for schema in schemas.SCHEMAS:
        (tmp_path / schema).mkdir()
        (tmp_path / schema / "20260101000000_first.sql").write_text(_FIRST)
    made = await schemas.prepare(fresh, _passwords(servers), tmp_path)
    for schema in schemas.SCHEMAS:
        connection = await asyncpg.connect(made.urls[schema])
        try:
            await connection.execute("INSERT INTO counts VALUES (1, 2, '[1,2]')")
            assert await connection.fetchval("SELECT plays FROM counts") == 2
            for other in set(schemas.SCHEMAS) - {schema}:
                with pytest.raises(asyncpg.InsufficientPrivilegeError):
                    await connection.fetch(f"TABLE {other}.counts")
            with pytest.raises(asyncpg.InsufficientPrivilegeError):
                await connection.execute("CREATE TABLE more (x integer)")
        finally:
            await connection.close()


async def test_preparing_twice_changes_nothing_and_applies_what_is_new(
    servers: RealServers, fresh: str, tmp_path: Path
) -> None:
    (tmp_path / "features").mkdir()
    (tmp_path / "features" / "20260101000000_first.sql").write_text(_FIRST)
    await schemas.prepare(fresh, _passwords(servers), tmp_path)
    second = "-- migrate:up\nCREATE TABLE more (x integer);\n-- migrate:down\nDROP TABLE more;\n"
    (tmp_path / "features" / "20260102000000_second.sql").write_text(second)
    made = await schemas.prepare(fresh, _passwords(servers), tmp_path)
    connection = await asyncpg.connect(made.urls["features"])
    try:
        await connection.execute("INSERT INTO more VALUES (1)")
        versions = await connection.fetch("SELECT version FROM features.schema_migrations ORDER BY 1")
        assert [row["version"] for row in versions] == ["20260101000000", "20260102000000"]
    finally:
        await connection.close()


async def test_a_wrong_migration_is_told_with_its_name(servers: RealServers, fresh: str, tmp_path: Path) -> None:
    (tmp_path / "features").mkdir()
    (tmp_path / "features" / "20260101000000_wrong.sql").write_text("-- migrate:up\nCREATE TABEL x;\n-- migrate:down\n")
    with pytest.raises(Unusable, match="20260101000000_wrong"):
        await schemas.prepare(fresh, _passwords(servers), tmp_path)
