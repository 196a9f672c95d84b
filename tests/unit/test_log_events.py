"""docs/log-events.md lists every event the code logs, with its level, and none that it does not."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
LEVELS = {"debug", "info", "warning", "error", "exception", "critical"}
EVENT_NAME = re.compile(r"[a-z0-9_]+(\.[a-z0-9_]+)+")


def logged_events() -> dict[tuple[str, str], str]:
    """(event name, level) → the place that logs it, for every call `log.<level>(…)` of ours."""
    found = {("library.log", "as given"): "shared/telemetry.py"}
    for folder in ("services", "shared", "infra"):
        for file in sorted((ROOT / folder).rglob("*.py")):
            for node in ast.walk(ast.parse(file.read_text())):
                if (
                    isinstance(node, ast.Call)
                    and isinstance(node.func, ast.Attribute)
                    and node.func.attr in LEVELS
                    and isinstance(node.func.value, ast.Name | ast.Attribute)
                    and (node.func.value.id if isinstance(node.func.value, ast.Name) else node.func.value.attr)
                    in {"log", "_log"}
                ):
                    place = f"{file.relative_to(ROOT)}:{node.lineno}"
                    argument = node.args[0] if node.args else None
                    assert isinstance(argument, ast.Constant), f"{place} logs an event whose name is not constant"
                    assert EVENT_NAME.fullmatch(str(argument.value)), (
                        f"{place}: {argument.value!r} is no dotted event name"
                    )
                    found[str(argument.value), node.func.attr.replace("exception", "error")] = place
    return found


def listed_events() -> set[tuple[str, str]]:
    page = (ROOT / "docs" / "log-events.md").read_text()
    return set(re.findall(r"^\| `([a-z0-9_.]+)` \| ([a-z ]+) \|", page, flags=re.MULTILINE))


def test_every_logged_event_is_listed_with_its_level_and_meaning() -> None:
    listed = listed_events()
    assert {event: place for event, place in logged_events().items() if event not in listed} == {}


def test_every_listed_event_is_logged_somewhere() -> None:
    assert listed_events() - logged_events().keys() == set()
