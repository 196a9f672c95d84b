"""The whole system as one: what a service gets, what a person reads when it cannot start, and Ctrl-C at any moment."""

import asyncio
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from infra.local import postgres
from infra.local.deployment import Deployment
from infra.local.environment import SERVICES, env_of, variables
from infra.local.ports import free_port
from infra.local.supervisor import Child, Supervisor
from shared.errors import Unusable
from shared.rpc.health import is_serving
from tests.conftest import RealServers

_ROOT = Path(__file__).parents[2]


def _env(**more: str) -> dict[str, str]:
    kept = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    return {**kept, "PYTHONPATH": f"{_ROOT}:{_ROOT / 'protos' / 'gen'}", **more}


@pytest.fixture
async def on_shared_servers(servers: RealServers, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[None]:
    """A deployment of the test uses the servers of all tests, with a database of its own."""
    await postgres.create_database(servers.admin_url, "deployment")
    monkeypatch.setenv("KAFKA_BOOTSTRAP_SERVERS", servers.bootstrap_servers)
    monkeypatch.setenv("DATABASE_URL", postgres.with_database(servers.admin_url, "deployment"))
    yield
    await postgres.drop_database(servers.admin_url, "deployment")


@pytest.mark.parametrize("name", SERVICES)
def test_a_service_gets_the_variables_it_reads_and_no_others(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MEIRI_SOMETHING_ELSE", "1")
    everything = {variable: "x" for service in SERVICES for variable in variables(service)}
    given = env_of(name, everything)
    assert {variable for variable in given if variable.startswith("MEIRI_")} == set(variables(name))


@pytest.mark.parametrize("name", SERVICES)
def test_a_service_without_a_setting_says_which_what_for_and_an_example(name: str) -> None:
    ended = subprocess.run(
        [sys.executable, "-m", f"services.{name}"], env=_env(), cwd=_ROOT, capture_output=True, text=True, check=False
    )
    assert ended.returncode == 2
    told = ended.stderr.splitlines()
    for variable, required in variables(name).items():
        lines = [line for line in told if line.startswith(f"{variable} is not set. It is ")]
        assert len(lines) == required
        assert all(f"Example: {variable}=" in line for line in lines)
    assert "Traceback" not in ended.stderr


async def test_replicas_listen_apart_and_a_killed_one_is_replaced(on_shared_servers: None, tmp_path: Path) -> None:
    async with Deployment(tmp_path / "run", services=()) as deployment:
        await deployment.start_service("playlists", replicas=2)
        killed, successor = await deployment.kill("playlists")
        assert killed != successor
        assert await is_serving(deployment.addresses["playlists"], timeout_s=1)
        assert (deployment.starts("playlists"), deployment.starts("playlists-1")) == (2, 1)
        await deployment.stop("playlists")
        assert not await is_serving(deployment.addresses["playlists"], timeout_s=1)


async def test_a_service_that_cannot_run_ends_the_start_with_its_own_sentence(
    on_shared_servers: None, tmp_path: Path
) -> None:
    with pytest.raises(Unusable) as told:
        async with Deployment(
            tmp_path / "run", services=("gateway", "ingest"), settings={"MEIRI_INGEST_BREAKER": "perhaps"}
        ):
            pass
    assert str(told.value).startswith("ingest cannot run: MEIRI_INGEST_BREAKER cannot be used (")
    assert "\n" not in str(told.value)


async def test_a_taken_port_of_a_service_is_told_before_anything_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        monkeypatch.setenv("MEIRI_GATEWAY_PORT", str(port))
        with pytest.raises(Unusable) as told:
            async with Deployment(tmp_path / "run", services=("gateway",)):
                pass
    assert str(told.value) == (
        f"Port {port}, where gateway should listen, is taken by another program: "
        "stop that program, or set MEIRI_GATEWAY_PORT to a free port."
    )
    assert not list((tmp_path / "run" / "logs").iterdir())


async def test_data_is_kept_only_on_request(on_shared_servers: None, tmp_path: Path) -> None:
    kept = tmp_path / "run" / "archive" / "plays"
    foreign = tmp_path / "run" / "letter"
    async with Deployment(tmp_path / "run", services=()) as first:
        key = (first.run_dir / "keys" / "token.pub.pem").read_text()
    kept.write_text("x")
    foreign.write_text("not of a deployment")
    async with Deployment(tmp_path / "run", services=(), keep=True) as second:
        assert kept.exists()
        assert (second.run_dir / "keys" / "token.pub.pem").read_text() == key
    async with Deployment(tmp_path / "run", services=()) as third:
        assert not kept.exists()
        assert (third.run_dir / "keys" / "token.pub.pem").read_text() != key
    assert foreign.exists()


@pytest.mark.parametrize("after_s", [0.4, 1.0, 2.0, 4.0, 8.0])
async def test_ctrl_c_at_any_moment_of_the_start_leaves_nothing_running(tmp_path: Path, after_s: float) -> None:
    run_dir = tmp_path / "run"
    ports = {f"MEIRI_{name.upper()}_PORT": str(free_port()) for name in SERVICES}
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "infra.local.program", "infra.local.up", "--run-dir", str(run_dir)),
        env=_env(**ports),
        cwd=_ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    try:
        await asyncio.sleep(after_s)
        # The whole group, as a terminal does it.
        os.killpg(process.pid, signal.SIGINT)
        _, told = await asyncio.wait_for(process.communicate(), 60)
    finally:
        if process.returncode is None:
            process.kill()
    assert told.decode() == "Stopped.\n"
    # One that comes in the middle of an import can make CPython end by the signal itself, after our sentence; a shell
    # calls that 130 as well.
    assert process.returncode in {130, -signal.SIGINT}
    assert processes_of(run_dir) == []


async def test_a_crash_loop_after_the_start_is_told_by_the_service_s_own_sentence(tmp_path: Path) -> None:
    async def ready() -> bool:
        return True

    program = "import sys, time; time.sleep(0.1); sys.stderr.write('{}\\nThe log belongs to another.\\n'); sys.exit(2)"
    with pytest.raises(Unusable, match=r"^reader cannot run: The log belongs to another\. Its log: \S*reader\.log$"):  # noqa: PT012
        async with Supervisor(tmp_path) as supervisor:
            await supervisor.start(Child("reader", (sys.executable, "-c", program), ready=ready))
            await asyncio.sleep(60)


def processes_of(run_dir: Path) -> list[str]:
    """Those that have anything to do with the folder: each has it in its arguments or in its environment."""
    deadline = time.monotonic() + 2
    while True:
        found = []
        for process in Path("/proc").glob("[0-9]*"):
            try:
                told = (process / "cmdline").read_bytes() + (process / "environ").read_bytes()
            except OSError:
                continue
            if str(run_dir).encode() in told:
                found.append(f"{process.name} {told!r}")
        # A killed process is there until it has been collected.
        if not found or time.monotonic() > deadline:
            return found
        time.sleep(0.05)
