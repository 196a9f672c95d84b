"""One call's path, top to bottom: trace → deadline → token → policy → room → the handler → how it ended."""

import asyncio
import inspect
import re
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from typing import Any

import grpc
import structlog
from google.protobuf.message import DecodeError

from shared.errors import Permanent, Transient, Unusable
from shared.ids import TenantId
from shared.rpc import deadline
from shared.rpc import principal as principals
from shared.rpc.errors import Exhausted, PermissionDenied, Unauthenticated, code_of
from shared.rpc.metrics import Metrics
from shared.rpc.policy import Policy
from shared.rpc.principal import TENANT_HEADER, Principal, require_tenant
from shared.rpc.tokens import Verifier
from shared.telemetry import TRACE_HEADER, bound_trace, new_trace_id

log = structlog.get_logger()

REASON_HEADER = "meiri-reason"
"""The trailing metadata with the reason code of a refused call."""
MAX_SENTENCE = 500
"""Statuses travel in headers, which are small."""

_TRACE = re.compile(r"[A-Za-z0-9-]{1,64}")
_UNAVAILABLE = "The service cannot answer now; send the call again later."
_LATE = "The call took longer than its deadline and was stopped."

Metadata = dict[str, str | bytes]
Behaviour = Callable[[Any, Any], Awaitable[bytes | None]]


class Guard:
    """Puts the path in front of handlers.

    What grpc calls is our own coroutine; a refused call has no way from there into the handler's body.
    """

    def __init__(self, verifier: Verifier, metrics: Metrics, max_concurrent: int) -> None:
        self._verifier = verifier
        self._metrics = metrics
        self._max_concurrent = max_concurrent

    def wrap(self, method: str, policy: Policy, handler: Any) -> Any:
        """The handler that grpc gets: in bytes, so that sizes and parse errors are ours to judge."""
        behaviour = self._behaviour(method, policy, _runner(method, policy, handler))
        if handler.response_streaming:
            make = (
                grpc.stream_stream_rpc_method_handler
                if handler.request_streaming
                else grpc.unary_stream_rpc_method_handler
            )
            return make(behaviour)
        make = (
            grpc.stream_unary_rpc_method_handler if handler.request_streaming else grpc.unary_unary_rpc_method_handler
        )
        return make(behaviour)

    def _behaviour(self, method: str, policy: Policy, run: Behaviour) -> Behaviour:
        async def behaviour(request: Any, context: Any) -> bytes | None:
            metadata: Metadata = dict(context.invocation_metadata())
            trace = _trace_id(metadata)
            context.set_trailing_metadata(((TRACE_HEADER, trace),))
            with bound_trace(trace):
                try:
                    budget_s = _budget_s(context.time_remaining(), policy)
                    caller = _admit(self._authenticate(metadata), metadata, policy)
                    self._take_room()
                except (Permanent, Exhausted) as refusal:
                    self._metrics.ended(method, "shed" if isinstance(refusal, Exhausted) else refusal.reason)
                    ending = _ending(refusal)
                else:
                    try:
                        principals.current.set(caller)
                        deadline.ends_at.set(time.monotonic() + budget_s)
                        result = await self._run(method, budget_s, run, request, context)
                    finally:
                        self._metrics.in_flight -= 1
                    if not isinstance(result, _Ending):
                        return result
                    ending = result
                await context.abort(
                    ending.code, ending.sentence, ((REASON_HEADER, ending.reason), (TRACE_HEADER, trace))
                )
                return None  # not reached: abort raises

        return behaviour

    async def _run(
        self, method: str, budget_s: float, run: Behaviour, request: Any, context: Any
    ) -> "bytes | _Ending | None":
        limit = asyncio.timeout(budget_s)
        try:
            async with limit:
                answer = await run(request, context)
        except (Permanent, Transient) as error:
            if not _is_ours(error):
                return self._failed(method, error)
            if isinstance(error, Permanent):
                self._metrics.ended(method, error.reason)
            elif isinstance(error, Exhausted):
                self._metrics.ended(method, "shed")
            else:
                self._metrics.ended(method, "unavailable")
                log.warning("rpc.unavailable", method=method, error=str(error))
            return _ending(error)
        except grpc.aio.AbortError:
            # The handler chose a status through its context: that is its answer, and grpc insists on this exception.
            self._metrics.ended(method, "aborted")
            raise
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                self._metrics.ended(method, "cancelled")
                raise
            # Something inside the handler was cancelled, not the call: grpc would leave the client without an answer.
            return self._failed(method, error)
        except TimeoutError as error:
            if not limit.expired():
                return self._failed(method, error)
            self._metrics.ended(method, "deadline_exceeded")
            log.warning("rpc.deadline_exceeded", method=method, budget_s=round(budget_s, 3))
            return _Ending(grpc.StatusCode.DEADLINE_EXCEEDED, _LATE, "deadline_exceeded")
        except Exception as error:  # noqa: BLE001  the boundary: whatever it is, its text stays in the log
            return self._failed(method, error)
        self._metrics.ended(method, "ok")
        return answer

    def _failed(self, method: str, error: BaseException) -> "_Ending":
        error_id = secrets.token_hex(8)
        self._metrics.ended(method, "failed")
        log.error("rpc.failed", method=method, error_id=error_id, exc_info=error)
        return _Ending(grpc.StatusCode.INTERNAL, f"error {error_id}; see the log event rpc.failed", "internal")

    def _authenticate(self, metadata: Metadata) -> Principal:
        kind, _, token = str(metadata.get("authorization", "")).partition(" ")
        if kind.lower() != "bearer":
            raise Unauthenticated
        return self._verifier.verify(token)

    def _take_room(self) -> None:
        if self._metrics.in_flight >= self._max_concurrent:
            raise Exhausted("The service has as many calls as it can work on; send the call again later.")
        self._metrics.in_flight += 1


class _Ending:
    """How a call that gives no answer ends."""

    def __init__(self, code: grpc.StatusCode, sentence: str, reason: str) -> None:
        self.code = code
        self.sentence = sentence[:MAX_SENTENCE]
        self.reason = reason


def _ending(error: Permanent | Transient) -> _Ending:
    if isinstance(error, Permanent):
        return _Ending(code_of(error), str(error), error.reason)
    # A transient error's sentence may name our own insides (a server, a table): only Exhausted speaks to the caller.
    sentence = str(error) if isinstance(error, Exhausted) else _UNAVAILABLE
    return _Ending(code_of(error), sentence, "exhausted" if isinstance(error, Exhausted) else "unavailable")


def _is_ours(error: Permanent | Transient) -> bool:
    """Tell a refusal of the caller from one of *our* token by another service, which is no fault of the caller."""
    return not (
        isinstance(error, PermissionDenied | Unauthenticated) and isinstance(error.__cause__, grpc.aio.AioRpcError)
    )


def _trace_id(metadata: Metadata) -> str:
    given = metadata.get(TRACE_HEADER)
    return given if isinstance(given, str) and _TRACE.fullmatch(given) else new_trace_id()


def _budget_s(asked_s: float | None, policy: Policy) -> float:
    if asked_s is None:
        raise Permanent("deadline_missing", "Give this call a deadline; no call may wait for ever.")
    return min(asked_s, policy.deadline_s)


def _admit(caller: Principal, metadata: Metadata, policy: Policy) -> Principal:
    """Find the tenant this call is for; PermissionDenied where the policy does not let it in."""
    if caller.scope not in policy.scopes:
        raise PermissionDenied("scope_denied", f"This method is not for tokens of scope {caller.scope}.")
    named = metadata.get(TENANT_HEADER)
    if named is not None and caller.tenant_id is None:  # a service of ours, or the operator
        caller = Principal(TenantId(str(named)) if named else None, caller.subject, caller.scope)
    elif named is not None and named != caller.tenant_id:
        raise PermissionDenied("other_tenant", "This token allows calls about its own tenant only.")
    if not policy.tenantless:
        require_tenant(caller)
    return caller


def _runner(method: str, policy: Policy, handler: Any) -> Behaviour:
    """Make the four kinds of handler one kind of coroutine, so that the deadline also covers a slow reader."""
    body = next(filter(None, (handler.unary_unary, handler.unary_stream, handler.stream_unary, handler.stream_stream)))
    is_stream = inspect.isasyncgenfunction(body)
    if is_stream != handler.response_streaming or not (is_stream or inspect.iscoroutinefunction(body)):
        wanted = "async def that yields" if handler.response_streaming else "async def"
        raise Unusable(f"The handler of {method} is not an {wanted}; write it as one.")

    def parse(raw: bytes) -> Any:
        if len(raw) > policy.max_request_bytes:
            raise Permanent(
                "request_too_large",
                f"The request has {len(raw)} bytes and may have {policy.max_request_bytes}; send smaller ones.",
            )
        try:
            return handler.request_deserializer(raw)
        except DecodeError:
            raise Permanent(
                "request_malformed", "The request is not a message of this method; check both versions of the contract."
            ) from None

    async def parsed(requests: AsyncIterator[bytes], context: Any) -> AsyncIterator[Any]:
        async for raw in requests:
            yield parse(raw)
        if not handler.response_streaming:
            await _caller_is_there(context)

    async def run(request: Any, context: Any) -> bytes | None:
        argument = parsed(request, context) if handler.request_streaming else parse(request)
        if not handler.response_streaming:
            answer: bytes = handler.response_serializer(await body(argument, context))
            return answer
        async with aclosing(body(argument, context)) as answers:
            async for answer in answers:
                await context.write(handler.response_serializer(answer))
        return None

    return run


async def _caller_is_there(context: Any) -> None:
    """Return at the true end of a request stream only.

    A stream that broke off (the caller cancelled, died or ran out of time) looks to the handler as if it ended, some
    moments before the cancellation reaches it. Writing to the call fails then, and succeeds after a true end.
    """
    try:
        await context.send_initial_metadata(())
    except grpc.aio.BaseError:
        await asyncio.sleep(1.0)  # the cancellation arrives here
        raise Transient("The request stream broke off.") from None
