"""One call makes the world: the same seed, scale and `until` give the same world, byte for byte."""

from datetime import UTC, datetime, timedelta

import numpy as np

from infra.demo.world import catalogue, listeners, listening, names
from infra.demo.world.model import TenantWorld, World

DAYS = 90
SESSIONS_MEDIAN = 4.6  # per listener in DAYS; with set D's session length about 100 plays each
TENANTS = {"aurora": (1_300, 6_500), "birch": (900, 4_500)}  # listeners, tracks at scale 1


def generate(until: datetime, *, seed: int = 7, scale: float = 1.0) -> World:
    """Two tenants with their own catalogues and listeners; plays of the 90 days that end at `until` (zone-aware).

    Scale 1 has 2,200 listeners, 11,000 tracks and 210,000 to 250,000 plays. Both tenants number their users from
    u-000001, on purpose: equal ids of two tenants are two people. Track and artist ids carry the tenant's name.
    """
    if until.tzinfo is None:
        raise ValueError("`until` needs a time zone.")
    until = until.astimezone(UTC)
    begin = until - timedelta(days=DAYS)
    sizes = {tenant: (max(20, round(n * scale)), max(220, round(t * scale))) for tenant, (n, t) in TENANTS.items()}
    artists = {tenant: max(40, tracks // catalogue.TRACKS_PER_ARTIST) for tenant, (_, tracks) in sizes.items()}
    invented = names.artist_names(sum(artists.values()), np.random.default_rng([seed, 0]))
    worlds = []
    for number, (tenant, (people_count, track_count)) in enumerate(sizes.items(), start=1):
        rng = np.random.default_rng([seed, number])
        own, invented = invented[: artists[tenant]], invented[artists[tenant] :]
        songs = catalogue.build(tenant, track_count, own, until, rng)
        people = listeners.build(people_count, SESSIONS_MEDIAN, DAYS, songs, rng)
        plays = listening.play(people, songs, begin, until, rng)
        worlds.append(TenantWorld(tenant, songs.tracks, people.listeners, plays))
    return World(tuple(worlds))
