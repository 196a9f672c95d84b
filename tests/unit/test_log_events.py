"""docs/log-events.md lists every event the code logs, with its level, and none that it does not."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
CALL = re.compile(r"\b_?log\.(debug|info|warning|error|exception|critical)\(\s*([^,)\n]*)")
EVENT_NAME = re.compile(r'"([a-z0-9_]+(?:\.[a-z0-9_]+)+)"')


def logged_events() -> dict[tuple[str, str], str]:
    """(event name, level) → the file that logs it, for every call `log.<level>(…)` of ours."""
    found = {("library.log", "as given"): "shared/telemetry.py"}
    for folder in ("services", "shared", "infra"):
        for file in sorted((ROOT / folder).rglob("*.py")):
            for level, argument in CALL.findall(file.read_text()):
                place = str(file.relative_to(ROOT))
                name = EVENT_NAME.fullmatch(argument.split("  #")[0].strip())
                assert name, f"{place} logs {argument!r}, which is no constant dotted event name"
                found[name[1], level.replace("exception", "error")] = place
    return found


def listed_events() -> set[tuple[str, str]]:
    page = (ROOT / "docs" / "log-events.md").read_text()
    return set(re.findall(r"^\| `([a-z0-9_.]+)` \| ([a-z ]+) \|", page, flags=re.MULTILINE))


def test_every_logged_event_is_listed_with_its_level_and_meaning() -> None:
    listed = listed_events()
    assert {event: place for event, place in logged_events().items() if event not in listed} == {}


def test_every_listed_event_is_logged_somewhere() -> None:
    assert listed_events() - logged_events().keys() == set()
