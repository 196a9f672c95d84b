"""Choose so many familiar songs and so many discoveries, no artist more often than the cap, by score."""

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from typing import NamedTuple


class Pool(NamedTuple):
    """Valid candidates, best first; parallel sequences. A song without a known artist has a number of its own."""

    artist: Sequence[int]
    familiar: Sequence[bool]


def choose(
    pool: Pool, taken: AbstractSet[int], used: dict[int, int], *, cap: int, familiar: int, discoveries: int
) -> list[int]:
    """Ascending positions of `pool` beside those taken already. `used` counts songs by artist and is kept up to date.

    Both numbers are met exactly wherever the cap lets any choice meet both; where a side runs short the other fills up.
    """
    chosen: set[int] = set()
    wanted = [discoveries, familiar]  # indexed by `familiar`
    for position, (artist, side) in enumerate(zip(pool.artist, pool.familiar, strict=True)):
        if wanted[side] and position not in taken and used.get(artist, 0) < cap:
            chosen.add(position)
            used[artist] = used.get(artist, 0) + 1
            wanted[side] -= 1
            if not (wanted[0] or wanted[1]):
                return sorted(chosen)
    left = [position for position in range(len(pool.artist)) if position not in taken]
    for side in (False, True):
        while wanted[side] and _swap(pool, left, chosen, used, cap=cap, side=side):
            wanted[side] -= 1
    missing = wanted[0] + wanted[1]
    for position in left:
        if not missing:
            break
        artist = pool.artist[position]
        if position not in chosen and used.get(artist, 0) < cap:
            chosen.add(position)
            used[artist] = used.get(artist, 0) + 1
            missing -= 1
    return sorted(chosen)


def _swap(pool: Pool, left: Sequence[int], chosen: set[int], used: dict[int, int], *, cap: int, side: bool) -> bool:
    """One more song of `side`: it replaces its artist's weakest song of the other side, whose next best fills up.

    There are two sides only, so if this cannot help, no longer chain of swaps can.
    """
    refill = next(
        (p for p in left if p not in chosen and pool.familiar[p] != side and used.get(pool.artist[p], 0) < cap), None
    )
    if refill is None:
        return False
    for position in left:
        if position in chosen or pool.familiar[position] != side:
            continue
        artist = pool.artist[position]
        leaves = max((p for p in chosen if pool.artist[p] == artist and pool.familiar[p] != side), default=None)
        if leaves is not None:
            chosen.remove(leaves)
            chosen.update((position, refill))
            used[pool.artist[refill]] = used.get(pool.artist[refill], 0) + 1
            return True
    return False
