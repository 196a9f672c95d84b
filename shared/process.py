"""How every service's process starts and ends: settings, logs, one event loop, one sentence when it cannot go on."""

import gc
import sys
from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path
from typing import Any, TypeVar

import structlog
import uvloop

from shared import telemetry
from shared.clock import Clock
from shared.errors import MeiriError, Unusable
from shared.rpc.tokens import Verifier
from shared.settings import ServiceSettings, Settings, env_name, load

log = structlog.get_logger()

S = TypeVar("S", bound=Settings)


def run(service: str, settings_type: type[S], serve: Callable[[S], Coroutine[Any, Any, None]]) -> None:
    """Read the settings, then serve until the service ends.

    An error of ours that nobody caught, here or later, is told by its one sentence: exit status 2 for Unusable (the next start
    would fail too), else 1.
    """
    settings = load(settings_type)
    telemetry.configure(service)
    # What start-up made lives as long as the process: keep the collector from walking it again and again.
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)
    try:
        uvloop.run(_serve(serve(settings)))
    except MeiriError as error:
        sys.stderr.write(f"{error}\n")
        raise SystemExit(2 if isinstance(error, Unusable) else 1) from None
    except KeyboardInterrupt:
        raise SystemExit(130) from None


async def _serve(service: Awaitable[None]) -> None:
    try:
        await service
    except* MeiriError as group:
        # Task groups wrap what their tasks raise; the sentence is what the person at the terminal needs.
        error: BaseException = group
        while isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        log.error("process.unusable", reason=str(error), exc_info=None if isinstance(error, Unusable) else error)
        raise error from None


def clock_of(settings: ServiceSettings) -> Clock:
    return Clock(Path(settings.clock_file) if settings.clock_file else None)


def verifier_of(settings: ServiceSettings, clock: Clock) -> Verifier:
    """Raises Unusable when the key's file cannot be read."""
    return Verifier(read_file(settings, "token_public_key"), clock)


def read_file(settings: Settings, field: str) -> str:
    """The text of the file that a setting names. Raises Unusable when it cannot be read."""
    path = Path(getattr(settings, field))
    try:
        return path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        variable = env_name(type(settings), field)
        why = error.strerror if isinstance(error, OSError) else "it is no text"
        raise Unusable(f"{variable} names {path}, which cannot be read ({why}): name a file that can.") from None
