"""One partition's step, tried until it succeeds: a database that is away costs time, never a record."""

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TypeVar

import structlog

from shared.errors import Transient
from shared.kafka.log import TopicPartition
from shared.kafka.partition import Moved
from shared.kafka.progress import Progress

log = structlog.get_logger()

STUCK_AFTER_S = 5.0
_TELL_EVERY_S = 10.0
_AT_MOST_S = 5.0
T = TypeVar("T")


class Halted(Exception):
    pass


async def retrying(
    attempt: Callable[[], Awaitable[T]],
    partition: TopicPartition,
    progress: Progress,
    *,
    halt: asyncio.Event | None = None,
    stuck_after_s: float = STUCK_AFTER_S,
) -> T:
    """Await `attempt` again and again while it raises `Transient`; the partition is in `progress.stuck` while that lasts.

    Raises `Moved` at once (to try the same records again cannot help), and `Halted` when `halt` is set between two tries.
    """
    halt = halt or asyncio.Event()
    began = told = time.monotonic()
    delay_s, tries = 0.1, 0
    while True:
        try:
            result = await attempt()
        except Moved:
            log.warning("consumer.moved", partition=str(partition))
            raise
        except Transient as error:
            tries += 1
            now = time.monotonic()
            if tries == 1 or now - told > _TELL_EVERY_S:
                told = now
                log.warning("consumer.retrying", partition=str(partition), tries=tries, error=str(error))
            if now - began > stuck_after_s:
                progress.stuck.add(partition)
            with suppress(TimeoutError):
                async with asyncio.timeout(delay_s * random.uniform(0.5, 1.0)):  # noqa: S311
                    await halt.wait()
            if halt.is_set():
                raise Halted from error
            delay_s = min(delay_s * 2, _AT_MOST_S)
        else:
            if tries:
                log.info("consumer.recovered", partition=str(partition), tries=tries)
                progress.stuck.discard(partition)
            return result
