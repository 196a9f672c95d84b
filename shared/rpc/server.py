"""A gRPC server that serves only methods with a policy, answers health questions, and drains when told to stop."""

import asyncio
import signal
from collections.abc import Callable, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Any, Self

import grpc
import structlog
from google.protobuf.internal import api_implementation
from grpc_health.v1 import health_pb2_grpc

from shared.errors import Unusable
from shared.rpc.guard import Guard
from shared.rpc.health import Health
from shared.rpc.metrics import Metrics
from shared.rpc.policy import Policies, complete
from shared.rpc.tokens import Verifier

log = structlog.get_logger()

AddServicer = Callable[[Any, Any], None]
"""The generated `add_<Service>Servicer_to_server`."""

WINDOW_S = 60.0
"""How often the counts of calls are logged, where there were calls."""


class Server:
    """`async with Server(...) as server: await server.health.set(True); await server.serve_until_stopped()`.

    `listen` is host:port (port 0: a free one, told by `port`). At most `max_concurrent` calls are worked on, the next
    is refused at once with RESOURCE_EXHAUSTED; health questions are not counted. Unusable: a method without a policy,
    a policy without a method, a port that is taken. Health says NOT_SERVING until the service sets it.
    """

    def __init__(
        self,
        listen: str,
        *,
        policies: Policies,
        verifier: Verifier,
        servicers: Sequence[tuple[AddServicer, object]],
        max_concurrent: int,
        grace_s: float = 5.0,
        beat_s: float = 0.5,
    ) -> None:
        self.health = Health()
        self.metrics = Metrics()
        self.port = 0
        self._listen = listen
        self._policies = policies
        self._servicers = servicers
        self._guard = Guard(verifier, self.metrics, max_concurrent)
        self._grace_s = grace_s
        self._beat_s = beat_s
        self._stop = asyncio.Event()
        self._grpc: Any = None
        self._windows: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        if api_implementation.Type() == "python":
            raise Unusable("The pure-Python protobuf runtime can be crashed by nested input; install protobuf's wheel.")
        registrar = _Registrar()
        for add, servicer in self._servicers:
            add(servicer, registrar)
        complete(self._policies, registrar.methods)
        server = grpc.aio.server(options=self._options())
        for service, handlers in registrar.services.items():
            guarded = {
                name: self._guard.wrap(method, self._policies[method], handler)
                for name, handler in handlers.items()
                for method in (f"/{service}/{name}",)
            }
            server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, guarded),))
        # Health is registered past the guard: a probe has no token, and must be answered when there is no room.
        health_pb2_grpc.add_HealthServicer_to_server(self.health.servicer, server)
        await self.health.set(serving=False)
        try:
            self.port = server.add_insecure_port(self._listen)
        except RuntimeError:
            self.port = 0
        if not self.port:
            raise Unusable(f"Cannot listen on {self._listen}: the port is taken or the address is not this machine's.")
        await server.start()
        self._grpc = server
        self._windows = asyncio.create_task(self._log_windows())
        log.info("rpc.listening", listen=self._listen, port=self.port, services=sorted(registrar.services))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._drain(beat_s=0.0, grace_s=0.0 if kind else self._grace_s)

    def stop(self) -> None:
        """Make `serve_until_stopped` return, as SIGTERM does."""
        self._stop.set()

    async def serve_until_stopped(self) -> None:
        """Until SIGTERM, SIGINT or `stop`; then say NOT_SERVING, give balancers a beat, let calls in flight end."""
        loop = asyncio.get_running_loop()
        signals = (signal.SIGTERM, signal.SIGINT)
        for number in signals:
            loop.add_signal_handler(number, self._stop.set)
        try:
            await self._stop.wait()
            log.info("rpc.draining", in_flight=self.metrics.in_flight)
            await self._drain(beat_s=self._beat_s, grace_s=self._grace_s)
        finally:
            for number in signals:
                loop.remove_signal_handler(number)

    async def _drain(self, *, beat_s: float, grace_s: float) -> None:
        server, self._grpc = self._grpc, None
        if server is None:
            return
        await self.health.drain()
        await asyncio.sleep(beat_s)
        await server.stop(grace_s)
        if self._windows is not None:
            self._windows.cancel()
            with suppress(asyncio.CancelledError):
                await self._windows
        self._log_window()

    async def _log_windows(self) -> None:
        while True:
            await asyncio.sleep(WINDOW_S)
            self._log_window()

    def _log_window(self) -> None:
        if calls := self.metrics.take():
            log.info("rpc.window", calls=calls, in_flight=self.metrics.in_flight)

    def _options(self) -> tuple[tuple[str, int], ...]:
        largest = max((policy.max_request_bytes for policy in self._policies.values()), default=0)
        return (
            # Otherwise the kernel lets two servers share one port, and each answers half of the calls.
            ("grpc.so_reuseport", 0),
            # Each method judges its own limit; beyond the largest the message is not even read into memory.
            ("grpc.max_receive_message_length", largest + 1024),
            ("grpc.http2.min_recv_ping_interval_without_data_ms", 30_000),
            ("grpc.keepalive_permit_without_calls", 1),
        )


class _Registrar:
    """Stands where the generated code expects a server, and keeps the handlers it is given."""

    def __init__(self) -> None:
        self.services: dict[str, dict[str, Any]] = {}

    @property
    def methods(self) -> list[str]:
        return [f"/{service}/{name}" for service, handlers in self.services.items() for name in handlers]

    def add_generic_rpc_handlers(self, handlers: Any) -> None:
        """Ignore these: the same handlers in an opaque form, which generated code registers first."""

    def add_registered_method_handlers(self, service: str, handlers: dict[str, Any]) -> None:
        self.services[service] = dict(handlers)
