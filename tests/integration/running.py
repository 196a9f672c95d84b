"""A service as it runs, in the test's own event loop."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager, suppress

from shared.rpc.health import wait_serving


@asynccontextmanager
async def running(service: Coroutine[object, object, None], address: str) -> AsyncIterator[None]:
    """A service's `serve(settings)` as a task, from when it is ready until the block ends."""
    task = asyncio.create_task(service)
    ready = asyncio.create_task(wait_serving(address, timeout_s=30.0))
    try:
        await asyncio.wait({task, ready}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            task.result()
        await ready
        yield
    finally:
        ready.cancel()
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


async def eventually(question: Callable[[], Awaitable[bool]], timeout_s: float = 20.0) -> None:
    """Until the answer is yes; TimeoutError if it is not within the time."""
    async with asyncio.timeout(timeout_s):
        while not await question():  # noqa: ASYNC110 - another process holds the answer
            await asyncio.sleep(0.05)


async def ends_on_sigterm(service: Coroutine[object, object, None], address: str) -> None:
    """It drains and returns, as the process then does with status 0."""
    task = asyncio.create_task(service)
    await wait_serving(address, timeout_s=30.0)
    os.kill(os.getpid(), signal.SIGTERM)
    await asyncio.wait_for(task, 15)
