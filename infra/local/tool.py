"""A program that does one thing and ends: initdb, Kafka's formatter, dbmate."""

import asyncio
import contextlib
from collections.abc import Mapping, Sequence
from pathlib import Path


async def finish(
    argv: Sequence[str], *, cwd: Path | None = None, env: Mapping[str, str] | None = None
) -> tuple[int, bytes]:
    """Run it to its end: its exit status and all it wrote. Whoever is cancelled while waiting takes it along."""
    process = await asyncio.create_subprocess_exec(
        *argv,
        cwd=cwd,
        env=env,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        # A Ctrl-C in the terminal is for this process, which then ends the program.
        start_new_session=True,
    )
    try:
        output, _ = await process.communicate()
    except BaseException:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()
        raise
    return process.returncode or 0, output


async def finish_into(log: Path, argv: Sequence[str], *, cwd: Path | None = None) -> int:
    """As `finish`, and what it wrote is appended to `log`; its exit status."""
    status, output = await finish(argv, cwd=cwd)
    with log.open("ab") as file:
        file.write(output)
    return status
