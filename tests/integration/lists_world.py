"""What the tests of lists share: a small tenant with listeners, and a check of whole lists."""

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import date, timedelta

from meiri.feedback.v1.feedback_event_pb2 import FeedbackKind
from meiri.playlist.v1.daily_playlist_pb2 import DailyPlaylist, Recommendation

from shared.codec.state import Tenant, Track
from shared.recommend.reason_check import History, verify_reason
from shared.recommend.values import Reason, ReasonKind
from tests.fakes import FakeFeatures, Heard, Said

EPOCH = date(1970, 1, 1)


@dataclass
class SmallTenant:
    """Tracks, and what each user did, as written into `features`. Users are numbered alike in every tenant."""

    tenant: Tenant
    tracks: dict[str, Track]
    users: list[str]
    features: FakeFeatures
    said: dict[str, list[Said]] = field(default_factory=dict)

    @classmethod
    def make(
        cls, tenant: Tenant, features: FakeFeatures, today: date, *, users: int = 40, tracks: int = 400, seed: int = 0
    ) -> "SmallTenant":
        """Some love, dislike or ban; some only skip; the last user has never played anything in the catalogue."""
        rng = random.Random(f"{seed}{tenant.tenant_id}")
        catalogue = {}
        for number in range(tracks):
            artist = number * 60 // tracks
            catalogue[f"{tenant.tenant_id}-{number}"] = Track(
                tenant.tenant_id,
                f"{tenant.tenant_id}-{number}",
                f"Song {number}",
                f"artist-{artist}",
                f"Artist {artist}",
                genre=None if artist % 7 == 0 else f"genre-{artist % 5}",
            )
        made = cls(tenant, catalogue, [f"u-{number:04d}" for number in range(users)], features)
        ids, day = list(catalogue), (today - EPOCH).days
        for user_id in made.users[:-1]:
            own = rng.sample(ids, rng.randint(1, 80))
            heard = {}
            for track_id in own:
                plays = rng.choice([1, 1, 1, 2, 3, 9])
                heard[track_id] = Heard(plays, rng.randint(0, plays), day - rng.randint(0, rng.choice([6, 80])))
            features.heard[tenant.tenant_id, user_id] = heard
            said = [
                Said(FeedbackKind.FEEDBACK_KIND_LOVE, track_id=rng.choice(own)),
                Said(FeedbackKind.FEEDBACK_KIND_DISLIKE, track_id=rng.choice(own)),
                Said(FeedbackKind.FEEDBACK_KIND_BAN, artist_id=f"artist-{rng.randrange(60)}"),
            ]
            made.said[user_id] = features.said[tenant.tenant_id, user_id] = rng.sample(said, rng.randint(0, 3))
        features.heard[tenant.tenant_id, made.users[-1]] = {"provisional:unknown": Heard(1, 1, day)}
        return made

    def check(self, playlist: DailyPlaylist) -> None:
        """Every promise about one list: its songs are the tenant's, allowed, mixed as asked, and their reasons true."""
        heard = self.features.heard.get((self.tenant.tenant_id, playlist.user_id), {})
        said = self.said.get(playlist.user_id, [])
        songs = [*playlist.recommendations, *playlist.spares]
        assert playlist.tenant_id == self.tenant.tenant_id
        assert playlist.recommendations
        assert len({song.track_id for song in songs}) == len(songs)
        assert max(Counter(song.artist_id for song in songs).values()) <= 3
        banned = {item.artist_id for item in said if item.artist_id}
        disliked = {item.track_id for item in said if item.track_id and item.kind != FeedbackKind.FEEDBACK_KIND_LOVE}
        true = self._checker(playlist)
        for song in songs:
            track = self.tracks[song.track_id]
            assert (song.title, song.artist_id, song.artist_name) == (track.title, track.artist_id, track.artist_name)
            assert song.familiar == (song.track_id in heard)
            assert song.artist_id not in banned
            assert song.track_id not in disliked
            assert true(song), f"{playlist.user_id}: {song.track_id}: {song.reason.sentence}"
        familiar = sum(song.familiar for song in playlist.recommendations)
        assert abs(playlist.familiar_share - familiar / len(playlist.recommendations)) < 1e-6
        if not playlist.shortfalls:
            assert len(playlist.recommendations) == self.tenant.list_length
            assert abs(playlist.familiar_share - playlist.familiar_share_wanted) <= 0.5 / self.tenant.list_length + 1e-6

    def _checker(self, playlist: DailyPlaylist) -> Callable[[Recommendation], bool]:
        """Is a song's reason true? By the checker of the rules, from the records of the fake, in numbers of its own."""
        heard = self.features.heard.get((self.tenant.tenant_id, playlist.user_id), {})
        said = self.said.get(playlist.user_id, [])
        number = {track_id: place for place, track_id in enumerate([*self.tracks, "provisional:unknown"])}
        artist = {name: place for place, name in enumerate({track.artist_id for track in self.tracks.values()})}
        genre = {name: place for place, name in enumerate({track.genre for track in self.tracks.values()} - {None})}
        facts = [*self.tracks.values()]
        history = History(
            plays={number[track_id]: item.plays for track_id, item in heard.items()},
            listens={number[track_id]: item.listens for track_id, item in heard.items()},
            last_played={number[track_id]: EPOCH + timedelta(item.last_day) for track_id, item in heard.items()},
            artist_of=[*(artist[track.artist_id] for track in facts), -1],
            genre_of=[*(-1 if track.genre is None else genre[track.genre] for track in facts), -1],
            loved={number[s.track_id] for s in said if s.track_id and s.kind == FeedbackKind.FEEDBACK_KIND_LOVE},
            popular={number[t] for t, _ in self.features.trending(self.tenant.tenant_id, 500) if t in self.tracks},
        )

        def true(song: Recommendation) -> bool:
            told = song.reason
            reason = Reason(
                ReasonKind(told.kind),
                track=number[told.track_id] if told.HasField("track_id") else None,
                artist=artist[told.artist_id] if told.HasField("artist_id") else None,
                genre=genre[told.genre] if told.HasField("genre") else None,
                number=told.number if told.HasField("number") else None,
            )
            assert bool(told.sentence) == (reason.kind is not ReasonKind.NONE)
            return verify_reason(reason, number[song.track_id], history, date.fromisoformat(playlist.playlist_date))

        return true


def recommended(playlist: DailyPlaylist) -> set[str]:
    return {song.track_id for song in playlist.recommendations}
