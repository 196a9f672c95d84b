"""What the integration tests share beside the servers."""

from collections.abc import Callable

import pytest

from infra.local.schemas import Databases
from shared.topics import ALL, Topic
from tests.conftest import RealServers
from tests.integration.doors import Doors


@pytest.fixture(scope="module")
def doors(
    servers: RealServers,
    database: Databases,
    topics: Callable[[tuple[Topic, ...]], None],
    tmp_path_factory: pytest.TempPathFactory,
) -> Doors:
    topics(ALL)
    return Doors(tmp_path_factory.mktemp("doors"), servers.bootstrap_servers, database.urls["gateway"])
