"""Nobody gets in who should not: every kind of method, every kind of caller, over real sockets."""

import json

import grpc
import pytest
from google.protobuf.wrappers_pb2 import StringValue

from shared.rpc.client import channel, tenant_scope
from shared.rpc.errors import PermissionDenied
from shared.rpc.guard import REASON_HEADER
from shared.rpc.principal import Scope
from tests.integration.rpc_echo import (
    KINDS,
    OTHER_PRIVATE,
    SERVICE,
    SERVICE_TOKEN,
    Echo,
    Stub,
    ask,
    echo_server,
    token,
)


def bearer(text: str, **more: str) -> tuple[tuple[str, str], ...]:
    return (("authorization", f"Bearer {text}"), *((name.replace("_", "-"), value) for name, value in more.items()))


UNAUTHENTICATED, DENIED = grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED
DENIALS = {
    "no token": ((), UNAUTHENTICATED, "unauthenticated"),
    "no bearer": ((("authorization", token()),), UNAUTHENTICATED, "unauthenticated"),
    "expired": (bearer(token(hours=-1)), UNAUTHENTICATED, "unauthenticated"),
    "wrong key": (bearer(token(key=OTHER_PRIVATE)), UNAUTHENTICATED, "unauthenticated"),
    "wrong scope": (bearer(token(Scope.ADMIN)), DENIED, "scope_denied"),
    "wrong tenant": (bearer(token(), meiri_tenant="globex"), DENIED, "other_tenant"),
    "app of another tenant": (bearer(token(Scope.APP), meiri_tenant="globex"), DENIED, "other_tenant"),
    "service without tenant": (bearer(SERVICE_TOKEN), DENIED, "tenant_missing"),
    "service with empty tenant": (bearer(SERVICE_TOKEN, meiri_tenant=""), DENIED, "tenant_missing"),
}


@pytest.mark.parametrize("denial", DENIALS)
async def test_a_denied_call_never_runs_the_handler(denial: str) -> None:
    metadata, code, reason = DENIALS[denial]
    echo = Echo()
    async with (
        echo_server(echo) as server,
        grpc.aio.insecure_channel(f"127.0.0.1:{server.port}") as plain,
    ):
        for kind in KINDS:
            with pytest.raises(grpc.aio.AioRpcError) as refusal:
                await ask(Stub(plain), kind, "hello", metadata=metadata, timeout=2)
            assert (refusal.value.code(), dict(refusal.value.trailing_metadata())[REASON_HEADER]) == (code, reason)
        assert echo.ran == 0
        assert server.metrics.take() == {f"/{SERVICE}/{kind}": {reason: 1} for kind in sorted(KINDS)}


@pytest.mark.parametrize("kind", KINDS)
async def test_a_call_without_deadline_is_refused_before_its_token_is_looked_at(kind: str) -> None:
    echo = Echo()
    async with echo_server(echo) as server, grpc.aio.insecure_channel(f"127.0.0.1:{server.port}") as plain:
        with pytest.raises(grpc.aio.AioRpcError) as refusal:
            await ask(Stub(plain), kind, "hello")
    assert refusal.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert refusal.value.details() == "Give this call a deadline; no call may wait for ever."
    assert echo.ran == 0


@pytest.mark.parametrize("kind", KINDS)
async def test_a_user_reaches_itself_and_no_other_user(kind: str) -> None:
    async with (
        echo_server(Echo()) as server,
        channel(f"127.0.0.1:{server.port}", token=token(subject="ann")) as opened,
    ):
        (answer,) = await ask(Stub(opened), kind, "user ann")
        assert json.loads(answer.value)["subject"] == "ann"
        with pytest.raises(PermissionDenied, match="own user") as refusal:
            await ask(Stub(opened), kind, "user bob")
    assert refusal.value.reason == "other_user"


async def test_each_scope_acts_for_the_tenant_it_may_act_for() -> None:
    async with echo_server(Echo()) as server:
        address = f"127.0.0.1:{server.port}"
        async with channel(address, token=token(Scope.APP, subject="backend")) as opened:
            (answer,) = await ask(Stub(opened), "Get", "user bob")
            assert json.loads(answer.value)["tenant"] == "acme"
        async with channel(address, token=SERVICE_TOKEN) as opened:
            for tenant in ("acme", "globex"):
                with tenant_scope(tenant):
                    (answer,) = await ask(Stub(opened), "Get", "hello")
                assert json.loads(answer.value)["tenant"] == tenant
            answer = await Stub(opened).operate(StringValue(value="hello"))
            assert json.loads(answer.value)["tenant"] is None
        async with channel(address, token=token(Scope.ADMIN, tenant=None, subject="root")) as opened:
            answer = await Stub(opened).operate(StringValue(value="hello"))
            assert json.loads(answer.value) | {"trace": "", "left": 0} == {
                "tenant": None, "subject": "root", "scope": "admin", "word": "hello", "trace": "", "left": 0,
            }  # fmt: skip
            with tenant_scope("globex"):
                answer = await Stub(opened).operate(StringValue(value="hello"))
            assert json.loads(answer.value)["tenant"] == "globex"
        async with channel(address, token=token(Scope.ADMIN, tenant="acme", subject="root")) as opened:
            with tenant_scope("globex"), pytest.raises(PermissionDenied, match="own tenant"):
                await Stub(opened).operate(StringValue(value="hello"))


@pytest.mark.parametrize("kind", KINDS)
async def test_a_request_over_the_methods_limit_or_malformed_never_reaches_the_handler(kind: str) -> None:
    echo = Echo()
    async with echo_server(echo) as server, grpc.aio.insecure_channel(f"127.0.0.1:{server.port}") as plain:
        metadata = bearer(token())
        with pytest.raises(grpc.aio.AioRpcError) as refusal:
            await ask(Stub(plain), kind, "x" * 2500, metadata=metadata, timeout=2)
        assert refusal.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert "may have 2048" in refusal.value.details()
        with pytest.raises(grpc.aio.AioRpcError) as refusal:
            await ask(Stub(plain), kind, "x" * 9_000_000, metadata=metadata, timeout=2)
        assert refusal.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        if kind == "Get":
            with pytest.raises(grpc.aio.AioRpcError) as refusal:
                await plain.unary_unary(f"/{SERVICE}/Get")(b"\x0a\xff", metadata=metadata, timeout=2)
            assert refusal.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert echo.ran == 0


async def test_reflection_and_unknown_methods_are_not_served() -> None:
    async with echo_server(Echo()) as server, grpc.aio.insecure_channel(f"127.0.0.1:{server.port}") as plain:
        for method in ("/grpc.reflection.v1.ServerReflection/ServerReflectionInfo", f"/{SERVICE}/Drop"):
            with pytest.raises(grpc.aio.AioRpcError) as refusal:
                await plain.unary_unary(method)(b"", metadata=bearer(token()), timeout=2)
            assert refusal.value.code() is grpc.StatusCode.UNIMPLEMENTED
