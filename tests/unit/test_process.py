"""How a process ends that cannot go on."""

import subprocess
import sys

import pytest

PROGRAM = """
import asyncio
from shared.errors import {error}
from shared.process import run
from shared.settings import Settings

async def fails():
    raise {error}({arguments})

async def serve(settings):
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(fails())

run("test", Settings, serve)
"""


@pytest.mark.parametrize(
    ("error", "arguments", "status"),
    [
        ("Unusable", "'Kafka lost records: adopt the loss.'", 2),
        ("Transient", "'Kafka lost records: adopt the loss.'", 1),
        ("Permanent", "'lost', 'Kafka lost records: adopt the loss.'", 1),
    ],
)
def test_an_error_of_ours_that_nobody_caught_is_told_by_its_sentence(error: str, arguments: str, status: int) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(error=error, arguments=arguments)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (ended.returncode, ended.stderr) == (status, "Kafka lost records: adopt the loss.\n")
    assert '"event": "process.unusable"' in ended.stdout
