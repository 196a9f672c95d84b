"""One batch of due listeners, top to bottom: claim → gather → score → rules → store → publish → finish.

Whatever dies in between, a later worker finds either no stored list and makes one, or a stored one and publishes its bytes;
so a listener has exactly one list per date.
"""

import asyncio
import time as timer
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from zoneinfo import ZoneInfo

import numpy as np
import structlog
from meiri.embedding.v1.embedding_service_pb2 import ScoreSource
from meiri.features.v1.user_feature_service_pb2 import UserFeedback
from meiri.feedback.v1.feedback_event_pb2 import FeedbackKind

from services.materialiser.catalogue import Catalogue, Catalogues
from services.materialiser.clients import EmbedderClient, FeatureClient, Histories, Scored
from services.materialiser.domain import due_now, next_due, zone_of
from services.materialiser.encode import encode_list
from services.materialiser.store import Lease, MadeList, Store
from shared.clock import Clock
from shared.codec.state import Tenant, User
from shared.columns import Array
from shared.errors import Transient
from shared.ids import partition_of, to_signed, user_topic_key
from shared.kafka.log import Outgoing, Publisher
from shared.kafka.view import TopicView
from shared.recommend.fallback import fallback_list, with_popular
from shared.recommend.pipeline import make_list
from shared.recommend.values import Candidates, Fallback, Listener, ListOfTheDay, Popular, Rules, Shortfall
from shared.rpc.errors import FailedPrecondition, NotFound
from shared.telemetry import bound_trace, new_trace_id, trace_id
from shared.topics import DAILY_PLAYLISTS

log = structlog.get_logger()

BATCH = 512
RETRIEVED_PER_SONG = 8
"""Unheard tracks retrieved per song of the list: the artist cap and the filters take some."""
DAY_START = time(0, 0)
LEAD = timedelta()
EPOCH = date(1970, 1, 1)


class Materialiser:
    def __init__(
        self,
        store: Store,
        features: FeatureClient,
        embedder: EmbedderClient,
        publisher: Publisher,
        catalogues: Catalogues,
        users: TopicView[str, User],
        clock: Clock,
    ) -> None:
        self._store = store
        self._features = features
        self._embedder = embedder
        self._publisher = publisher
        self._catalogues = catalogues
        self._users = users
        self._clock = clock

    async def batch(self, tenant: Tenant) -> int:
        """Make or finish the lists of up to BATCH due listeners; returns how many were claimed.

        Raises Transient when features, Kafka or Postgres cannot be reached: the leases run out and the work is taken up again.
        """
        now, started = self._clock.now(), timer.monotonic()
        leases = await self._store.claim(tenant.tenant_id, now, BATCH)
        if not leases:
            return 0
        with bound_trace(new_trace_id()):
            zones = {lease.user_id: self._zone(tenant, lease.user_id) for lease in leases}
            dates = {user: due_now(now, zone, DAY_START, LEAD).playlist_date for user, zone in zones.items()}
            epochs = {lease.user_id: lease.epoch for lease in leases}

            stored = await self._store.stored(tenant.tenant_id, dates)
            without = [lease for lease in leases if lease.user_id not in stored]
            if without:
                made = await self._make(tenant, without, dates, now)
                await self._store.store(tenant.tenant_id, made, epochs)
                # Read back: where another worker was first, it is that worker's bytes that are published.
                stored |= await self._store.stored(
                    tenant.tenant_id, {lease.user_id: dates[lease.user_id] for lease in without}
                )

            await self._publisher.send_many([_record(tenant.tenant_id, item) for item in stored.values()])
            await self._store.finish(
                tenant.tenant_id,
                {user: dates[user] for user in stored},
                {user: next_due(dates[user], zones[user], DAY_START, LEAD).at for user in stored},
                epochs,
            )
            log.info(
                "lists.published",
                tenant_id=tenant.tenant_id,
                lists=len(stored),
                made=len(without),
                fallbacks=sum(item.fallback != 0 for item in stored.values()),
                seconds=round(timer.monotonic() - started, 3),
            )
        return len(leases)

    async def _make(
        self, tenant: Tenant, leases: Sequence[Lease], dates: dict[str, date], now: datetime
    ) -> list[MadeList]:
        """The lists of listeners who have none for their date."""
        user_ids = [lease.user_id for lease in leases]
        catalogue = self._catalogues.of(tenant.tenant_id)
        rules = Rules(length=tenant.list_length, familiar_share=tenant.familiar_share)
        since = min(dates.values()) - timedelta(days=rules.recommended_window_days)
        histories = await self._features.histories(tenant.tenant_id, user_ids)
        popular = Popular.of(
            catalogue.columns.rows_of(await self._features.trending(tenant.tenant_id)), catalogue.columns
        )
        recommended = await self._store.recommended(tenant.tenant_id, user_ids, since)
        listeners = await asyncio.to_thread(
            _listeners, user_ids, histories, recommended, catalogue, [self._dial(tenant, user) for user in user_ids]
        )
        scored, release_id, cause = await self._score(tenant, histories, listeners, catalogue, now)
        makers = [
            _Maker(tenant.tenant_id, user_id, dates[user_id], now, release_id, trace_id.get()) for user_id in user_ids
        ]
        return await asyncio.to_thread(
            _apply_rules, makers, listeners, scored, cause, histories, catalogue, popular, rules
        )

    async def _score(
        self, tenant: Tenant, histories: Histories, listeners: list[Listener], catalogue: Catalogue, now: datetime
    ) -> tuple[Scored | None, str | None, Fallback]:
        """Scores and the release they are of; or none, and why."""
        today = (now.astimezone(UTC).date() - EPOCH).days
        exclusions = _exclusions(listeners, catalogue)
        for _ in range(3):
            try:
                release_id = await self._embedder.release(tenant.tenant_id)
                scored = await self._embedder.score(
                    tenant.tenant_id,
                    release_id,
                    histories,
                    exclusions,
                    today=today,
                    k=min(RETRIEVED_PER_SONG * tenant.list_length, 1000),
                )
            except FailedPrecondition:  # a new release took over between the two calls
                continue
            except NotFound:
                return None, None, Fallback.NO_RELEASE
            except Transient as error:
                log.warning("embedder.away", tenant_id=tenant.tenant_id, reason=str(error))
                return None, None, Fallback.EMBEDDER_AWAY
            return scored, release_id, Fallback.NONE
        return None, None, Fallback.EMBEDDER_AWAY

    def _user(self, tenant: Tenant, user_id: str) -> User | None:
        return self._users.get(f"{tenant.tenant_id}|{user_id}")

    def _zone(self, tenant: Tenant, user_id: str) -> ZoneInfo:
        user = self._user(tenant, user_id)
        return zone_of(None if user is None else user.zone, zone_of(tenant.zone, ZoneInfo("UTC")))

    def _dial(self, tenant: Tenant, user_id: str) -> float | None:
        user = self._user(tenant, user_id)
        return None if user is None else user.familiar_share


@dataclass(frozen=True, slots=True)
class _Maker:
    """What one list's message says beside its songs."""

    tenant_id: str
    user_id: str
    playlist_date: date
    made_at: datetime
    release_id: str | None
    trace_id: str


def _listeners(
    user_ids: Sequence[str],
    histories: Histories,
    recommended: dict[str, list[tuple[int, date]]],
    catalogue: Catalogue,
    dials: Sequence[float | None],
) -> list[Listener]:
    """What the rules need to know of each listener, in rows and numbers of the catalogue."""
    rows = catalogue.columns.rows_of(histories.track_key)
    feedback: list[list[UserFeedback]] = [[] for _ in user_ids]
    for item in histories.feedback:
        feedback[item.user_index].append(item)
    listeners = []
    for place, user_id in enumerate(user_ids):
        of_user = slice(int(histories.splits[place]), int(histories.splits[place + 1]))
        said: dict[int, list[str]] = {}
        banned_artists = []
        for item in feedback[place]:
            if item.WhichOneof("target") == "artist_id":
                banned_artists.append(catalogue.artist_number.get(item.artist_id, -1))
            else:
                said.setdefault(item.kind, []).append(item.track_id)
        window = recommended[user_id]
        listeners.append(
            Listener.of(
                heard_row=rows[of_user],
                plays=histories.plays[of_user],
                listens=histories.listens[of_user],
                last_played_day=histories.last_played_day[of_user],
                loved=catalogue.rows_of_track_ids(said.get(FeedbackKind.FEEDBACK_KIND_LOVE, [])),
                disliked=catalogue.rows_of_track_ids(
                    said.get(FeedbackKind.FEEDBACK_KIND_DISLIKE, []) + said.get(FeedbackKind.FEEDBACK_KIND_BAN, [])
                ),
                banned_artist=banned_artists,
                recommended_row=catalogue.columns.rows_of(np.array([key % (1 << 64) for key, _ in window], np.uint64)),
                recommended_day=[(day - EPOCH).days for _, day in window],
                familiar_share=dials[place],
            )
        )
    return listeners


def _exclusions(listeners: Sequence[Listener], catalogue: Catalogue) -> tuple[Array, Array]:
    """(splits i64 [U+1], track_key u64): what must not be retrieved, so that the rules' filters leave a full list."""
    lists = []
    for listener in listeners:
        rows = [listener.disliked, listener.recommended_row]
        if len(listener.banned_artist):
            rows.append(np.flatnonzero(np.isin(catalogue.columns.artist, listener.banned_artist)))
        lists.append(np.unique(np.concatenate(rows)))
    sizes = np.cumsum([0, *(len(rows) for rows in lists)], dtype=np.int64)
    return sizes, catalogue.columns.track_key[np.concatenate(lists).astype(np.int64)]


def _apply_rules(
    makers: Sequence[_Maker],
    listeners: Sequence[Listener],
    scored: Scored | None,
    cause: Fallback,
    histories: Histories,
    catalogue: Catalogue,
    popular: Popular,
    rules: Rules,
) -> list[MadeList]:
    """Pure but for its size: candidates → list → bytes, one listener after the other."""
    if scored is not None:
        row = catalogue.columns.rows_of(scored.track_key)
        evidence = catalogue.columns.rows_of(scored.evidence)
        keep = _worth_hearing(scored, histories)
    lists = []
    for place, (maker, listener) in enumerate(zip(makers, listeners, strict=True)):
        today = (maker.playlist_date - EPOCH).days
        if scored is None or not len(listener.heard_row):
            made = fallback_list(
                listener,
                catalogue=catalogue.columns,
                popular=popular,
                rules=rules,
                today=today,
                cause=cause or Fallback.NO_HISTORY,
            )
        else:
            of_user = np.arange(scored.splits[place], scored.splits[place + 1])
            of_user = of_user[keep[of_user]]
            candidates = Candidates.of(row[of_user], scored.score[of_user], evidence[of_user])
            made = _personal(candidates, listener, catalogue, popular, rules, today)
        message = encode_list(
            made,
            catalogue,
            tenant_id=maker.tenant_id,
            user_id=maker.user_id,
            playlist_date=maker.playlist_date,
            made_at=maker.made_at,
            release_id=None if made.fallback else maker.release_id,
        )
        keys = [to_signed(int(catalogue.columns.track_key[item.row])) for item in made.recommendations]
        lists.append(MadeList(maker.user_id, maker.playlist_date, 1, message, keys, int(made.fallback), maker.trace_id))
    return lists


def _personal(
    candidates: Candidates, listener: Listener, catalogue: Catalogue, popular: Popular, rules: Rules, today: int
) -> ListOfTheDay:
    """The list of the scored candidates; popular songs fill it only where these run out."""
    made = make_list(candidates, listener, catalogue=catalogue.columns, popular=popular, rules=rules, today=today)
    if Shortfall.FEW_CANDIDATES not in made.shortfalls:
        return made
    return make_list(
        with_popular(candidates, popular),
        listener,
        catalogue=catalogue.columns,
        popular=popular,
        rules=rules,
        today=today,
    )


def _worth_hearing(scored: Scored, histories: Histories) -> Array:
    """Bool [R]: not a track of the history that was only ever skipped."""
    user_of_row = np.repeat(np.arange(len(scored.splits) - 1), np.diff(scored.splits))
    user_of_history = np.repeat(np.arange(len(histories.splits) - 1), np.diff(histories.splits))
    only_skipped = histories.listens == 0
    skipped = set(zip(user_of_history[only_skipped].tolist(), histories.track_key[only_skipped].tolist(), strict=True))
    keep = np.ones(len(user_of_row), np.bool_)
    for place in np.flatnonzero(scored.source == ScoreSource.SCORE_SOURCE_HISTORY).tolist():
        keep[place] = (int(user_of_row[place]), int(scored.track_key[place])) not in skipped
    return keep


def _record(tenant_id: str, item: MadeList) -> Outgoing:
    return Outgoing(
        DAILY_PLAYLISTS,
        partition_of(tenant_id, item.user_id, DAILY_PLAYLISTS.partitions),
        user_topic_key(tenant_id, item.user_id),
        item.message,
    )
