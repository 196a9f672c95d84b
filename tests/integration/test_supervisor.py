"""The supervisor with small processes: order, restarts, sentences, and nothing left behind however it ends."""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from infra.local.supervisor import Child, Supervisor
from shared.errors import Unusable

_SLEEP = (sys.executable, "-c", "import time; time.sleep(600)")
# Leaves its process group and ignores polite signals, as a PostgreSQL backend or a stuck worker may.
_STUBBORN_TREE = (
    sys.executable,
    "-c",
    textwrap.dedent(
        """
        import os, signal, subprocess, sys, time
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        deeper = "import os, signal, time; os.setsid(); signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"
        grandchild = subprocess.Popen([sys.executable, "-c", deeper])
        print(grandchild.pid, flush=True)
        time.sleep(600)
        """
    ),
)


def _alive(pid: int) -> bool:
    """Whether it runs; a dead process that nobody has collected yet does not."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


async def _until(holds: Callable[[], bool], within_s: float = 10.0) -> None:
    deadline = time.monotonic() + within_s
    while not holds():
        assert time.monotonic() < deadline, "it did not come true in time"
        await asyncio.sleep(0.02)


async def _says_up(log: Path) -> None:
    await _until(lambda: "up" in log.read_text())


@pytest.fixture
async def supervisor(tmp_path: Path) -> AsyncIterator[Supervisor]:
    async with Supervisor(tmp_path / "run") as running:
        yield running


async def test_a_child_killed_with_9_is_started_again(supervisor: Supervisor) -> None:
    await supervisor.start(Child("worker", _SLEEP))
    first = supervisor.pid("worker")
    os.kill(first, signal.SIGKILL)
    second = await supervisor.wait_ready("worker", other_than=first)
    assert second != first
    assert _alive(second)
    assert supervisor.starts("worker") == 2
    assert "worker was ended by SIGKILL and is started again." in (supervisor.logs / "supervisor.log").read_text()


async def test_what_a_dead_child_had_started_is_gone_before_its_successor_starts(supervisor: Supervisor) -> None:
    await supervisor.start(Child("tree", _STUBBORN_TREE, stop_within_s=0.5))
    first = supervisor.pid("tree")
    await _until(lambda: supervisor.log("tree").read_text().endswith("\n"))
    grandchild = int(supervisor.log("tree").read_text().split()[0])
    supervisor.kill("tree")
    await supervisor.wait_ready("tree", other_than=first)
    assert not _alive(grandchild)


async def test_stop_asks_first_and_kills_after_the_grace(supervisor: Supervisor) -> None:
    await supervisor.start(Child("tree", _STUBBORN_TREE, stop_within_s=0.5))
    await _until(lambda: supervisor.log("tree").read_text().endswith("\n"))
    child, grandchild = supervisor.pid("tree"), int(supervisor.log("tree").read_text())
    await supervisor.stop("tree")
    assert not _alive(child)
    assert not _alive(grandchild)


async def test_a_frozen_child_can_be_stopped(supervisor: Supervisor) -> None:
    await supervisor.start(Child("worker", _SLEEP))
    supervisor.signal("worker", signal.SIGSTOP)
    begun = time.monotonic()
    await supervisor.stop("worker")
    assert time.monotonic() - begun < 5.0


async def test_restart_ends_the_old_process_and_starts_a_new_one(supervisor: Supervisor) -> None:
    await supervisor.start(Child("worker", _SLEEP))
    first = supervisor.pid("worker")
    await supervisor.restart("worker")
    assert supervisor.pid("worker") != first
    assert not _alive(first)


async def test_children_are_stopped_in_reverse_order_of_their_start(tmp_path: Path) -> None:
    ends = tmp_path / "ends"
    program = (
        "import signal, sys, time; signal.signal(15, lambda *_: sys.exit(open(sys.argv[2], 'a').write(sys.argv[1])))"
    )
    async with Supervisor(tmp_path / "run") as running:
        for name in "abc":
            argv = (sys.executable, "-c", f"{program}; print('up', flush=True); time.sleep(600)", name, str(ends))
            await running.start(Child(name, argv))
            await _says_up(running.log(name))
    assert ends.read_text() == "cba"


async def test_a_child_that_ends_before_it_is_ready_is_told_with_the_end_of_its_log(supervisor: Supervisor) -> None:
    async def never() -> bool:
        return False

    argv = (sys.executable, "-c", "import sys; print('the port is mine'); sys.exit(3)")
    with pytest.raises(Unusable, match=r"worker stopped with exit code 3: see .*worker\.log[^\n]*\n  the port is mine"):
        await supervisor.start(Child("worker", argv, ready=never))


async def test_a_child_that_is_not_ready_in_time_is_told_and_stopped(supervisor: Supervisor) -> None:
    async def never() -> bool:
        return False

    with pytest.raises(Unusable, match=r"worker was not ready within 0\.3 s"):
        await supervisor.start(Child("worker", _SLEEP, ready=never, ready_within_s=0.3))
    with pytest.raises(Unusable, match="worker is not running"):
        supervisor.pid("worker")


async def test_a_program_that_is_not_there_is_told(supervisor: Supervisor) -> None:
    async def never() -> bool:
        return False

    with pytest.raises(Unusable, match="no-such-program cannot be run"):
        await supervisor.start(Child("worker", ("no-such-program",), ready=never))


async def test_a_crash_loop_ends_the_block_with_one_sentence_and_stops_the_others(tmp_path: Path) -> None:
    async def ready() -> bool:
        return True

    other = 0
    with pytest.raises(Unusable, match="broken stopped with exit code 1, 6 times in a row") as told:  # noqa: PT012
        async with Supervisor(tmp_path / "run") as running:
            await running.start(Child("other", _SLEEP))
            other = running.pid("other")
            crash = (sys.executable, "-c", "import sys, time; time.sleep(0.2); sys.exit('no luck')")
            await running.start(Child("broken", crash, ready=ready))
            await asyncio.sleep(60)
    assert "no luck" in str(told.value)
    assert not _alive(other)


async def test_a_command_that_ends_is_waited_for(supervisor: Supervisor) -> None:
    await supervisor.start(Child("once", (sys.executable, "-c", "import sys; sys.exit(4)"), restart=False))
    assert await supervisor.wait("once") == 4


async def test_a_run_folder_has_one_supervisor_at_a_time(tmp_path: Path) -> None:
    async with Supervisor(tmp_path):
        with pytest.raises(Unusable, match=f"in use by process {os.getpid()}"):
            async with Supervisor(tmp_path):
                pass
    async with Supervisor(tmp_path):
        pass


_PROGRAM = """
import asyncio, sys
from pathlib import Path
from infra.local import program
from infra.local.supervisor import Child, Supervisor

async def main():
    async with Supervisor(Path(sys.argv[1])) as supervisor:
        await supervisor.start(Child("tree", sys.argv[2:], stop_within_s=0.5))
        print(supervisor.pid("tree"), flush=True)
        await asyncio.sleep(600)

sys.exit(program.run(main()))
"""


@contextlib.contextmanager
def _another_supervisor(run_dir: Path):  # type: ignore[no-untyped-def]
    """A supervisor in a process of its own with a stubborn tree below it, and the pids of that tree."""
    process = subprocess.Popen(
        [sys.executable, "-c", _PROGRAM, str(run_dir), *_STUBBORN_TREE],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stdout is not None
    pids: dict[str, int] = {}
    try:
        child = int(process.stdout.readline())
        log = run_dir / "logs" / "tree.log"
        while not log.exists() or not log.read_text().endswith("\n"):
            time.sleep(0.02)
        guard = int(Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()[1])
        pids = {"guard": guard, "child": child, "grandchild": int(log.read_text())}
        yield process, pids
    finally:
        process.kill()
        process.communicate()
        # A guard that was killed cannot end what its child had started.
        for pid in filter(_alive, pids.values()):
            os.kill(pid, signal.SIGKILL)


@pytest.mark.parametrize("frozen", [False, True])
async def test_no_orphan_is_left_when_the_supervisor_is_killed_with_9(tmp_path: Path, frozen: bool) -> None:
    with _another_supervisor(tmp_path) as (process, pids):
        if frozen:
            os.kill(pids["child"], signal.SIGSTOP)
        process.kill()
        await _until(lambda: not any(_alive(pid) for pid in pids.values()))


async def test_the_child_dies_with_its_guard(tmp_path: Path) -> None:
    with _another_supervisor(tmp_path) as (_, pids):
        os.kill(pids["guard"], signal.SIGKILL)
        await _until(lambda: not _alive(pids["child"]))


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
async def test_ctrl_c_and_sigterm_stop_everything_without_a_traceback(
    tmp_path: Path, number: signal.Signals, status: int
) -> None:
    with _another_supervisor(tmp_path) as (process, pids):
        # The whole group, as a terminal does it.
        os.killpg(process.pid, number)
        _, told = await asyncio.to_thread(process.communicate, timeout=15)
        assert process.returncode == status
        assert "Traceback" not in told
        assert not any(_alive(pid) for pid in pids.values())
