"""The server's life: it refuses a bad start, sheds when full, tells its health, and drains."""

import asyncio
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf.wrappers_pb2 import StringValue
from grpc_health.v1 import health_pb2, health_pb2_grpc

from shared.clock import Clock
from shared.errors import Transient, Unusable
from shared.rpc.client import channel
from shared.rpc.errors import Exhausted
from shared.rpc.health import is_serving, wait_serving
from shared.rpc.server import Server
from shared.rpc.tokens import Verifier
from tests.integration.rpc_echo import POLICIES, PUBLIC, SERVICE, Echo, Stub, add_echo, ask, echo_server, settled, token


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


async def start(policies: Any, servicer: Any) -> None:
    port = free_port()
    try:
        async with Server(
            f"127.0.0.1:{port}",
            policies=policies,
            verifier=Verifier(PUBLIC, Clock()),
            servicers=[(add_echo, servicer)],
            max_concurrent=1,
        ):
            pass
    finally:
        assert not listens(port)


async def test_a_method_without_policy_stops_the_start() -> None:
    without = {method: policy for method, policy in POLICIES.items() if not method.endswith("/List")}
    with pytest.raises(Unusable, match=f"no policy.*: /{SERVICE}/List"):
        await start(without, Echo())


async def test_a_policy_without_method_stops_the_start() -> None:
    with pytest.raises(Unusable, match=r"no method.*: /gone\.v1\.Gone/Get"):
        await start(POLICIES | {"/gone.v1.Gone/Get": next(iter(POLICIES.values()))}, Echo())


async def test_a_handler_of_the_wrong_kind_stops_the_start() -> None:
    class Blocking(Echo):
        def get(self, request: StringValue, _: Any) -> StringValue:  # type: ignore[override]  # the mistake under test
            return request

    with pytest.raises(Unusable, match=f"handler of /{SERVICE}/Get is not an async def; write it as one"):
        await start(POLICIES, Blocking())


async def test_a_taken_port_stops_the_start_with_a_sentence() -> None:
    async with echo_server(Echo()) as first:
        with pytest.raises(Unusable, match=f"Cannot listen on 127.0.0.1:{first.port}: the port is taken"):
            async with echo_server(Echo(), listen=f"127.0.0.1:{first.port}"):
                pass
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(Unusable, match="the port is taken"):
            async with echo_server(Echo(), listen=f"127.0.0.1:{taken.getsockname()[1]}"):
                pass


@pytest.mark.parametrize("kind", ["Get", "List", "Publish"])
async def test_what_is_over_the_limit_is_shed_at_once_in_every_wave(kind: str) -> None:
    echo = Echo()
    async with (
        echo_server(echo, max_concurrent=2) as server,
        channel(f"127.0.0.1:{server.port}", token=token()) as opened,
    ):
        stub = Stub(opened)
        for wave in range(1, 4):
            echo.gate = asyncio.Event()
            held = [asyncio.create_task(ask(stub, kind, "wait", timeout=1.9)) for _ in range(2)]
            await settled(lambda: echo.ran >= 2 * wave)  # noqa: B023  awaited at once
            begun = time.monotonic()
            shed = await asyncio.gather(*(ask(stub, kind, "wait") for _ in range(10)), return_exceptions=True)
            assert time.monotonic() - begun < 1.8  # before any of those that are held ends
            assert [type(error) for error in shed] == [Exhausted] * 10
            assert await is_serving(f"127.0.0.1:{server.port}", 1.0) is False
            echo.gate.set()
            await asyncio.gather(*held)
        assert echo.ran == 6
        assert server.metrics.count("shed") == 30


async def test_health_follows_the_service_and_needs_no_token_and_no_room() -> None:
    async with echo_server(Echo(), max_concurrent=1) as server:
        address = f"127.0.0.1:{server.port}"
        assert not await is_serving(address, 1.0)
        with pytest.raises(Transient, match=rf"{address} is not ready after 0\.3 s"):
            await wait_serving(address, 0.3)
        await server.health.set(True)
        async with channel(address, token=token()) as opened:
            held = asyncio.create_task(ask(Stub(opened), "Get", "wait"))
            await settled(lambda: server.metrics.in_flight >= 1)
            await wait_serving(address, 1.0)
            held.cancel()
        await server.health.set(False)
        assert not await is_serving(address, 1.0)
    with pytest.raises(Transient):
        await wait_serving(address, 0.3)


async def test_health_follows_what_is_stuck() -> None:
    stuck: set[str] = set()
    async with echo_server(Echo()) as server:
        following = asyncio.create_task(server.health.follow(stuck))
        await settled(lambda: server.health.serving)
        stuck.add("playback.plays.v1-0")
        await settled(lambda: not server.health.serving)
        stuck.clear()
        await settled(lambda: server.health.serving)
        following.cancel()


async def test_a_health_watcher_sees_the_drain() -> None:
    async with echo_server(Echo(), grace_s=0.5) as server:
        await server.health.set(True)
        async with grpc.aio.insecure_channel(f"127.0.0.1:{server.port}") as plain:
            watch = health_pb2_grpc.HealthStub(plain).Watch(health_pb2.HealthCheckRequest())
            assert (await watch.read()).status == health_pb2.HealthCheckResponse.SERVING
            serving = asyncio.create_task(server.serve_until_stopped())
            server.stop()
            assert (await watch.read()).status == health_pb2.HealthCheckResponse.NOT_SERVING
            await server.health.set(True)
            assert not server.health.serving
            await serving


async def test_a_drain_lets_calls_in_flight_end() -> None:
    echo = Echo()
    async with echo_server(echo, beat_s=0.1) as server, channel(f"127.0.0.1:{server.port}", token=token()) as opened:
        serving = asyncio.create_task(server.serve_until_stopped())
        held = asyncio.create_task(ask(Stub(opened), "Get", "wait"))
        await settled(lambda: echo.ran >= 1)
        server.stop()
        await asyncio.sleep(0.3)
        assert not serving.done()
        echo.gate.set()
        assert len(await held) == 1
        await asyncio.wait_for(serving, 1.0)


PROCESS = """
import asyncio
from tests.integration.rpc_echo import Echo, echo_server

async def main():
    async with echo_server(Echo(), beat_s=0.2, listen="127.0.0.1:{port}", public={public!r}) as server:
        await server.health.set(True)
        await server.serve_until_stopped()

asyncio.run(main())
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_drains_the_process_and_it_exits_with_0(number: signal.Signals) -> None:
    port = free_port()
    root = Path(__file__).parents[2]
    path = os.pathsep.join((str(root), str(root / "protos/gen")))
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        PROCESS.format(port=port, public=PUBLIC),
        env=os.environ | {"PYTHONPATH": path},
        stderr=subprocess.PIPE,
    )
    try:
        await wait_serving(f"127.0.0.1:{port}", 20.0)
        async with channel(f"127.0.0.1:{port}", token=token()) as opened:
            held = asyncio.create_task(ask(Stub(opened), "Get", "sleep", timeout=1.0))
            await ask(Stub(opened), "Get", "hello")
            begun = time.monotonic()
            process.send_signal(number)
            await ask(Stub(opened), "Get", "in the beat")
            _, told = await process.communicate()
            assert process.returncode == 0
            assert time.monotonic() - begun < 5.0
            assert b"Traceback" not in told
            with pytest.raises(Transient, match="DEADLINE_EXCEEDED"):
                await held
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
