"""One batch's path, top to bottom: parse → whose is it → judge → pack → publish → acknowledged. Then the loop commits."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from functools import lru_cache
from typing import NamedTuple

import structlog

from services.ingest.domain import Breaker, judge
from shared.clock import Clock
from shared.codec.dead_letters import dead_letter
from shared.codec.play_events import decode_play_event
from shared.codec.plays import AcceptedEvent, encode_plays
from shared.errors import Permanent, Transient
from shared.ids import partition_of
from shared.kafka.log import Headers, Outgoing, Publisher, Record, TopicPartition
from shared.limits import (
    EARLIEST_MS,
    EVENT_TOO_LARGE,
    MAX_AHEAD_MS,
    MAX_EVENT_BYTES,
    TENANT_ID,
    USER_ID,
    USER_ID_BAD,
    Refusal,
)
from shared.telemetry import TRACE_HEADER
from shared.topics import PLAY_IMPORTS, PLAYS, tenant_of_ingress

log = structlog.get_logger()

EVENTS_PER_RECORD = 2_500
"""An event takes at most about 400 bytes in a batch (ids at their limits), so a record stays under 1 MiB."""
TRACES_PER_RECORD = 16
MAX_OWNER = 105
"""Characters of the longest tenant|user (40 and 64)."""
IMPORT_WAIT_S = 1.0
"""An import batch lets live batches pass for at most this long, so that it comes forward in the end."""

KEY_BAD = Refusal("key_bad", "The record's key is not tenant|user: produce through the gateway.")
EVENT_EMPTY = Refusal("event_empty", "The record has no value: play events cannot be deleted by an empty record.")

CatalogueLength = Callable[[str], int | None]
"""The length in milliseconds of "tenant|track_id" (0: not told); None: the catalogue does not know the track."""


class Judged(NamedTuple):
    """What became of one record, whose it is ("" where that cannot be told), the output partition of an accepted event,
    when it came through the door, and whether the catalogue knows its track.
    """

    verdict: AcceptedEvent | Refusal
    tenant_id: str
    partition: int
    received_at_ms: int
    known: bool = False


class Owner(NamedTuple):
    """Whose event it is, and the partition of everything about that user."""

    tenant_id: str
    user_id: str
    partition: int


def owner_of_key(key: bytes | None) -> Owner | None:
    tenant_id, _, user_id = (key or b"")[: MAX_OWNER + 1].decode("ascii", "replace").partition("|")
    return owner(tenant_id, user_id)


def owner(tenant_id: str, user_id: str) -> Owner | None:
    """None: there is no such tenant or user. Ids of any length come in here; only fit lengths may be remembered."""
    return _owner(tenant_id, user_id) if len(tenant_id) + len(user_id) < MAX_OWNER else None


@lru_cache(maxsize=65_536)
def _owner(tenant_id: str, user_id: str) -> Owner | None:
    if USER_ID.fullmatch(user_id) is None or TENANT_ID.fullmatch(tenant_id) is None:
        return None
    return Owner(tenant_id, user_id, partition_of(tenant_id, user_id, PLAYS.partitions))


class Handler:
    """Turns records of any play topic into batches of accepted events and dead letters.

    `halted` holds the topics whose breaker has tripped: their batches fail until the process starts anew, so that their
    offsets stay, while the other topics go on.
    """

    def __init__(
        self,
        publisher: Publisher,
        catalogue_length: CatalogueLength,
        tenant_count: Callable[[], int],
        clock: Clock,
        *,
        with_breaker: bool = True,
    ) -> None:
        self.counts: Counter[str] = Counter()
        self.reasons: Counter[str] = Counter()
        self.halted: set[str] = set()
        self._publisher = publisher
        self._catalogue_length = catalogue_length
        self._tenant_count = tenant_count
        self._clock = clock
        self._with_breaker = with_breaker
        self._breakers: dict[str, dict[str, Breaker | None]] = {}
        self._turns = _Turns()

    async def __call__(self, partition: TopicPartition, records: Sequence[Record]) -> None:
        """Returns when all that the records make is acknowledged; Transient: nothing may be committed, try again."""
        topic = partition.topic
        async with self._turns.turn(is_import=topic == PLAY_IMPORTS.name):
            accepted: dict[int, list[AcceptedEvent]] = {}
            letters: list[Outgoing] = []
            reasons: Counter[str] = Counter()
            verdicts: dict[str, list[bool]] = {"": []}  # by tenant; under "" whether there is one
            unknown_tracks = 0
            ahead_ms = self._clock.ahead_ms()
            ingress_tenant = tenant_of_ingress(topic)
            for record in records:
                verdict, tenant_id, out_partition, received_at_ms, known = self._judge(
                    record, ingress_tenant, record.timestamp + ahead_ms
                )
                verdicts[""].append(bool(tenant_id))
                if tenant_id:
                    verdicts.setdefault(tenant_id, []).append(isinstance(verdict, AcceptedEvent))
                if isinstance(verdict, AcceptedEvent):
                    accepted.setdefault(out_partition, []).append(verdict)
                    unknown_tracks += not known
                else:
                    letters.append(_dead_letter(record, verdict, received_at_ms))
                    reasons[verdict.reason] += 1
            breakers = self._checked(topic, verdicts, reasons)
            batches = _batches(accepted, _traces(records))
            await self._publisher.send_many([*batches, *letters])
            self._breakers[topic] = breakers
        self.reasons += reasons
        self.counts.update(
            records=len(records),
            accepted=len(records) - len(letters),
            rejected=len(letters),
            unknown_tracks=unknown_tracks,
            batches=len(batches),
        )

    def _judge(self, record: Record, ingress_tenant: str | None, appended_at_ms: int) -> Judged:
        value = record.value
        if not value:
            return Judged(EVENT_EMPTY, ingress_tenant or "", 0, appended_at_ms)
        if len(value) > MAX_EVENT_BYTES:
            return Judged(EVENT_TOO_LARGE, ingress_tenant or "", 0, appended_at_ms)
        try:
            event = decode_play_event(value)
        except Permanent as error:
            return Judged(Refusal(error.reason, str(error)), ingress_tenant or "", 0, appended_at_ms)
        received_at_ms = appended_at_ms
        if ingress_tenant is not None:  # the topic proves the tenant; its back end may write anything into the payload
            whose = owner(ingress_tenant, event.user_id)
        else:
            whose = owner_of_key(record.key)
            stamped_ms = event.received_at_ms
            if stamped_ms is not None and EARLIEST_MS <= stamped_ms <= appended_at_ms + MAX_AHEAD_MS:
                received_at_ms = stamped_ms
        if whose is None:
            refusal = KEY_BAD if ingress_tenant is None else USER_ID_BAD
            return Judged(refusal, ingress_tenant or "", 0, received_at_ms)
        tenant_id, user_id, partition = whose
        track_id = event.track_id
        length_ms = self._catalogue_length(f"{tenant_id}|{track_id}") if track_id else None
        verdict = judge(
            event,
            tenant_id=tenant_id,
            user_id=user_id,
            received_at_ms=received_at_ms,
            catalogue_duration_ms=length_ms or None,
            by_clients_clock=record.topic != PLAY_IMPORTS.name,
        )
        # An unknown id is kept as it is: the catalogue may learn it later, and then the play already counts for it.
        return Judged(verdict, tenant_id, partition, received_at_ms, length_ms is not None)

    def _checked(self, topic: str, verdicts: dict[str, list[bool]], reasons: Counter[str]) -> dict[str, Breaker | None]:
        """The topic's breakers after this batch, None for a tenant's that tripped; Transient when the topic is halted.

        A fault that tenants share is the deployment's, and so is a record that only a gateway could have written; a fault of
        one tenant's among several is its client's, and must not stop the others.
        """
        breakers = dict(self._breakers.get(topic, {}))
        if self._with_breaker and topic not in self.halted:
            for tenant_id, valid in verdicts.items():
                breakers[tenant_id] = (breakers.get(tenant_id) or Breaker()).after(valid)
            tripped = {tenant_id for tenant_id, breaker in breakers.items() if breaker is None}
            alone = 1 if tenant_of_ingress(topic) else min(2, self._tenant_count())
            if "" in tripped or len(tripped) >= max(1, alone):
                self.halted.add(topic)
                log.error("ingest.halted", topic=topic, tenants=sorted(tripped), reasons=dict(reasons))
        if topic not in self.halted:
            return breakers
        raise Transient(f"{topic} is halted: too many of its records are invalid (see the log event ingest.halted).")


class _Turns:
    """Imports yield to live plays: one import batch at a time, and none while a live batch is in hand."""

    def __init__(self) -> None:
        self._live = 0
        self._no_live = asyncio.Event()
        self._no_live.set()
        self._import = asyncio.Lock()

    @asynccontextmanager
    async def turn(self, *, is_import: bool) -> AsyncIterator[None]:
        if is_import:
            async with self._import:
                try:
                    async with asyncio.timeout(IMPORT_WAIT_S):
                        await self._no_live.wait()
                except TimeoutError:
                    pass
                yield
            return
        self._live += 1
        self._no_live.clear()
        try:
            yield
        finally:
            self._live -= 1
            if not self._live:
                self._no_live.set()


def _batches(accepted: dict[int, list[AcceptedEvent]], headers: Headers) -> list[Outgoing]:
    return [
        Outgoing(PLAYS, partition, None, encode_plays(events[start : start + EVENTS_PER_RECORD]), headers)
        for partition, events in accepted.items()
        for start in range(0, len(events), EVENTS_PER_RECORD)
    ]


def _traces(records: Sequence[Record]) -> Headers:
    """The trace ids the records came with, one header each: a batch of many calls belongs to all of their traces."""
    found = {header for headers in {record.headers for record in records} for header in headers}
    return sorted(header for header in found if header[0] == TRACE_HEADER)[:TRACES_PER_RECORD]


def _dead_letter(record: Record, refusal: Refusal, received_at_ms: int) -> Outgoing:
    whose = owner_of_key(record.key)
    return dead_letter(
        record,
        refusal.reason,
        refusal.sentence,
        tenant_id=tenant_of_ingress(record.topic) or (whose.tenant_id if whose else ""),
        received_at_ms=received_at_ms,
        headers=_traces([record]),
    )
