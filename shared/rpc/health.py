"""Whether a server is ready for calls, in the standard grpc.health.v1 way, and how to wait for one that is."""

import asyncio
import time
from collections.abc import Collection

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from shared.errors import Transient

_SERVING = health_pb2.HealthCheckResponse.SERVING
_NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


class Health:
    """The health of one server: NOT_SERVING until the service says that it is ready, and for good once it drains."""

    def __init__(self) -> None:
        self.servicer = health.aio.HealthServicer()
        self.serving = False
        self._draining = False

    async def set(self, serving: bool) -> None:
        self.serving = serving and not self._draining
        await self.servicer.set("", _SERVING if self.serving else _NOT_SERVING)

    async def follow(self, stuck: Collection[object]) -> None:
        """Say once a second, until cancelled, that the server is ready while nothing is `stuck`."""
        while True:
            await self.set(serving=not stuck)
            await asyncio.sleep(1.0)

    async def drain(self) -> None:
        self._draining = True
        await self.set(serving=False)


async def is_serving(address: str, timeout_s: float) -> bool:
    """One question to `address` (host:port): False when it says no, does not answer or cannot be reached."""
    async with grpc.aio.insecure_channel(address, options=(("grpc.enable_http_proxy", 0),)) as channel:
        try:
            answer = await health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=timeout_s)
        except grpc.aio.AioRpcError:
            return False
        return bool(answer.status == _SERVING)


async def wait_serving(address: str, timeout_s: float) -> None:
    """Return as soon as the server at `address` is ready; Transient when it is not within `timeout_s`."""
    end = time.monotonic() + timeout_s
    while not await is_serving(address, timeout_s=min(1.0, max(0.05, end - time.monotonic()))):
        if time.monotonic() >= end:
            raise Transient(f"{address} is not ready after {timeout_s:g} s; look at the log of the service there.")
        await asyncio.sleep(0.1)
