"""One batch of due listeners, top to bottom: claim → gather → score → rules → store → publish → finish.

Whatever dies in between, a later worker finds either no stored list and makes one, or a stored one and publishes its bytes;
so a listener has exactly one list per date.
"""

import asyncio
import time as timer
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from datetime import UTC, date, datetime, time, timedelta
from zoneinfo import ZoneInfo

import structlog

from services.materialiser.catalogue import Catalogues
from services.materialiser.clients import EmbedderClient, FeatureClient, Histories, Scored
from services.materialiser.domain import due_now, next_due
from services.materialiser.making import EPOCH, Known, exclusions, listeners_of, make_lists
from services.materialiser.store import LEASE_S, Lease, MadeList, Store
from shared.clock import Clock
from shared.codec.state import Tenant, User
from shared.errors import Transient
from shared.ids import partition_of, user_topic_key
from shared.kafka.log import Outgoing, Publisher
from shared.recommend.values import Fallback, Popular, Rules
from shared.rpc.errors import FailedPrecondition, NotFound
from shared.telemetry import TRACE_HEADER, bound_trace, new_trace_id, trace_id
from shared.topics import DAILY_PLAYLISTS

log = structlog.get_logger()

BATCH = 512
RETRIEVED_PER_SONG = 8
"""Unheard tracks retrieved per song of the list: the artist cap and the filters take some."""
DAY_START = time(0, 0)
LEAD = timedelta()
PATIENCE_S = 15.0
"""An embedder that restarts is waited for so long before lists are made without it."""
RETRY = timedelta(minutes=1)
"""A listener for whom no list could be made (an empty catalogue, say) is looked at again after this."""


class Materialiser:
    def __init__(
        self,
        store: Store,
        features: FeatureClient,
        embedder: EmbedderClient,
        publisher: Publisher,
        catalogues: Catalogues,
        user_of: Callable[[str], User | None],
        clock: Clock,
        *,
        patience_s: float = PATIENCE_S,
    ) -> None:
        self._store = store
        self._features = features
        self._embedder = embedder
        self._publisher = publisher
        self._catalogues = catalogues
        self._user_of = user_of
        self._clock = clock
        self._patience_s = patience_s
        self._embedder_away_since: float | None = None

    async def batch(self, tenant: Tenant) -> int:
        """Make or finish the lists of up to BATCH due listeners; returns how many were claimed.

        Raises Transient when features, Kafka or Postgres cannot be reached, or the embedder not yet: the leases are given
        back, and the work is taken up again.
        """
        now = self._clock.now()
        leases = await self._store.claim(tenant.tenant_id, now, BATCH)
        if leases:
            with bound_trace(new_trace_id()):
                async with self._held(tenant.tenant_id, leases):
                    await self._lists(tenant, leases, now)
        return len(leases)

    async def _lists(self, tenant: Tenant, leases: Sequence[Lease], now: datetime) -> None:
        started = timer.monotonic()
        zones = {lease.user_id: ZoneInfo(lease.zone) for lease in leases}
        dates = {user: due_now(now, zone, DAY_START, LEAD).playlist_date for user, zone in zones.items()}

        lists = await self._store.stored(tenant.tenant_id, dates)
        have = {item.user_id for item in lists if item.playlist_date == dates[item.user_id]}
        without = [lease for lease in leases if lease.user_id not in have]
        if without:
            made = await self._make(tenant, without, dates, now)
            stored = await self._store.store(tenant.tenant_id, made, {lease.user_id: lease.epoch for lease in without})
            lists += [item for item in made if item.user_id in stored]
            if others := {item.user_id for item in made} - stored:
                # Another worker was first: it is that worker's bytes that are published.
                lists += await self._store.stored(tenant.tenant_id, {user: dates[user] for user in others})

        unpublished = sorted((item for item in lists if not item.published), key=lambda item: item.playlist_date)
        await self._publisher.send_many([_record(tenant.tenant_id, item) for item in unpublished])

        have = {item.user_id for item in lists if item.playlist_date == dates[item.user_id]}
        due = {
            user: next_due(dates[user], zone, DAY_START, LEAD).at if user in have else now + RETRY
            for user, zone in zones.items()
        }
        await self._store.finish(tenant.tenant_id, unpublished, leases, due)
        log.info(
            "lists.published",
            tenant_id=tenant.tenant_id,
            lists=len(unpublished),
            fallbacks=sum(item.fallback != 0 for item in unpublished),
            without_list=len(leases) - len(have),
            seconds=round(timer.monotonic() - started, 3),
        )

    async def _make(
        self, tenant: Tenant, leases: Sequence[Lease], dates: Mapping[str, date], now: datetime
    ) -> list[MadeList]:
        """The lists of listeners who have none for their date."""
        user_ids = [lease.user_id for lease in leases]
        catalogue = await self._catalogues.of(tenant.tenant_id)
        rules = Rules(length=tenant.list_length, familiar_share=tenant.familiar_share)
        histories = await self._features.histories(tenant.tenant_id, user_ids)
        trending = await self._features.trending(tenant.tenant_id)
        since = min(dates.values()) - timedelta(days=rules.recommended_window_days)
        recommended = await self._store.recommended(tenant.tenant_id, user_ids, since)
        dials = [self._dial(tenant, user_id) for user_id in user_ids]
        listeners = await asyncio.to_thread(listeners_of, user_ids, histories, recommended, catalogue, dials)
        known = Known(
            tenant=tenant,
            catalogue=catalogue,
            rules=rules,
            popular=Popular.of(catalogue.columns.rows_of(trending), catalogue.columns),
            made_at=now,
            trace_id=trace_id.get(),
            user_ids=user_ids,
            dates=[dates[user_id] for user_id in user_ids],
            listeners=listeners,
        )
        scored, release_id, cause = await self._score(known, histories)
        return await asyncio.to_thread(make_lists, known, scored, release_id, cause)

    async def _score(self, known: Known, histories: Histories) -> tuple[Scored | None, str | None, Fallback]:
        """Scores and the release they are of; or none, and why. Raises Transient while the embedder may come back."""
        tenant_id = known.tenant.tenant_id
        excluded = await asyncio.to_thread(exclusions, known.listeners, known.catalogue)
        try:
            release_id = await self._embedder.release(tenant_id)
            scored = await self._embedder.score(
                tenant_id,
                release_id,
                histories,
                excluded,
                today=(known.made_at.astimezone(UTC).date() - EPOCH).days,
                k=min(RETRIEVED_PER_SONG * known.rules.length, 1000),
            )
        except NotFound:
            self._embedder_away_since = None
            return None, None, Fallback.NO_RELEASE
        except FailedPrecondition as error:
            raise Transient(f"A new release took over between two calls: {error}") from error
        except Transient as error:
            now = timer.monotonic()
            if self._embedder_away_since is None:
                self._embedder_away_since = now
            if now - self._embedder_away_since < self._patience_s:
                raise
            log.warning("embedder.away", tenant_id=tenant_id, reason=str(error))
            return None, None, Fallback.EMBEDDER_AWAY
        self._embedder_away_since = None
        return scored, release_id, Fallback.NONE

    @asynccontextmanager
    async def _held(self, tenant_id: str, leases: Sequence[Lease]) -> AsyncIterator[None]:
        """Renew the leases while the block runs; give them back at once when it fails."""

        async def renew() -> None:
            while True:
                await asyncio.sleep(LEASE_S / 4)
                with suppress(Transient):  # then the lease may be lost, and this batch's writes with it
                    await self._store.hold(tenant_id, leases)

        renewing = asyncio.create_task(renew())
        try:
            yield
        except BaseException:
            with suppress(Transient):
                await self._store.hold(tenant_id, leases, 0)
            raise
        finally:
            renewing.cancel()
            await asyncio.wait([renewing])
            if not renewing.cancelled():
                renewing.result()

    def _dial(self, tenant: Tenant, user_id: str) -> float | None:
        user = self._user_of(f"{tenant.tenant_id}|{user_id}")
        return None if user is None else user.familiar_share


def _record(tenant_id: str, item: MadeList) -> Outgoing:
    return Outgoing(
        DAILY_PLAYLISTS,
        partition_of(tenant_id, item.user_id, DAILY_PLAYLISTS.partitions),
        user_topic_key(tenant_id, item.user_id),
        item.message,
        ((TRACE_HEADER, item.trace_id.encode()),),
    )
