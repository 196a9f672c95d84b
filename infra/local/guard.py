"""Stands between the supervisor and one child process, so that nothing the child started can outlive the supervisor.

    python -I -S guard.py LOG PROGRAM [ARGUMENT…]

Standard input is the supervisor's hand on the child: every byte is a signal number to send to it, and end of file means
that the supervisor is gone (even by SIGKILL), so the child and everything below it is killed. Standard output says one
JSON line when the child runs (`{"pid": …}`) and one when it has ended (`{"returncode": …}`, negative for a signal).

The guard is the reaper of its descendants (Linux `PR_SET_CHILD_SUBREAPER`): a PostgreSQL backend, which leaves its
process group, still belongs to it after its parent died. If the guard itself is killed, the kernel kills the child
(`PR_SET_PDEATHSIG`). Uses the standard library alone: it has to start in milliseconds, once per child.
"""

import contextlib
import ctypes
import json
import os
import select
import signal
import sys
from pathlib import Path

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_STDIN, _STDOUT = 0, 1
_OURS = (signal.SIGINT, signal.SIGHUP, signal.SIGTERM)


def _prctl(option: int, value: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)


def _say(**facts: int) -> None:
    # The supervisor may be gone already: the child still has to be ended.
    with contextlib.suppress(BrokenPipeError):
        os.write(_STDOUT, json.dumps(facts).encode() + b"\n")


def _children() -> list[int]:
    """Direct children, those included that were handed to this process when their own parent died."""
    with contextlib.suppress(OSError):
        text = Path(f"/proc/self/task/{os.getpid()}/children").read_text(encoding="ascii")
        return [int(pid) for pid in text.split()]
    return []


def _kill_descendants(child: int | None) -> None:
    """Return when no descendant is left: each kill may hand its orphans to this process, which the next round kills."""
    if child is not None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child, signal.SIGKILL)
    while True:
        for pid in _children():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        try:
            os.waitpid(-1, 0)
        except ChildProcessError:
            return


def _become(log: int, argv: list[str], guard: int) -> None:
    """In the new process: turn into the program. Its own session keeps a Ctrl-C in the terminal from reaching it."""
    os.setsid()
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != guard:
        os._exit(1)
    for number in (*_OURS, signal.SIGCHLD, signal.SIGPIPE):
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, set())
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, _STDIN)
    os.dup2(log, _STDOUT)
    os.dup2(log, 2)
    try:
        os.execvp(argv[0], argv)  # noqa: S606  no shell is wanted
    except OSError as error:
        os.write(2, f"{argv[0]} cannot be run: {error.strerror}\n".encode())
        os._exit(127)


def _reap(child: int) -> int | None:
    """Collect the dead; the child's return code if it is among them."""
    with contextlib.suppress(ChildProcessError):
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                return None
            if pid == child:
                return os.waitstatus_to_exitcode(status)
    return None


def main(log: str, argv: list[str]) -> None:
    # The Ctrl-C of a terminal and a closing terminal are the supervisor's to answer, in order.
    for number in _OURS:
        signal.signal(number, signal.SIG_IGN)
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)
    wake, waker = os.pipe()
    os.set_blocking(waker, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(waker, warn_on_full_buffer=False)
    guard = os.getpid()
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    # A signal that comes before the new process stopped ignoring it would be lost: it waits until then.
    signal.pthread_sigmask(signal.SIG_BLOCK, _OURS)
    child = os.fork()
    if child == 0:
        _become(output, argv, guard)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _OURS)
    _say(pid=child)
    while True:
        ready, _, _ = select.select([_STDIN, wake], [], [])
        if wake in ready:
            os.read(wake, 4096)
            returncode = _reap(child)
            if returncode is not None:
                # What the dead child started would keep its ports, files and shared memory from its successor.
                _kill_descendants(None)
                _say(returncode=returncode)
                return
        if _STDIN in ready:
            signals = os.read(_STDIN, 64)
            if not signals:
                _kill_descendants(child)
                return
            for sent in signals:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(child, sent)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
