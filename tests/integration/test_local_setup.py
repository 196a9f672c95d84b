"""`python -m infra.local.setup` on servers that run already."""

import os
import re
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import asyncpg
import pytest

from infra.local import postgres
from tests.conftest import RealServers

_ROOT = Path(__file__).parents[2]


def _setup(**env: str) -> subprocess.CompletedProcess[str]:
    kept = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    return subprocess.run(
        [sys.executable, "-m", "infra.local.setup"],
        env={**kept, "PYTHONPATH": f"{_ROOT}:{_ROOT / 'protos' / 'gen'}", **env},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.fixture
async def fresh(servers: RealServers) -> AsyncIterator[str]:
    await postgres.create_database(servers.admin_url, "setup")
    yield postgres.with_database(servers.admin_url, "setup")
    await postgres.drop_database(servers.admin_url, "setup")


async def test_roles_get_the_passwords_given_and_keys_are_made_once(
    servers: RealServers, fresh: str, tmp_path: Path
) -> None:
    env = {
        "KAFKA_BOOTSTRAP_SERVERS": servers.bootstrap_servers,
        "DATABASE_URL": fresh,
        "MEIRI_SIGNING_FOLDER": str(tmp_path / "signing"),
        "MEIRI_KEYS_FOLDER": str(tmp_path / "keys"),
        "MEIRI_FEATURES_DB_PASSWORD": "it's / new",
    }
    first = _setup(**env)
    assert (first.returncode, first.stderr) == (0, "")
    assert first.stdout.endswith(
        f"The operator's token is in {tmp_path / 'signing' / 'operator.token'}.\nTopics, schemas and roles are ready.\n"
    )
    assert "it's" not in first.stdout
    key = (tmp_path / "keys" / "token.pub.pem").read_text()
    connection = await asyncpg.connect(fresh, user="features", password="it's / new")
    try:
        assert await connection.fetchval("SELECT count(*) FROM ledger") == 0
    finally:
        await connection.close()
    again = _setup(**env)
    # Every role is there by now: none gets a password that nobody asked for.
    assert not re.search("DATABASE_URL", again.stdout)
    assert (tmp_path / "keys" / "token.pub.pem").read_text() == key


def test_what_is_not_named_is_asked_for_with_an_example() -> None:
    ended = _setup(KAFKA_BOOTSTRAP_SERVERS="127.0.0.1:9092")
    assert (ended.returncode, ended.stderr.count("\n")) == (2, 1)
    assert ended.stderr.startswith("DATABASE_URL is not set: it names the servers to prepare. Example: DATABASE_URL=")
