"""One owner for every local process: starts them in order, restarts what dies, leaves nothing behind.

    async with Supervisor(run_dir) as supervisor:
        await supervisor.start(Child("kafka", argv, ready=answers_metadata))
        …

Each child runs below a guard (guard.py) which ends it, and all it started, when this process ends in any way, SIGKILL
included. Leaving the block stops the children in reverse order of their start. A child that keeps dying is given up:
the task that opened the block is cancelled and the block raises Unusable with one sentence and the end of the log.
"""

import asyncio
import contextlib
import fcntl
import itertools
import json
import os
import signal
import sys
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self, TextIO

from shared.errors import Unusable

_GUARD = Path(__file__).with_name("guard.py")
_POLL_S = 0.05
_FIRST_BACKOFF_S = 0.1
_LONGEST_BACKOFF_S = 5.0
# A child that lived this long after its start did work: its next death starts the count of crashes anew.
_STEADY_S = 20.0
_CRASHES_AT_MOST = 5
# The exit status of a process of ours that cannot run as configured; the last line of its log says why.
_CANNOT_RUN = 2

Ready = Callable[[], Awaitable[bool]]
"""Asks once whether the child can be used. It may not raise, and bounds its own time."""


@dataclass(frozen=True)
class Child:
    """One process to look after.

    `env` is its whole environment (None: this process's); `log` is `logs/<name>.log` of the run folder unless given.
    Neighbours in the order of start that have the same `group` are stopped at once.
    """

    name: str
    argv: Sequence[str]
    env: Mapping[str, str] | None = None
    ready: Ready | None = None
    log: Path | None = None
    restart: bool = True
    cwd: Path | None = None
    ready_within_s: float = 60.0
    stop_signal: signal.Signals = signal.SIGTERM
    stop_within_s: float = 15.0
    group: str | None = None


@dataclass
class _Life:
    """What is known about a child now. `pid` is None between two of its processes, `worked`: it was ready once."""

    child: Child
    log: Path
    pid: int | None = None
    returncode: int | None = None
    starts: int = 0
    wanted: bool = True
    worked: bool = False
    guard: asyncio.subprocess.Process | None = None
    ready: asyncio.Event = field(default_factory=asyncio.Event)
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    keeper: asyncio.Task[None] | None = None
    failure: Unusable | None = None


class Supervisor:
    """Start, watch, restart and stop child processes. One supervisor per run folder at a time, held by a lock file.

    `tell` gets one sentence whenever a child died and is started again; by default it goes to `supervisor.log`, where
    the children's starts are.
    """

    def __init__(self, run_dir: Path, *, tell: Callable[[str], None] | None = None) -> None:
        self.run_dir = run_dir.resolve()
        self.logs = self.run_dir / "logs"
        self._tell = tell or self._note
        self._lives: dict[str, _Life] = {}
        self._lock: TextIO | None = None
        self._owner: asyncio.Task[object] | None = None
        self._failure: Unusable | None = None

    async def __aenter__(self) -> Self:
        self.logs.mkdir(parents=True, exist_ok=True)
        self._lock = _lock(self.run_dir)
        self._owner = asyncio.current_task()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # Shielded: a second Ctrl-C must not leave half of the children running while this process lives on.
        stopping = asyncio.ensure_future(self._stop_all())
        try:
            await asyncio.shield(stopping)
        except asyncio.CancelledError:
            await stopping
            raise
        finally:
            if self._lock is not None:
                self._lock.close()
        if self._failure is not None and (error is None or isinstance(error, asyncio.CancelledError)):
            if self._owner is not None:
                self._owner.uncancel()
            raise self._failure from None

    async def start(self, child: Child) -> None:
        """Start it and wait until it is ready. Raises Unusable when it ends before that or takes too long."""
        if child.name in self._lives and self._lives[child.name].wanted:
            raise ValueError(f"{child.name} is running already")
        log = child.log or self.logs / f"{child.name}.log"
        log.parent.mkdir(parents=True, exist_ok=True)
        life = _Life(child, log)
        self._lives.pop(child.name, None)
        self._lives[child.name] = life
        life.keeper = asyncio.create_task(self._keep(life), name=f"keep {child.name}")
        if not await self._becomes_ready(life):
            failure = life.failure or self._too_slow(life)
            await self._end(life)
            if not life.keeper.cancelled():
                life.keeper.result()
            raise failure

    def pid(self, name: str) -> int:
        """The process id of the child itself, not of its guard. Raises Unusable while it is not running."""
        pid = self._life(name).pid
        if pid is None:
            raise Unusable(f"{name} is not running at this moment: wait for it, or read {self._life(name).log}.")
        return pid

    def starts(self, name: str) -> int:
        """How often it was started: 1 until its first restart."""
        return self._life(name).starts

    def log(self, name: str) -> Path:
        return self._life(name).log

    @property
    def names(self) -> tuple[str, ...]:
        """Of what is to be running, in order of start."""
        return tuple(name for name, life in self._lives.items() if life.wanted)

    def signal(self, name: str, number: signal.Signals) -> None:
        """Send a signal to the child. After SIGKILL, `wait_ready` waits for its successor."""
        life = self._life(name)
        if number == signal.SIGKILL:
            life.ready.clear()
        if life.guard is not None and life.guard.stdin is not None:
            life.guard.stdin.write(bytes([number]))

    def kill(self, name: str) -> None:
        """As if it crashed (SIGKILL): it is started again when its `restart` says so."""
        self.signal(name, signal.SIGKILL)

    async def wait_ready(self, name: str, *, other_than: int | None = None) -> int:
        """The pid of the running and ready child; `other_than` is the pid of the one whose successor is wanted."""
        life = self._life(name)
        while life.pid in (None, other_than) or not life.ready.is_set():
            if life.failure is not None:
                raise life.failure
            if life.ended.is_set():
                raise self._crashed(life)
            await asyncio.sleep(_POLL_S)
        return self.pid(name)

    async def wait(self, name: str) -> int:
        """Wait for the end of a child that is not restarted; its return code (negative: the signal)."""
        life = self._life(name)
        await life.ended.wait()
        return life.returncode if life.returncode is not None else 0

    async def restart(self, name: str) -> None:
        """Stop it in order and start it anew with the same arguments."""
        child = self._life(name).child
        await self.stop(name)
        await self.start(child)

    async def stop(self, name: str) -> None:
        """Stop it in order: its stop signal, then SIGKILL after the grace. Nothing happens when it runs no more."""
        await self._end(self._life(name))

    def _life(self, name: str) -> _Life:
        return self._lives[name]

    async def _stop_all(self) -> None:
        for _, lives in itertools.groupby(
            reversed(list(self._lives.values())), lambda life: life.child.group or id(life)
        ):
            await asyncio.gather(*(self._end(life) for life in lives))

    async def _end(self, life: _Life) -> None:
        life.wanted = False
        if life.keeper is None:
            return
        if life.pid is None:
            # Between two processes, or not yet begun: nothing that would want to end in order.
            life.keeper.cancel()
        elif life.guard is not None and life.guard.stdin is not None:
            # SIGCONT: a frozen process would not see the request to stop.
            life.guard.stdin.write(bytes([life.child.stop_signal, signal.SIGCONT]))
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(life.ended.wait(), life.child.stop_within_s)
            # End of file: the guard kills whatever is left.
            life.guard.stdin.close()
        await asyncio.wait([life.keeper])

    async def _keep(self, life: _Life) -> None:
        """Run the child, again and again while it is wanted and restarted."""
        child, crashes, backoff_s = life.child, 0, _FIRST_BACKOFF_S
        try:
            while life.wanted:
                begun = time.monotonic()
                await self._run_once(life)
                if not life.wanted:
                    return
                if not life.worked:
                    # `start` is still waiting for it, and raises this.
                    life.failure = self._crashed(life)
                    return
                if not child.restart:
                    return
                if time.monotonic() - begun > _STEADY_S:
                    crashes, backoff_s = 0, _FIRST_BACKOFF_S
                crashes += 1
                if crashes > _CRASHES_AT_MOST:
                    life.failure = self._crashed(life)
                    self._fail(life.failure)
                    return
                self._tell(f"{child.name} {_how_it_ended(life.returncode)} and is started again.")
                await asyncio.sleep(backoff_s)
                backoff_s = min(2 * backoff_s, _LONGEST_BACKOFF_S)
        finally:
            life.wanted = False
            life.ended.set()

    async def _run_once(self, life: _Life) -> None:
        child = life.child
        guard = await asyncio.create_subprocess_exec(
            *(sys.executable, "-I", "-S", str(_GUARD), str(life.log), *child.argv),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            env=child.env,
            cwd=child.cwd,
            start_new_session=True,
        )
        life.guard = guard
        life.starts += 1
        probe: asyncio.Task[None] | None = None
        try:
            if guard.stdout is None:
                raise AssertionError
            async for line in guard.stdout:
                fact = json.loads(line)
                if "pid" in fact:
                    life.pid = fact["pid"]
                    probe = asyncio.create_task(self._probe(life), name=f"probe {child.name}")
                else:
                    life.returncode = fact["returncode"]
        finally:
            life.pid = None
            if child.restart:
                life.ready.clear()
            if probe is not None:
                probe.cancel()
            if guard.stdin is not None:
                guard.stdin.close()
            await guard.wait()

    async def _probe(self, life: _Life) -> None:
        begun = time.monotonic()
        while life.child.ready is not None and not await life.child.ready():  # noqa: ASYNC110  it is asked, it does not tell
            await asyncio.sleep(_POLL_S)
        life.worked = True
        life.ready.set()
        self._note(f"{life.child.name} is ready after {time.monotonic() - begun:.1f} s.")

    async def _becomes_ready(self, life: _Life) -> bool:
        ready, ended = (asyncio.ensure_future(event.wait()) for event in (life.ready, life.ended))
        try:
            await asyncio.wait([ready, ended], timeout=life.child.ready_within_s, return_when=asyncio.FIRST_COMPLETED)
        finally:
            ready.cancel()
            ended.cancel()
        return life.ready.is_set()

    def _fail(self, failure: Unusable) -> None:
        self._failure = failure
        self._tell(str(failure))
        if self._owner is not None and not self._owner.done():
            self._owner.cancel()

    def _crashed(self, life: _Life) -> Unusable:
        if life.returncode == _CANNOT_RUN:
            sentence = _tail(life.log, lines=1).strip()
            return Unusable(f"{life.child.name} cannot run: {sentence} Its log: {life.log}")
        often = "" if life.starts == 1 else f", {life.starts} times in a row"
        return Unusable(
            f"{life.child.name} {_how_it_ended(life.returncode)}{often}: "
            f"see {life.log}, which ends with\n{_tail(life.log)}"
        )

    def _too_slow(self, life: _Life) -> Unusable:
        return Unusable(
            f"{life.child.name} was not ready within {life.child.ready_within_s:g} s: "
            f"see {life.log}, which ends with\n{_tail(life.log)}"
        )

    def _note(self, sentence: str) -> None:
        with (self.logs / "supervisor.log").open("a", encoding="utf-8") as log:
            log.write(f"{time.strftime('%Y-%m-%dT%H:%M:%SZ', time.gmtime())} {sentence}\n")


def _how_it_ended(returncode: int | None) -> str:
    if returncode is None:
        return "lost its guard process"
    if returncode < 0:
        return f"was ended by {signal.Signals(-returncode).name}"
    return f"stopped with exit code {returncode}"


def _tail(log: Path, lines: int = 8) -> str:
    with contextlib.suppress(OSError), log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - 8192))
        text = file.read().decode("utf-8", "replace").rstrip()
        return "\n".join(f"  {line[:300]}" for line in text.splitlines()[-lines:]) or "  (nothing)"
    return "  (nothing)"


def _lock(run_dir: Path) -> TextIO:
    """Held by the open file: the kernel lets go of it however this process ends."""
    file = (run_dir / "lock").open("a+", encoding="ascii")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        file.seek(0)
        holder = file.read().strip() or "unknown"
        file.close()
        raise Unusable(
            f"The run folder {run_dir} is in use by process {holder}: stop that one, or choose another folder."
        ) from error
    file.truncate(0)
    file.write(f"{os.getpid()}\n")
    file.flush()
    return file
