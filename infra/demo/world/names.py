"""Invented names: every combination of a pattern is numbered, so drawing numbers without repeats gives unique names."""

import itertools
from collections.abc import Callable, Sequence

import numpy as np

from infra.demo.world import words

Pattern = tuple[Callable[..., str], tuple[Sequence[str], ...]]


def _plural(noun: str) -> str:
    if noun == "Wolf":
        return "Wolves"
    if noun.endswith(("x", "ss", "ch")):
        return f"{noun}es"
    return f"{noun[:-1]}ies" if noun.endswith(("ny", "ry")) else f"{noun}s"


_ARTISTS: tuple[Pattern, ...] = (
    (lambda first, last: f"{first} {last}", (words.FIRST_NAMES, words.LAST_NAMES)),
    (lambda adjective, noun: f"The {adjective} {_plural(noun)}", (words.ADJECTIVES, words.NOUNS)),
    (lambda adjective, noun: f"{adjective} {noun}", (words.ADJECTIVES, words.NOUNS)),
    (lambda place, noun: f"{place} {noun}", (words.PLACES, words.NOUNS)),
    (lambda first, noun: f"{first} & the {_plural(noun)}", (words.FIRST_NAMES, words.NOUNS)),
    (lambda last, noun: f"{last} {noun} Club", (words.LAST_NAMES, words.NOUNS)),
)

_TITLES: tuple[Pattern, ...] = (
    (lambda adjective, noun: f"{adjective} {noun}", (words.ADJECTIVES, words.NOUNS)),
    (lambda verb, noun: f"{verb} the {noun}", (words.VERBS, words.NOUNS)),
    (lambda noun, place: f"{noun} in {place}", (words.NOUNS, words.PLACES)),
    (lambda verb, time: f"{verb} Me {time}", (words.VERBS, words.TIMES)),
    (lambda verb, noun: f"Don't {verb} the {noun}", (words.VERBS, words.NOUNS)),
    (lambda time, place: f"{time} in {place}", (words.TIMES, words.PLACES)),
    (lambda noun, time: f"{noun} of {time}", (words.NOUNS, words.TIMES)),
    (lambda first, noun: f"{first}'s {noun}", (words.FIRST_NAMES, words.NOUNS)),
    (lambda adjective, time: f"{adjective} {time}", (words.ADJECTIVES, words.TIMES)),
    (lambda noun: noun, (words.NOUNS,)),
)


def _size(pattern: Pattern) -> int:
    return int(np.prod([len(part) for part in pattern[1]]))


def _spell(pattern: Pattern, number: int) -> str:
    parts = []
    for part in pattern[1]:
        number, index = divmod(number, len(part))
        parts.append(part[index])
    return pattern[0](*parts)


def artist_names(count: int, rng: np.random.Generator) -> list[str]:
    """`count` different names; the patterns take turns until the shorter ones run out."""
    orders = [rng.permutation(_size(pattern)) for pattern in _ARTISTS]
    turns = itertools.zip_longest(
        *([(pattern, int(n)) for n in order] for pattern, order in zip(_ARTISTS, orders, strict=True))
    )
    names: dict[str, None] = {}
    for pattern_number in itertools.chain.from_iterable(turns):
        if len(names) >= count:
            break
        if pattern_number is not None:
            names[_spell(*pattern_number)] = None
    base = list(names)
    while len(names) < count:  # only far above the default size
        names[f"{base[len(names) % len(base)]} {1 + len(names) // len(base)}"] = None
    return list(names)


def titles(artist: Sequence[int], rng: np.random.Generator) -> list[str]:
    """One title per entry of `artist`; no artist has the same title twice, different artists may."""
    pattern_of = rng.integers(0, len(_TITLES), size=len(artist))
    number_of = rng.integers(0, 1 << 31, size=len(artist))
    seen: set[tuple[int, str]] = set()
    out = []
    for a, pattern, number in zip(artist, pattern_of.tolist(), number_of.tolist(), strict=True):
        title = _spell(_TITLES[pattern], number % _size(_TITLES[pattern]))
        part = 1
        while (key := (a, title if part == 1 else f"{title}, Pt. {part}")) in seen:
            part += 1
        seen.add(key)
        out.append(key[1])
    return out
