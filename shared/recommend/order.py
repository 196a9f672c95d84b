"""The order of a chosen list: a strong opening, sides interleaved, no artist twice in a row while avoidable."""

from collections import Counter
from collections.abc import Sequence

from shared.recommend.blend import Pool


def arrange(pool: Pool, chosen: Sequence[int]) -> list[int]:
    """The chosen positions (ascending, that is best first) in playing order.

    The best familiar song opens; then each side comes as evenly as its share and by falling score. Where an artist has
    more than half of what is left, one of their songs comes now: that keeps them apart for as long as they can be.
    """
    artist_of, is_familiar = pool.artist, pool.familiar
    familiar = [position for position in chosen if is_familiar[position]]
    discoveries = [position for position in chosen if not is_familiar[position]]
    songs_left = Counter(artist_of[position] for position in chosen)
    most = max(songs_left.values(), default=0)
    total, familiar_total = len(chosen), len(familiar)
    ordered: list[int] = []
    before: int | None = None
    for placed in range(total):
        half = (total - placed) // 2
        forced = None
        if most > half:  # else nobody can have so many
            forced = next((artist for artist, n in songs_left.items() if n > half and artist != before), None)
        behind = (familiar_total - len(familiar)) * total < (placed + 1) * familiar_total  # fewer than the share by now
        due, other = (familiar, discoveries) if behind else (discoveries, familiar)
        best = next(
            (p for side in (due, other) for p in side if artist_of[p] != before and forced in (None, artist_of[p])),
            (due or other)[0],  # all that is left is of one artist
        )
        (familiar if is_familiar[best] else discoveries).remove(best)
        ordered.append(best)
        before = artist_of[best]
        songs_left[before] -= 1
    return ordered
