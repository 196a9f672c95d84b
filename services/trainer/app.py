"""The trainer, put together.

`python -m services.trainer` collects the archive and trains each tenant anew when its interval has passed and plays have
come; `python -m services.trainer train --tenant T` trains one tenant now and exits (status 3: the gate refused, 4: there
was nothing to train on).
"""

import argparse
import asyncio
import os
import sys
import time
from pathlib import Path

import structlog

from services.trainer.archive import Archive
from services.trainer.handler import Collector
from services.trainer.settings import TrainerSettings
from shared.kafka.broker import KafkaLog
from shared.kafka.consumer import consume_at_least_once
from shared.kafka.progress import Progress
from shared.process import clock_of, run, verifier_of
from shared.rpc.server import Server
from shared.topics import PLAYS

log = structlog.get_logger()

REFUSED, NOTHING_TO_TRAIN_ON = 3, 4
MAX_RECORDS = 500
MAX_WAIT_S = 1.0
LOOK_EVERY_S = 60.0


async def serve(settings: TrainerSettings) -> None:
    archive = Archive(Path(settings.archive))
    stop, progress = asyncio.Event(), Progress()
    async with (
        Server(
            settings.trainer_listen,
            policies={},
            verifier=verifier_of(settings, clock_of(settings)),
            servicers=[],
            max_concurrent=8,
        ) as server,
        KafkaLog.open(settings.kafka_bootstrap_servers, client_id="trainer") as events,
        asyncio.TaskGroup() as tasks,
    ):
        tasks.create_task(
            consume_at_least_once(
                events,
                "trainer",
                [PLAYS],
                Collector(archive),
                stop=stop,
                max_records=MAX_RECORDS,
                max_wait_s=MAX_WAIT_S,
                progress=progress,
            )
        )
        side = [
            tasks.create_task(_schedule(settings, archive)),
            tasks.create_task(server.health.follow(progress.stuck)),
            tasks.create_task(progress.tell()),
        ]
        await server.serve_until_stopped()
        stop.set()
        for task in side:
            task.cancel()


async def _schedule(settings: TrainerSettings, archive: Archive) -> None:
    """Train a tenant whose plays have doubled, or whose last training is an interval ago and who has new ones.

    Each training is a process of its own, so that collecting and health go on meanwhile.
    """
    if not settings.trainer_interval_s:
        return
    trained: dict[str, tuple[float, int]] = {}
    while True:
        for tenant_id, rows in sorted((await asyncio.to_thread(archive.tenants)).items()):
            at, rows_then = trained.get(tenant_id, (0.0, 0))
            late = time.monotonic() - at >= settings.trainer_interval_s
            if rows >= 2 * rows_then or (rows > rows_then and late):
                status = await _train_apart(tenant_id)
                trained[tenant_id] = time.monotonic(), rows
                log.info("training.ended", tenant_id=tenant_id, status=status)
        await asyncio.sleep(LOOK_EVERY_S)


async def _train_apart(tenant_id: str) -> int:
    """The exit status of `train`."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "services.trainer", "train", "--tenant", tenant_id
    )
    try:
        return await process.wait()
    finally:
        if process.returncode is None:
            process.terminate()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m services.trainer", description=__doc__)
    commands = parser.add_subparsers(dest="command")
    one = commands.add_parser("train", help="train one tenant now and exit")
    one.add_argument("--tenant", required=True)
    one.add_argument("--progress", action="store_true", help="write a JSON line per epoch to stderr")
    arguments = parser.parse_args()
    if arguments.command is None:
        run("trainer", TrainerSettings, serve)
        return

    # Threads that wait for each other sleep: where other processes run beside, spinning makes training five times slower.
    # Read when torch is loaded, which is here: it takes seconds and 300 MB, and collecting needs none of it.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    from services.trainer.training import tell, train  # noqa: PLC0415

    async def train_now(settings: TrainerSettings) -> None:
        decision = await train(settings, arguments.tenant, tell if arguments.progress else lambda _: None)
        if decision is None:
            raise SystemExit(NOTHING_TO_TRAIN_ON)
        if not decision.passed:
            raise SystemExit(REFUSED)

    run("trainer", TrainerSettings, train_now)
