"""Calling another service: token, tenant, trace id and deadline are added; a status comes back as one of our errors."""

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from types import TracebackType
from typing import Any, Self

import grpc

from shared.errors import MeiriError, Permanent, Transient
from shared.rpc.deadline import remaining_s
from shared.rpc.errors import CODE_OF, Exhausted
from shared.rpc.guard import REASON_HEADER
from shared.rpc.principal import TENANT_HEADER
from shared.telemetry import TRACE_HEADER, new_trace_id, trace_id

# Every method of ours may be sent twice (twice is once), so UNAVAILABLE is retried by grpc itself within the deadline;
# the throttle ends that when more than about one call in ten fails, so that retries do not keep a sick server down.
_SERVICE_CONFIG = {
    "loadBalancingConfig": [{"round_robin": {}}],
    "methodConfig": [
        {
            "name": [{}],
            "retryPolicy": {
                "maxAttempts": 4,
                "initialBackoff": "0.05s",
                "maxBackoff": "1s",
                "backoffMultiplier": 3,
                "retryableStatusCodes": ["UNAVAILABLE"],
            },
        }
    ],
    "retryThrottling": {"maxTokens": 20, "tokenRatio": 0.1},
}

_tenant: ContextVar[str | None] = ContextVar("tenant_scope", default=None)


@contextmanager
def tenant_scope(tenant_id: str) -> Iterator[None]:
    """Let calls made inside (by this task and those it starts) act for this tenant: for service-scope tokens."""
    token = _tenant.set(tenant_id)
    try:
        yield
    finally:
        _tenant.reset(token)


def channel(
    address: str,
    *,
    token: str | None = None,
    default_deadline_s: float = 5.0,
    max_response_bytes: int = 16 * 1024 * 1024,
    options: Sequence[tuple[str, int | str]] = (),
) -> "Channel":
    """Open a channel to host:port that generated stubs take as theirs: `await XStub(opened).Get(request)`.

    A call without `timeout=` gets `default_deadline_s`, and inside an rpc never more than that rpc has left. Failures
    raise Transient, Permanent or a subclass of `shared.rpc.errors`. One channel per process and address is enough.
    """
    return Channel(
        grpc.aio.insecure_channel(
            address,
            options=(
                ("grpc.service_config", json.dumps(_SERVICE_CONFIG)),
                ("grpc.max_receive_message_length", max_response_bytes),
                ("grpc.enable_http_proxy", 0),
                ("grpc.keepalive_time_ms", 60_000),
                ("grpc.keepalive_timeout_ms", 10_000),
                # A restarted server is found again within about a second; grpc's own limit is two minutes.
                ("grpc.initial_reconnect_backoff_ms", 100),
                ("grpc.min_reconnect_backoff_ms", 500),
                ("grpc.max_reconnect_backoff_ms", 1000),
                *options,
            ),
        ),
        token,
        default_deadline_s,
    )


class Channel:
    """What generated stubs use of a grpc channel."""

    def __init__(self, inner: Any, token: str | None, default_deadline_s: float) -> None:
        self._inner = inner
        self._token = token
        self._default_deadline_s = default_deadline_s

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        await self._inner.close()

    def unary_unary(self, method: str, *args: Any, **kwargs: Any) -> Callable[..., Awaitable[Any]]:
        return self._answer(self._inner.unary_unary(method, *args, **kwargs))

    def stream_unary(self, method: str, *args: Any, **kwargs: Any) -> Callable[..., Awaitable[Any]]:
        return self._answer(self._inner.stream_unary(method, *args, **kwargs))

    def unary_stream(self, method: str, *args: Any, **kwargs: Any) -> Callable[..., AsyncGenerator[Any, None]]:
        return self._answers(self._inner.unary_stream(method, *args, **kwargs))

    def stream_stream(self, method: str, *args: Any, **kwargs: Any) -> Callable[..., AsyncGenerator[Any, None]]:
        return self._answers(self._inner.stream_stream(method, *args, **kwargs))

    def _answer(self, call: Any) -> Callable[..., Awaitable[Any]]:
        async def answer(
            request: Any,
            *,
            timeout: float | None = None,  # noqa: ASYNC109  grpc's own word
            metadata: Sequence[tuple[str, str]] = (),
        ) -> Any:
            sent = _Requests(request) if isinstance(request, AsyncIterator) else request
            try:
                return await call(sent, timeout=self._deadline_s(timeout), metadata=self._metadata(metadata))
            except grpc.aio.AioRpcError as error:
                raise _error(error) from error
            except asyncio.CancelledError:
                _raise_if_not_cancelled(sent)
                raise

        return answer

    def _answers(self, call: Any) -> Callable[..., AsyncGenerator[Any, None]]:
        async def answers(
            request: Any,
            *,
            timeout: float | None = None,  # noqa: ASYNC109  grpc's own word
            metadata: Sequence[tuple[str, str]] = (),
        ) -> AsyncGenerator[Any, None]:
            sent = _Requests(request) if isinstance(request, AsyncIterator) else request
            running = call(sent, timeout=self._deadline_s(timeout), metadata=self._metadata(metadata))
            try:
                async for answer in running:
                    yield answer
            except grpc.aio.AioRpcError as error:
                raise _error(error) from error
            except asyncio.CancelledError:
                _raise_if_not_cancelled(sent)
                raise
            finally:
                running.cancel()  # a reader that stops early also stops the server; after the end it does nothing

        return answers

    def _deadline_s(self, given_s: float | None) -> float:
        wanted_s = self._default_deadline_s if given_s is None else given_s
        left_s = remaining_s()
        return wanted_s if left_s is None else min(wanted_s, left_s)

    def _metadata(self, given: Sequence[tuple[str, str]]) -> tuple[tuple[str, str], ...]:
        added = [(TRACE_HEADER, trace_id.get() or new_trace_id())]
        if self._token is not None:
            added.append(("authorization", f"Bearer {self._token}"))
        if (tenant_id := _tenant.get()) is not None:
            added.append((TENANT_HEADER, tenant_id))
        names = {name for name, _ in given}
        return (*given, *(pair for pair in added if pair[0] not in names))


class _Requests:
    """A request stream that keeps the exception of its source, which grpc would turn into a bare cancellation."""

    def __init__(self, source: AsyncIterator[Any]) -> None:
        self._source = source
        self.error: Exception | None = None

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Any:
        try:
            return await anext(self._source)
        except StopAsyncIteration:
            raise
        except Exception as error:
            self.error = error
            raise


def _raise_if_not_cancelled(sent: Any) -> None:
    """Tell a cancelled call from a cancelled task: grpc raises CancelledError for both."""
    if isinstance(sent, _Requests) and sent.error is not None:
        raise sent.error
    task = asyncio.current_task()
    if task is not None and not task.cancelling():
        raise Transient("The call was cancelled before it had an answer; send it again.")


_ERROR_OF: dict[grpc.StatusCode, type[MeiriError]] = {code: kind for kind, code in CODE_OF.items()}
_PERMANENT = {grpc.StatusCode.UNIMPLEMENTED, grpc.StatusCode.OUT_OF_RANGE, grpc.StatusCode.ALREADY_EXISTS}


def _error(status: Any) -> MeiriError:
    """Our error for a gRPC status. A failure inside the other service is Transient: it is no fault of this request."""
    code, sentence = status.code(), str(status.details() or "")
    reason = next((str(v) for k, v in status.trailing_metadata() or () if k == REASON_HEADER), code.name.lower())
    if code is grpc.StatusCode.RESOURCE_EXHAUSTED and "larger than max" in sentence:
        return Permanent("message_too_large", "The message is larger than the other side takes; send smaller ones.")
    kind = _ERROR_OF.get(code, Permanent if code in _PERMANENT else Transient)
    if issubclass(kind, Permanent):
        return kind(reason, sentence or f"The call was refused with {code.name}.")
    return Exhausted(sentence) if kind is Exhausted else Transient(f"{code.name}: {sentence}")
