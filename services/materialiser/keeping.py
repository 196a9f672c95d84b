"""What is old goes: the lists' inputs after a week, the lists themselves after two months, a bounded part at a time."""

import asyncio

import structlog

from services.materialiser.domain import kept
from services.materialiser.store import Store
from shared.clock import Clock
from shared.errors import Transient

log = structlog.get_logger()

LIMIT = 2000
"""Lists a statement: some 0.1 s of Postgres, so that it holds up no batch."""
PAUSE_S = 3600.0
SHORT_PAUSE_S = 1.0
"""While there is more: so one service keeps up with 170 million lists a day."""


async def purge(store: Store, clock: Clock) -> None:
    """For as long as the service runs. Postgres may go away meanwhile: the next hour has what is left."""
    while True:
        pause_s = PAUSE_S
        try:
            inputs, lists = await store.purge(kept(clock.now()), LIMIT)
        except Transient as error:
            log.warning("lists.purge_delayed", reason=str(error))
        else:
            if inputs or lists:
                log.info("lists.purged", inputs=inputs, lists=lists)
            if LIMIT in (inputs, lists):
                pause_s = SHORT_PAUSE_S
        await asyncio.sleep(pause_s)
