"""One system for all end-to-end tests: starting, feeding and training it costs more than they do."""

from collections.abc import AsyncIterator

import pytest_asyncio

from tests.e2e.system import System, running, small_world


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def system() -> AsyncIterator[System]:
    """Three in ten plays are held back for the tests that let them flow."""
    async with running("e2e", small_world(0.3), held_back=0.3) as found:
        yield found
