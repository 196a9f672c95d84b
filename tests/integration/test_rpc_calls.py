"""What a caller gets when calls fail, last too long or are cancelled, over real sockets."""

import asyncio
import json
import time
from collections.abc import AsyncIterator

import grpc
import pytest
from google.protobuf.wrappers_pb2 import StringValue
from structlog.testing import capture_logs

from shared.errors import Permanent, Transient
from shared.rpc.client import channel, tenant_scope
from shared.rpc.errors import Exhausted, FailedPrecondition, NotFound
from shared.telemetry import bound_trace
from tests.integration.rpc_echo import KINDS, SERVICE, SERVICE_TOKEN, Echo, Stub, ask, echo_server, one, settled, token

GET = f"/{SERVICE}/Get"


def handler_tasks() -> list[str]:
    return [task.get_name() for task in asyncio.all_tasks() if "HandleExceptions" in task.get_name()]


@pytest.mark.parametrize("kind", KINDS)
async def test_an_error_keeps_its_type_its_reason_and_its_sentence(kind: str) -> None:
    async with echo_server(Echo()) as server, channel(f"127.0.0.1:{server.port}", token=token()) as opened:
        stub = Stub(opened)
        for word, error, reason, sentence in (
            ("permanent", Permanent, "no_title", "Give the track a title."),
            ("not found", NotFound, "no_list", "This user has no list of this date."),
            ("precondition", FailedPrecondition, "other_release", "Another release is live; read it again."),
        ):
            with pytest.raises(Permanent) as refusal:
                await ask(stub, kind, word)
            assert (type(refusal.value), refusal.value.reason, str(refusal.value)) == (error, reason, sentence)
        with pytest.raises(Exhausted, match=r"^The queue is full; send again in a minute\.$"):
            await ask(stub, kind, "exhausted")
        with pytest.raises(Transient, match=r"^UNAVAILABLE: The service cannot answer now") as later:
            await ask(stub, kind, "transient")
        assert "db-17" not in str(later.value)


@pytest.mark.parametrize(
    ("kind", "word"),
    [("Get", "wrong answer"), *((kind, word) for kind in KINDS for word in ("bug", "timeout", "cancelled"))],
)
async def test_an_unexpected_exception_is_told_by_an_id_and_its_text_stays_in_the_log(kind: str, word: str) -> None:
    async with (
        echo_server(Echo()) as server,
        grpc.aio.insecure_channel(f"127.0.0.1:{server.port}") as plain,
    ):
        start = time.monotonic()
        with capture_logs() as logs, pytest.raises(grpc.aio.AioRpcError) as failure:
            await ask(Stub(plain), kind, word, metadata=(("authorization", f"Bearer {token()}"),), timeout=2)
        assert time.monotonic() - start < 1.9  # it did not wait for the deadline
    (line,) = (entry for entry in logs if entry["event"] == "rpc.failed")
    assert failure.value.code() is grpc.StatusCode.INTERNAL
    assert failure.value.details() == f"error {line['error_id']}; see the log event rpc.failed"
    assert line["exc_info"] is not None
    told = f"{failure.value.details()} {failure.value.trailing_metadata()} {failure.value.debug_error_string()}"
    for secret in ("hunter2", "postgres", "ValueError", "Traceback"):
        assert secret not in told


async def test_a_stream_that_fails_in_its_middle_gives_what_came_before() -> None:
    async with echo_server(Echo()) as server, channel(f"127.0.0.1:{server.port}", token=token()) as opened:
        answers = Stub(opened).list_(StringValue(value="late bug"))
        assert await anext(answers)
        with pytest.raises(Transient, match=r"^INTERNAL: error [0-9a-f]{16}; see the log event rpc\.failed$"):
            await anext(answers)


async def test_a_handler_may_choose_a_status_itself() -> None:
    async with echo_server(Echo()) as server, channel(f"127.0.0.1:{server.port}", token=token()) as opened:
        with pytest.raises(Transient, match="DATA_LOSS: chosen by the handler"):
            await Stub(opened).get(StringValue(value="abort"))


async def test_one_line_is_logged_per_failure_and_none_per_success() -> None:
    async with echo_server(Echo()) as server, channel(f"127.0.0.1:{server.port}", token=token()) as opened:
        with capture_logs() as logs:
            for kind in KINDS:
                await ask(Stub(opened), kind, "hello")
            assert logs == []
            with pytest.raises(Permanent):
                await ask(Stub(opened), "Get", "permanent")
            assert logs == []
            with pytest.raises(Transient):
                await ask(Stub(opened), "List", "bug")
        assert [(line["event"], line["method"]) for line in logs] == [("rpc.failed", f"/{SERVICE}/List")]
        counts = server.metrics.take()
        assert counts[GET] == {"ok": 1, "no_title": 1}
        assert counts[f"/{SERVICE}/List"] == {"ok": 1, "failed": 1}
        assert server.metrics.take() == {}


@pytest.mark.parametrize("kind", KINDS)
async def test_the_clients_deadline_cancels_the_handler(kind: str) -> None:
    echo = Echo()
    async with echo_server(echo) as server, channel(f"127.0.0.1:{server.port}", token=token()) as opened:
        start = time.monotonic()
        with pytest.raises(Transient, match="DEADLINE_EXCEEDED"):
            await ask(Stub(opened), kind, "sleep", timeout=0.2)
        assert time.monotonic() - start < 1.9  # the policy's would be 2 s
        await settled(lambda: echo.cancelled == 1 and not handler_tasks())
        assert server.metrics.in_flight == 0


@pytest.mark.parametrize("kind", KINDS)
async def test_the_policys_deadline_holds_for_a_client_that_asks_for_more(kind: str) -> None:
    echo = Echo()
    async with echo_server(echo) as server, channel(f"127.0.0.1:{server.port}", token=token()) as opened:
        start = time.monotonic()
        with capture_logs() as logs, pytest.raises(Transient, match="stopped"):
            await ask(Stub(opened), kind, "sleep", timeout=60)
        assert 1.9 < time.monotonic() - start < 8
        assert echo.cancelled == 1
        assert [line["event"] for line in logs] == ["rpc.deadline_exceeded"]


async def test_a_reader_that_does_not_read_is_cut_off_at_the_deadline() -> None:
    echo = Echo()
    async with (
        echo_server(echo) as server,
        grpc.aio.insecure_channel(f"127.0.0.1:{server.port}") as plain,
    ):
        call = Stub(plain).list_(
            StringValue(value="flood"), metadata=(("authorization", f"Bearer {token()}"),), timeout=20
        )
        await call.read()
        assert await settled(lambda: "closed" in echo.seen and server.metrics.in_flight == 0) > 1.5
        assert server.metrics.count("deadline_exceeded") == 1
        call.cancel()


async def test_a_handlers_own_calls_get_no_more_time_than_the_handler_has() -> None:
    outer, inner = Echo(), Echo()
    async with (
        echo_server(inner) as below,
        echo_server(outer) as above,
        channel(f"127.0.0.1:{below.port}", token=SERVICE_TOKEN) as down,
        channel(f"127.0.0.1:{above.port}", token=token()) as opened,
    ):

        async def call(word: str) -> None:
            with tenant_scope("acme"):
                await Stub(down).get(StringValue(value=word), timeout=30)

        outer.call = call
        with bound_trace("trace-of-a-play"):
            answer = json.loads((await Stub(opened).get(StringValue(value="call hello"), timeout=1.0)).value)
        assert answer["trace"] == "trace-of-a-play"
        assert 0.5 < answer["left"] <= 1.0
        with pytest.raises(Transient, match="DEADLINE_EXCEEDED"):
            await Stub(opened).get(StringValue(value="call sleep"), timeout=0.3)
        await settled(lambda: inner.cancelled == 1, 1.0)


async def test_our_own_refused_token_is_no_fault_of_the_caller() -> None:
    outer = Echo()
    async with (
        echo_server(Echo()) as below,
        echo_server(outer) as above,
        channel(f"127.0.0.1:{below.port}", token=token(hours=-1)) as down,
        channel(f"127.0.0.1:{above.port}", token=token()) as opened,
    ):
        outer.call = lambda word: Stub(down).get(StringValue(value=word))
        with capture_logs() as logs, pytest.raises(Transient, match="INTERNAL: error"):
            await Stub(opened).get(StringValue(value="call hello"))
        assert [line["event"] for line in logs] == ["rpc.failed"]


async def test_principals_and_traces_of_calls_at_the_same_time_do_not_mix() -> None:
    async with echo_server(Echo(), max_concurrent=200) as server:
        address = f"127.0.0.1:{server.port}"
        async with channel(address, token=SERVICE_TOKEN) as opened:

            async def one_call(n: int, kind: str) -> None:
                with tenant_scope(f"tenant-{n}"), bound_trace(f"trace-{n}"):
                    (answer,) = await ask(Stub(opened), kind, f"word {n}")
                got = json.loads(answer.value)
                assert (got["tenant"], got["trace"], got["word"]) == (f"tenant-{n}", f"trace-{n}", f"word {n}")

            await asyncio.gather(*(one_call(n, KINDS[n % 4]) for n in range(100)))


@pytest.mark.parametrize("word", ["hello", "not found"])
async def test_every_answer_tells_its_trace_id_to_whoever_wants_to_follow_it(word: str) -> None:
    async with (
        echo_server(Echo()) as server,
        grpc.aio.insecure_channel(f"127.0.0.1:{server.port}") as plain,
    ):
        call = Stub(plain).get(
            StringValue(value=word),
            metadata=(("authorization", f"Bearer {token()}"), ("meiri-trace-id", "trace-1")),
            timeout=2,
        )
        assert dict(await call.trailing_metadata())["meiri-trace-id"] == "trace-1"


async def test_a_trace_id_that_could_forge_a_log_line_is_replaced() -> None:
    async with echo_server(Echo()) as server, channel(f"127.0.0.1:{server.port}", token=token()) as opened:
        answer = await Stub(opened).get(StringValue(value="x"), metadata=(("meiri-trace-id", 'a"} {"event":"b'),))
        assert len(json.loads(answer.value)["trace"]) == 16


async def test_cancelled_callers_leave_no_tasks_and_no_room_taken() -> None:
    echo = Echo()
    async with (
        echo_server(echo, max_concurrent=64) as server,
        channel(f"127.0.0.1:{server.port}", token=token()) as opened,
    ):
        stub = Stub(opened)
        await ask(stub, "Get", "hello")
        before = len(asyncio.all_tasks())
        for kind in KINDS:
            calls = [asyncio.create_task(ask(stub, kind, "wait")) for _ in range(12)]
            ran = echo.ran
            await settled(lambda: echo.ran == ran + 12)  # noqa: B023  awaited at once
            for call in calls:
                call.cancel()
            assert all(
                isinstance(e, asyncio.CancelledError) for e in await asyncio.gather(*calls, return_exceptions=True)
            )
        await settled(lambda: echo.cancelled == 48 and server.metrics.in_flight == 0)
        await settled(lambda: len(asyncio.all_tasks()) <= before)
        assert server.metrics.count("cancelled") == 48


async def test_a_reader_that_stops_early_stops_the_handler() -> None:
    echo = Echo()
    async with echo_server(echo) as server, channel(f"127.0.0.1:{server.port}", token=token()) as opened:
        answers = Stub(opened).list_(StringValue(value="trickle"))
        await anext(answers)
        await answers.aclose()
        await settled(lambda: echo.seen[-1] == "closed" and server.metrics.in_flight == 0, 1.0)
        assert not handler_tasks()


async def test_a_request_stream_whose_source_fails_raises_that_error() -> None:
    async def failing() -> AsyncIterator[StringValue]:
        yield StringValue(value="hello")
        raise Permanent("bad_file", "Line 2 of the file is no play.")

    echo = Echo()
    async with echo_server(echo) as server, channel(f"127.0.0.1:{server.port}", token=token()) as opened:
        with pytest.raises(Permanent, match="Line 2"):
            await Stub(opened).publish(failing())
        with pytest.raises(Permanent, match="Line 2"):
            [answer async for answer in Stub(opened).chat(failing())]
        await settled(lambda: server.metrics.in_flight == 0)
        assert await ask(Stub(opened), "Publish", "hello")


async def test_a_call_is_retried_while_the_server_is_away() -> None:
    async with echo_server(Echo()) as first:
        port = first.port
        async with channel(f"127.0.0.1:{port}", token=token()) as opened:
            await ask(Stub(opened), "Get", "hello")
            async with asyncio.TaskGroup() as group:
                await first._drain(beat_s=0.0, grace_s=0.0)
                group.create_task(ask_until_answered(Stub(opened), within_s=3.0))
                await asyncio.sleep(0.5)
                async with echo_server(Echo(), listen=f"127.0.0.1:{port}"):
                    await asyncio.sleep(2.5)


async def ask_until_answered(stub: Stub, within_s: float) -> None:
    end = time.monotonic() + within_s
    while True:
        try:
            await stub.publish(one("hello"))
        except Transient:
            assert time.monotonic() < end
            await asyncio.sleep(0.1)
        else:
            return


@pytest.mark.parametrize("how", ["cancel", "deadline"])
async def test_a_request_stream_that_breaks_off_never_looks_ended(how: str) -> None:
    async def unending() -> AsyncIterator[StringValue]:
        yield StringValue(value="hello")
        await asyncio.sleep(30)

    echo = Echo()
    async with (
        echo_server(echo) as server,
        grpc.aio.insecure_channel(f"127.0.0.1:{server.port}") as plain,
    ):
        for n in range(1, 31):
            call = Stub(plain).publish(
                unending(),
                metadata=(("authorization", f"Bearer {token()}"),),
                timeout=1.5 if how == "cancel" else 0.1,
            )
            await settled(lambda: echo.ran == n)  # noqa: B023  awaited at once
            if how == "cancel":
                call.cancel()
            with pytest.raises((grpc.aio.AioRpcError, asyncio.CancelledError)):
                await call
            await settled(lambda: server.metrics.in_flight == 0)
        assert "end of stream" not in echo.seen
        assert server.metrics.count("ok") == 0
        assert await ask(Stub(plain), "Publish", "x", metadata=(("authorization", f"Bearer {token()}"),), timeout=1)
        assert echo.seen[-1] == "end of stream"
