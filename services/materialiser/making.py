"""From what is known of a batch of listeners to their lists' bytes. Pure but for its log: values in, values out."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime

import numpy as np
import structlog
from meiri.features.v1.user_feature_service_pb2 import UserFeedback
from meiri.feedback.v1.feedback_event_pb2 import FeedbackKind

from services.materialiser.catalogue import Catalogue
from services.materialiser.clients import Histories, Scored
from services.materialiser.encode import encode_list
from services.materialiser.inputs import Inputs, pack, unpack
from services.materialiser.store import MadeList
from shared.codec.state import Tenant
from shared.columns import Array
from shared.ids import to_signed
from shared.recommend.fallback import fallback_list, with_popular
from shared.recommend.pipeline import make_list
from shared.recommend.values import Candidates, Fallback, Listener, ListOfTheDay, Popular, Rules, Shortfall, find

log = structlog.get_logger()

EPOCH = date(1970, 1, 1)


@dataclass(frozen=True, slots=True, eq=False)
class Known:
    """What one batch's lists are made of beside the scores: U listeners of one tenant, each column in their order."""

    tenant: Tenant
    catalogue: Catalogue
    rules: Rules
    popular: Popular
    made_at: datetime
    trace_id: str
    user_ids: Sequence[str]
    dates: Sequence[date]
    listeners: Sequence[Listener]


def listeners_of(
    user_ids: Sequence[str],
    histories: Histories,
    recommended: Mapping[str, Sequence[tuple[date, Sequence[int]]]],
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
        own = slice(int(histories.splits[place]), int(histories.splits[place + 1]))
        said: dict[int, list[str]] = {}
        banned_artists = []
        for item in feedback[place]:
            if item.WhichOneof("target") == "artist_id":
                banned_artists.append(catalogue.artist_number.get(item.artist_id, -1))
            else:
                said.setdefault(item.kind, []).append(item.track_id)
        lists = recommended[user_id]
        shown = np.array([key for _, keys in lists for key in keys], np.int64).view(np.uint64)
        listeners.append(
            Listener.of(
                heard_row=rows[own],
                plays=histories.plays[own],
                listens=histories.listens[own],
                last_played_day=histories.last_played_day[own],
                loved=catalogue.rows_of_track_ids(said.get(FeedbackKind.FEEDBACK_KIND_LOVE, [])),
                disliked=catalogue.rows_of_track_ids(
                    said.get(FeedbackKind.FEEDBACK_KIND_DISLIKE, []) + said.get(FeedbackKind.FEEDBACK_KIND_BAN, [])
                ),
                banned_artist=banned_artists,
                recommended_row=catalogue.columns.rows_of(shown),
                recommended_day=np.repeat(
                    np.array([(day - EPOCH).days for day, _ in lists], np.int32), [len(keys) for _, keys in lists]
                ),
                familiar_share=dials[place],
            )
        )
    return listeners


def exclusions(listeners: Sequence[Listener], catalogue: Catalogue) -> tuple[Array, Array]:
    """(splits i64 [U+1], track_key u64): what must not be retrieved, so that the rules' filters leave a full list."""
    lists: list[Array] = []
    for listener in listeners:
        rows: list[Array] = [listener.disliked, listener.recommended_row]
        if len(listener.banned_artist):
            rows.append(np.flatnonzero(np.isin(catalogue.columns.artist, listener.banned_artist)))
        lists.append(np.unique(np.concatenate(rows)))
    splits = np.cumsum([0, *map(len, lists)], dtype=np.int64)
    return splits, catalogue.columns.track_key[np.concatenate(lists).astype(np.int64)]


def make_lists(known: Known, scored: Scored | None, release_id: str | None, cause: Fallback) -> list[MadeList]:
    """The lists that have a song. Without scores, `cause` says why there are none, and every list is a fallback."""
    if scored is not None:
        row = known.catalogue.columns.rows_of(scored.track_key)
        evidence = known.catalogue.columns.rows_of(scored.evidence)
    lists = []
    for place, (user_id, listener) in enumerate(zip(known.user_ids, known.listeners, strict=True)):
        candidates = None
        if scored is not None:
            own = slice(int(scored.splits[place]), int(scored.splits[place + 1]))
            candidates = Candidates.of(row[own], scored.score[own], evidence[own])
        inputs = Inputs(
            tenant_id=known.tenant.tenant_id,
            user_id=user_id,
            playlist_date=known.dates[place],
            made_at=known.made_at,
            trace_id=known.trace_id,
            rules=known.rules,
            catalogue=known.catalogue,
            popular=known.popular,
            listener=listener,
            candidates=candidates,
            release_id=release_id,
            cause=cause,
        )
        try:
            made = _made(inputs)
        except Exception:
            # One listener whose data the rules cannot take must not cost the others of the batch their lists.
            log.exception("list.failed", tenant_id=inputs.tenant_id, user_id=user_id)
            continue
        if made is not None:
            lists.append(made)
    return lists


def remake(inputs: bytes) -> bytes:
    """The message of the list beside which these inputs are kept, made again. The rules being the same, so are the bytes."""
    made = _made(unpack(inputs))
    if made is None:
        raise ValueError("No list comes of these inputs: they are read by other rules than those that made it.")
    return made.message


def _made(inputs: Inputs) -> MadeList | None:
    """The personal list, or the fallback where it cannot be made. None: there is no song to recommend."""
    if inputs.candidates is None or not len(inputs.listener.heard_row):
        return _finished(inputs, _fallback(inputs, inputs.cause or Fallback.NO_HISTORY), filled=True)
    try:
        made, filled = _personal(inputs, inputs.candidates)
        return _finished(inputs, made, filled=filled)
    except Exception:
        log.exception("list.personal_failed", tenant_id=inputs.tenant_id, user_id=inputs.user_id)
        return _finished(inputs, _fallback(inputs, Fallback.PERSONAL_FAILED), filled=True)


def _finished(inputs: Inputs, made: ListOfTheDay, *, filled: bool) -> MadeList | None:
    if not made.recommendations:
        return None
    keys = inputs.catalogue.columns.track_key[[item.row for item in made.recommendations]]
    return MadeList(
        user_id=inputs.user_id,
        playlist_date=inputs.playlist_date,
        version=1,
        message=_message(inputs, made),
        track_keys=[to_signed(key) for key in keys.tolist()],
        fallback=int(made.fallback),
        trace_id=inputs.trace_id,
        inputs=pack(inputs, made, filled=filled),
    )


def _personal(inputs: Inputs, candidates: Candidates) -> tuple[ListOfTheDay, bool]:
    """The list of the scored candidates, and whether popular songs had to fill it: only where these run out."""
    candidates = _with_reason(candidates, inputs)
    made = _ruled(inputs, candidates)
    if Shortfall.FEW_CANDIDATES in made.shortfalls:
        return _ruled(inputs, with_popular(candidates, inputs.popular)), True
    return made, False


def _ruled(inputs: Inputs, candidates: Candidates) -> ListOfTheDay:
    return make_list(
        candidates,
        inputs.listener,
        catalogue=inputs.catalogue.columns,
        popular=inputs.popular,
        rules=inputs.rules,
        today=(inputs.playlist_date - EPOCH).days,
    )


def _fallback(inputs: Inputs, cause: Fallback) -> ListOfTheDay:
    return fallback_list(
        inputs.listener,
        catalogue=inputs.catalogue.columns,
        popular=inputs.popular,
        rules=inputs.rules,
        today=(inputs.playlist_date - EPOCH).days,
        cause=cause,
    )


def _with_reason(candidates: Candidates, inputs: Inputs) -> Candidates:
    """Without the songs that the listener only ever skipped (they are heard, but nobody asked for them again), and without
    discoveries that nothing in the listener's history speaks for.
    """
    listener, artist_of = inputs.listener, inputs.catalogue.columns.artist
    listened = listener.heard_row[listener.listens > 0]
    artists = np.unique(artist_of[listened])
    known = candidates.row >= 0
    spoken_for = find(candidates.evidence, listened)[1]
    spoken_for |= find(np.where(known, artist_of[candidates.row], -1), artists[artists >= 0])[1]
    keep = np.where(find(candidates.row, listener.heard_row)[1], find(candidates.row, listened)[1], spoken_for)
    return Candidates(candidates.row[keep], candidates.score[keep], candidates.evidence[keep])


def _message(inputs: Inputs, made: ListOfTheDay) -> bytes:
    return encode_list(
        made,
        inputs.catalogue,
        tenant_id=inputs.tenant_id,
        user_id=inputs.user_id,
        playlist_date=inputs.playlist_date,
        made_at=inputs.made_at,
        release_id=None if made.fallback else inputs.release_id,
    )
