"""A reason as a sentence. Names are given by the caller; an unknown language gets English."""

from typing import NamedTuple

from shared.recommend.values import Reason, ReasonKind


class Names(NamedTuple):
    """What the reason's numbers are called; empty where the reason names none."""

    track: str = ""
    artist: str = ""
    genre: str = ""


def render(reason: Reason, names: Names, language: str = "en", *, recommended: int | None = None) -> str:
    """`recommended` is the row that the reason is for: a song that is loved itself is not called its own cause."""
    if reason.kind is ReasonKind.BECAUSE_YOU_LOVED and reason.track == recommended is not None:
        return "你喜爱这首歌" if language.startswith("zh") else "You love this song"
    number = reason.number or 0
    if language.startswith("zh"):
        return _CHINESE[reason.kind].format(names=names, number=number, span=_chinese_span(number))
    return _ENGLISH[reason.kind].format(
        names=names,
        number=number,
        span=_english_span(number),
        times=_counted(number, "time"),
        listens=_counted(number, "listen"),
    )


_ENGLISH = {
    ReasonKind.NONE: "",
    ReasonKind.YOU_OFTEN_PLAY: "You often play this ({listens})",
    ReasonKind.YOU_HAVE_PLAYED: "You have played this {times}",
    ReasonKind.NOT_HEARD_FOR: "You have not heard this for {span}",
    ReasonKind.BECAUSE_YOU_LOVED: "Because you loved {names.track}",
    ReasonKind.BECAUSE_YOU_PLAY: "Because you play {names.track} ({listens})",
    ReasonKind.UNHEARD_FROM_ARTIST: "New to you from {names.artist} ({listens})",
    ReasonKind.POPULAR_IN_GENRE: "Popular in {names.genre}, which you listen to",
    ReasonKind.POPULAR: "Popular with listeners here",
}

_CHINESE = {  # full-width punctuation is the right one here
    ReasonKind.NONE: "",
    ReasonKind.YOU_OFTEN_PLAY: "你常听这首歌：{number} 次",
    ReasonKind.YOU_HAVE_PLAYED: "你播放过这首歌 {number} 次",
    ReasonKind.NOT_HEARD_FOR: "你已经{span}没听这首歌了",
    ReasonKind.BECAUSE_YOU_LOVED: "因为你喜爱《{names.track}》",
    ReasonKind.BECAUSE_YOU_PLAY: "因为你在听《{names.track}》：{number} 次",
    ReasonKind.UNHEARD_FROM_ARTIST: "{names.artist} 的歌，你听过 {number} 次，但还没听过这首",
    ReasonKind.POPULAR_IN_GENRE: "{names.genre} 热门，你也听这类音乐",
    ReasonKind.POPULAR: "这里的热门歌曲",
}


def _counted(number: int, thing: str) -> str:
    return f"{number:,} {thing}" if number == 1 else f"{number:,} {thing}s"


def _english_span(days: int) -> str:
    """Whole units, rounded down: what was not heard for 59 days was not heard for 1 month."""
    if days < 30:
        return _counted(days, "day")
    return _counted(days // 30, "month") if days < 365 else _counted(days // 365, "year")


def _chinese_span(days: int) -> str:
    if days < 30:
        return f" {days} 天"
    return f" {days // 30} 个月" if days < 365 else f" {days // 365} 年"
