"""A topic's view on the log in memory: newest values, deletions, bad records, and errors that do not stay hidden."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from shared.errors import Transient
from shared.kafka.memory import MemoryLog
from shared.kafka.view import TopicView
from shared.topics import Topic

TOPIC = Topic("tracks", 2)


@asynccontextmanager
async def viewed(log: MemoryLog, **options: Any) -> AsyncIterator[TopicView[str, int]]:
    async with TopicView.open(log, TOPIC, decode_key=bytes.decode, decode_value=int, **options) as view:
        yield view


async def put(log: MemoryLog, key: str, value: str | None) -> None:
    await log.send(TOPIC, len(key) % 2, key.encode(), None if value is None else value.encode())


async def until_equal(view: TopicView[str, int], expected: dict[str, int]) -> None:
    async with asyncio.timeout(5):
        while dict(view.items()) != expected:  # noqa: ASYNC110
            await asyncio.sleep(0.005)


async def test_ready_means_that_all_the_topic_held_has_been_read() -> None:
    log = MemoryLog([TOPIC])
    for n in range(50):
        await put(log, "k" * (n % 5 + 1), str(n))
    async with viewed(log) as view:
        await view.ready(5)
        assert dict(view.items()) == {"k": 45, "kk": 46, "kkk": 47, "kkkk": 48, "kkkkk": 49}
        assert view.get("kk") == 46
        assert view.get("absent") is None
        assert "kk" in view
        assert len(view) == 5


async def test_an_empty_topic_is_ready_at_once() -> None:
    async with viewed(MemoryLog([TOPIC])) as view:
        await view.ready(5)
        assert view.is_ready
        assert len(view) == 0


async def test_the_tail_is_followed_and_an_empty_record_deletes() -> None:
    log = MemoryLog([TOPIC])
    await put(log, "a", "1")
    async with viewed(log) as view:
        await view.ready(5)
        await put(log, "a", "2")
        await put(log, "bb", "3")
        await until_equal(view, {"a": 2, "bb": 3})
        await put(log, "a", None)
        await put(log, "bb", "")
        await until_equal(view, {})


async def test_changes_are_told_in_record_order_with_old_and_new() -> None:
    log = MemoryLog([TOPIC])
    told: list[tuple[str, int | None, int | None]] = []
    for value in ("1", "2", None, None, "3"):
        await put(log, "a", value)
    async with viewed(log, on_change=lambda key, old, new: told.append((key, old, new))) as view:
        await view.ready(5)
    assert told == [("a", None, 1), ("a", 1, 2), ("a", 2, None), ("a", None, 3)]


async def test_a_record_that_cannot_be_decoded_is_skipped_and_counted() -> None:
    log = MemoryLog([TOPIC])
    await put(log, "a", "1")
    await put(log, "a", "not a number")
    await log.send(TOPIC, 0, b"\xff", b"5")
    await put(log, "bb", "2")
    async with viewed(log) as view:
        await view.ready(5)
        assert dict(view.items()) == {"a": 1, "bb": 2}
        assert view.undecodable == 2


async def test_a_compacted_topic_with_holes_up_to_its_end_becomes_ready() -> None:
    log = MemoryLog([TOPIC])
    await put(log, "a", "1")
    await put(log, "a", None)
    log.compact(TOPIC)
    async with viewed(log) as view:
        await view.ready(5)
        assert len(view) == 0


async def test_an_error_of_the_owner_is_raised_by_every_later_call() -> None:
    log = MemoryLog([TOPIC])

    def fail(*_: object) -> None:
        raise ZeroDivisionError

    async with viewed(log, on_change=fail) as view:
        await view.ready(5)
        await put(log, "a", "1")
        with pytest.raises(ZeroDivisionError):
            await asyncio.wait_for(view.failed(), 5)
        with pytest.raises(ZeroDivisionError):
            view.get("a")
        assert not view.is_ready


async def test_a_view_that_is_late_says_so() -> None:
    async with viewed(MemoryLog()) as view:  # the topic does not exist yet
        with pytest.raises(Transient, match="tracks"):
            await view.ready(0.1)
        assert not view.is_ready
