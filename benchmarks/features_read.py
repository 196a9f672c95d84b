"""How fast features answers BatchGet, on a real Postgres: `python -m benchmarks.features_read`. Needs DATABASE_URL (an admin's).

512 users with 230 tracks each, of 4,000 users. Prints milliseconds a call, as served without the network.
"""

import asyncio
import os
import statistics
import time

from meiri.features.v1 import user_feature_service_pb2 as pb

from infra.local import postgres, schemas
from services.features.servicer import UserFeatureServicer
from shared.ids import TenantId
from shared.postgres import Database
from shared.rpc import principal as principals
from shared.rpc.principal import Principal, Scope

USERS, TRACKS = 4_000, 230
_FILL = """
INSERT INTO cells SELECT 'aurora', 'user-' || u, hashint8extended(t * 31 + u, 7), 20700 + (t + u) % 60, 1, 1, 0, 200000
FROM generate_series(0, $1::int - 1) AS u, generate_series(0, $2::int - 1) AS t
"""


async def main() -> None:
    admin, name = os.environ["DATABASE_URL"], f"bench_{os.getpid()}"
    await postgres.create_database(admin, name)
    try:
        urls = await schemas.prepare(postgres.with_database(admin, name), dict.fromkeys(schemas.SCHEMAS, "bench"))
        async with Database.open(
            postgres.with_database(admin, name), server_settings={"search_path": "features"}, statement_timeout_s=300
        ) as db:
            await db.execute(_FILL, USERS, TRACKS, timeout_s=300)
            await db.execute("VACUUM ANALYZE cells", timeout_s=300)
        async with Database.open(urls.urls["features"], pool_size=2) as db:
            principals.current.set(Principal(TenantId("aurora"), "bench", Scope.SERVICE))
            servicer, took, used = UserFeatureServicer(db), [], []
            for place in range(16):
                request = pb.BatchGetRequest(user_ids=[f"user-{(place * 512 + n) % USERS}" for n in range(512)])
                started, cpu = time.perf_counter(), time.process_time()
                answer = await servicer.BatchGet(request, None)
                size = len(answer.SerializeToString())
                took.append(time.perf_counter() - started)
                used.append(time.process_time() - cpu)
            median, here = statistics.median(took) * 1000, statistics.median(used) * 1000
            print(f"{size / 2**20:.1f} MiB, {median:.0f} ms a call, {here:.0f} ms CPU of it here")
    finally:
        await postgres.drop_database(admin, name)


if __name__ == "__main__":
    asyncio.run(main())
