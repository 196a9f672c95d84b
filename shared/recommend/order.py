"""The order of a chosen list: a strong opening, sides interleaved, no artist twice in a row while avoidable."""

from collections import Counter
from collections.abc import Sequence

from shared.recommend.blend import Pool


def arrange(pool: Pool, chosen: Sequence[int]) -> list[int]:
    """The chosen positions (ascending, that is best first) in playing order.

    The best familiar song opens; then each side comes as evenly as its share and by falling score. Where an artist has
    more than half of what is left, one of their songs comes now: that keeps them apart for as long as they can be.
    """
    familiar = [position for position in chosen if pool.familiar[position]]
    discoveries = [position for position in chosen if not pool.familiar[position]]
    songs_left = Counter(pool.artist[position] for position in chosen)
    most = max(songs_left.values(), default=0)
    familiar_total = len(familiar)
    ordered: list[int] = []
    before: int | None = None
    for left in range(len(chosen), 0, -1):
        forced = None
        if most > left // 2:  # else nobody can have so many
            forced = next((artist for artist, n in songs_left.items() if n > left // 2 and artist != before), None)
        familiar_due = -(-(len(ordered) + 1) * familiar_total // len(chosen))
        due = familiar_total - len(familiar) < familiar_due
        sides = (familiar, discoveries) if due else (discoveries, familiar)
        best = _first(pool, sides, before, forced)
        (familiar if pool.familiar[best] else discoveries).remove(best)
        ordered.append(best)
        before = pool.artist[best]
        songs_left[before] -= 1
    return ordered


def _first(pool: Pool, sides: tuple[list[int], list[int]], before: int | None, forced: int | None) -> int:
    """The best of the side that is due; else of the other; else, where all that is left is of one artist, the best."""
    for side in sides:
        for position in side:
            artist = pool.artist[position]
            if artist != before and forced in (None, artist):
                return position
    return (sides[0] or sides[1])[0]
