"""A tiny service for testing the gRPC shell: one method of each kind, whose request is one command word."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import grpc
from google.protobuf.wrappers_pb2 import StringValue

from shared.clock import Clock
from shared.errors import Permanent, Transient
from shared.rpc.deadline import remaining_s
from shared.rpc.errors import Exhausted, FailedPrecondition, NotFound
from shared.rpc.policy import Policy
from shared.rpc.principal import Scope, principal, require_user
from shared.rpc.server import Server
from shared.rpc.tokens import Verifier, generate_key_pair, mint
from shared.telemetry import trace_id

SERVICE = "test.echo.v1.EchoService"
PRIVATE, PUBLIC = generate_key_pair()
OTHER_PRIVATE, _ = generate_key_pair()
EVERYONE = frozenset({Scope.ADMIN, Scope.APP, Scope.USER, Scope.SERVICE})
KINDS = ("Get", "List", "Publish", "Chat")
POLICIES = {
    f"/{SERVICE}/{name}": Policy(scopes=EVERYONE - {Scope.ADMIN}, max_request_bytes=2048, deadline_s=2.0)
    for name in KINDS
} | {f"/{SERVICE}/Operate": Policy(scopes=EVERYONE, max_request_bytes=64, deadline_s=30.0, tenantless=True)}

ERRORS: dict[str, Callable[[], Exception | asyncio.CancelledError]] = {
    "permanent": lambda: Permanent("no_title", "Give the track a title."),
    "not found": lambda: NotFound("no_list", "This user has no list of this date."),
    "precondition": lambda: FailedPrecondition("other_release", "Another release is live; read it again."),
    "transient": lambda: Transient("db-17.internal does not answer"),
    "exhausted": lambda: Exhausted("The queue is full; send again in a minute."),
    "bug": lambda: ValueError("dsn=postgres://svc:hunter2@db/prod"),
    "timeout": lambda: TimeoutError("hunter2"),
    "cancelled": asyncio.CancelledError,
}


class Echo:
    """Counts how often a body ran, and how often one was cancelled."""

    def __init__(self) -> None:
        self.ran = 0
        self.cancelled = 0
        self.seen: list[str] = []
        self.gate = asyncio.Event()
        self.call: Callable[[str], Awaitable[Any]] | None = None

    async def obey(self, word: str) -> StringValue:
        self.ran += 1
        self.seen.append(word)
        if word in ERRORS:
            raise ERRORS[word]()
        if word.startswith("user "):
            require_user(principal(), word.removeprefix("user "))
        if word.startswith("call ") and self.call is not None:
            await self.call(word.removeprefix("call "))
        try:
            if word == "wait":
                await self.gate.wait()
            if word == "sleep":
                await asyncio.sleep(30)
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        caller = principal()
        answer = {
            "tenant": caller.tenant_id, "subject": caller.subject, "scope": caller.scope, "trace": trace_id.get(),
            "word": word, "left": remaining_s(),
        }  # fmt: skip
        return StringValue(value=json.dumps(answer))

    async def get(self, request: StringValue, context: Any) -> StringValue:
        if request.value == "wrong answer":
            return "hunter2"  # type: ignore[return-value]  # the mistake under test
        if request.value == "abort":
            await context.abort(grpc.StatusCode.DATA_LOSS, "chosen by the handler")
        return await self.obey(request.value)

    async def list_(self, request: StringValue, _: Any) -> AsyncIterator[StringValue]:
        try:
            yield await self.obey(request.value)
            if request.value == "flood":
                while True:
                    yield StringValue(value="x" * 65536)
            if request.value == "trickle":
                while True:
                    await asyncio.sleep(0.01)
                    yield StringValue(value="x")
            if request.value == "late bug":
                raise ERRORS["bug"]()
        finally:
            self.seen.append("closed")

    async def publish(self, requests: AsyncIterator[StringValue], _: Any) -> StringValue:
        answer = StringValue(value="{}")
        async for request in requests:
            answer = await self.obey(request.value)
        self.seen.append("end of stream")
        return answer

    async def chat(self, requests: AsyncIterator[StringValue], _: Any) -> AsyncIterator[StringValue]:
        async for request in requests:
            yield await self.obey(request.value)


def add_echo(servicer: Any, server: Any) -> None:
    """Does what generated code does."""
    codec = {"request_deserializer": StringValue.FromString, "response_serializer": StringValue.SerializeToString}
    handlers = {
        "Get": grpc.unary_unary_rpc_method_handler(servicer.get, **codec),
        "Operate": grpc.unary_unary_rpc_method_handler(servicer.get, **codec),
        "List": grpc.unary_stream_rpc_method_handler(servicer.list_, **codec),
        "Publish": grpc.stream_unary_rpc_method_handler(servicer.publish, **codec),
        "Chat": grpc.stream_stream_rpc_method_handler(servicer.chat, **codec),
    }
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))
    server.add_registered_method_handlers(SERVICE, handlers)


class Stub:
    """Does what generated code does; takes our channel and a plain grpc one."""

    def __init__(self, channel: Any) -> None:
        codec = {"request_serializer": StringValue.SerializeToString, "response_deserializer": StringValue.FromString}
        self.get = channel.unary_unary(f"/{SERVICE}/Get", **codec, _registered_method=True)
        self.operate = channel.unary_unary(f"/{SERVICE}/Operate", **codec, _registered_method=True)
        self.list_ = channel.unary_stream(f"/{SERVICE}/List", **codec, _registered_method=True)
        self.publish = channel.stream_unary(f"/{SERVICE}/Publish", **codec, _registered_method=True)
        self.chat = channel.stream_stream(f"/{SERVICE}/Chat", **codec, _registered_method=True)


def token(
    scope: Scope = Scope.USER, *, tenant: str | None = "acme", subject: str = "ann", key: str = PRIVATE, hours: int = 1
) -> str:
    return mint(key, tenant_id=tenant, subject=subject, scope=scope, now=datetime.now(UTC), ttl=timedelta(hours=hours))


SERVICE_TOKEN = token(Scope.SERVICE, tenant=None, subject="materialiser")


def echo_server(
    echo: Echo, *, max_concurrent: int = 8, listen: str = "127.0.0.1:0", public: str = PUBLIC, **more: Any
) -> Server:
    return Server(
        listen,
        policies=POLICIES,
        verifier=Verifier(public, Clock()),
        servicers=[(add_echo, echo)],
        max_concurrent=max_concurrent,
        **more,
    )


async def one(word: str) -> AsyncIterator[StringValue]:
    yield StringValue(value=word)


async def ask(stub: Stub, kind: str, word: str, **options: Any) -> list[StringValue]:
    """Send one word by the method of this kind and give all answers."""
    match kind:
        case "Get":
            return [await stub.get(StringValue(value=word), **options)]
        case "List":
            return [answer async for answer in stub.list_(StringValue(value=word), **options)]
        case "Publish":
            return [await stub.publish(one(word), **options)]
        case _:
            return [answer async for answer in stub.chat(one(word), **options)]


async def settled(condition: Callable[[], bool], within_s: float = 3.0) -> float:
    """Seconds until `condition()` holds."""
    start = time.monotonic()
    while not condition():
        assert time.monotonic() - start < within_s, "it never came about"
        await asyncio.sleep(0.01)
    return time.monotonic() - start
