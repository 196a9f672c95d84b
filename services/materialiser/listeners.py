"""Who gets lists: everyone whom features has heard of or who has settings, each by the dates of their own zone."""

import time
from collections.abc import Iterable
from itertools import islice
from zoneinfo import ZoneInfo

from services.materialiser.clients import FeatureClient
from services.materialiser.domain import zone_of
from services.materialiser.store import Store
from shared.clock import Clock
from shared.codec.state import Tenant, User

CHUNK = 10_000
LOOKS_SHARE = 0.02
"""The share of the time that asking features for its listeners may take: few are asked for often, many seldom."""


class Listeners:
    """Tells the store of new listeners and changed zones. `changed` is the users view's `on_change`."""

    def __init__(self, features: FeatureClient, store: Store, clock: Clock) -> None:
        self._features = features
        self._store = store
        self._clock = clock
        self._own_zone: dict[tuple[str, str], str] = {}  # (tenant, user) who named one
        self._changed: dict[str, dict[str, None]] = {}  # tenant → users with news, in order
        self._watched: dict[str, dict[str, str]] = {}  # tenant → user → zone, as the store has it
        self._look_at: dict[str, float] = {}  # tenant → monotonic seconds of the next look

    def changed(self, _: str, old: User | None, new: User | None) -> None:
        user = new or old
        if user is None:
            return
        if new is not None and new.zone is not None:
            self._own_zone[user.tenant_id, user.user_id] = new.zone
        else:
            self._own_zone.pop((user.tenant_id, user.user_id), None)
        self._changed.setdefault(user.tenant_id, {})[user.user_id] = None

    async def look(self, tenant: Tenant) -> None:
        """Raises Transient when features or Postgres cannot be reached."""
        changed = self._changed.get(tenant.tenant_id, {})
        while some := list(islice(changed, CHUNK)):
            for user_id in some:
                del changed[user_id]
            try:
                await self._watch(tenant, some)
            except BaseException:
                changed.update(dict.fromkeys(some))
                raise
        if time.monotonic() < self._look_at.get(tenant.tenant_id, 0.0):
            return
        started = time.monotonic()
        async for page in self._features.users(tenant.tenant_id):
            await self._watch(tenant, page)
        known = list(self._watched.get(tenant.tenant_id, ()))  # the tenant's own zone may have changed
        for first in range(0, len(known), CHUNK):
            await self._watch(tenant, known[first : first + CHUNK])
        ended = time.monotonic()
        self._look_at[tenant.tenant_id] = ended + (ended - started) / LOOKS_SHARE

    async def _watch(self, tenant: Tenant, user_ids: Iterable[str]) -> None:
        watched = self._watched.setdefault(tenant.tenant_id, {})
        default = zone_of(tenant.zone, ZoneInfo("UTC"))
        news = {}
        for user_id in user_ids:
            zone = zone_of(self._own_zone.get((tenant.tenant_id, user_id)), default).key
            if watched.get(user_id) != zone:
                news[user_id] = zone
        if news:
            await self._store.watch(tenant.tenant_id, news, self._clock.now())
            watched.update(news)
