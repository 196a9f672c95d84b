"""The order of a chosen list: a strong opening, sides interleaved, no artist twice in a row while avoidable."""

from collections import Counter
from collections.abc import Sequence

from shared.recommend.blend import Pool


def arrange(pool: Pool, chosen: Sequence[int]) -> list[int]:
    """The chosen positions (ascending, that is best first) in playing order.

    The best familiar song opens; then each side comes as evenly as its share and by falling score. Where an artist has
    more than half of what is left, one of their songs comes now: that keeps them apart for as long as they can be.
    """
    left = list(chosen)
    songs_left = Counter(pool.artist[position] for position in left)
    familiar_total = sum(pool.familiar[position] for position in left)
    ordered: list[int] = []
    familiar_placed = 0
    before: int | None = None
    while left:
        forced = next((a for a, n in songs_left.items() if n > len(left) // 2 and a != before), None)
        familiar_due = -(-(len(ordered) + 1) * familiar_total // len(chosen))
        side = familiar_placed < familiar_due
        best = _first(pool, left, side, before, forced)
        left.remove(best)
        ordered.append(best)
        before = pool.artist[best]
        familiar_placed += pool.familiar[best]
        songs_left[before] -= 1
        if not songs_left[before]:
            del songs_left[before]
    return ordered


def _first(pool: Pool, left: Sequence[int], side: bool, before: int | None, forced: int | None) -> int:
    """The best of the side that is due; else of the other; else, where all that is left is of one artist, the best."""
    other: int | None = None
    for position in left:
        artist = pool.artist[position]
        if artist == before or (forced is not None and artist != forced):
            continue
        if pool.familiar[position] == side:
            return position
        if other is None:
            other = position
    return left[0] if other is None else other
