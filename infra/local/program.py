"""The outermost frame of a local command: a sentence instead of a traceback, and an exit status that tells the end.

    python -m infra.local.program MODULE [ARGUMENT…]

runs a module so that a Ctrl-C which comes while it is still being imported is told as one that comes later.
"""

import asyncio
import runpy
import signal
import sys
from collections.abc import Coroutine, Sequence

from shared.errors import MeiriError, Unusable

_FAILED = 1
_CONFIGURATION = 2
_INTERRUPTED = 128 + signal.SIGINT
_TERMINATED = 128 + signal.SIGTERM


def run(main: Coroutine[object, object, object]) -> int:
    """Run it to its end; the exit status: 0, 1 (it failed), 2 (it cannot run as configured), 130 (Ctrl-C) or 143 (SIGTERM).

    Both signals cancel the coroutine, so that its `async with` blocks stop what they started.
    """
    terminated = False

    async def guarded() -> None:
        task = asyncio.current_task()

        def terminate() -> None:
            nonlocal terminated
            terminated = True
            if task is not None:
                task.cancel()

        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, terminate)
        await main

    try:
        asyncio.run(guarded())
    except (MeiriError, BaseExceptionGroup) as error:
        told = _told(error)
        if told is None:
            raise
        print(told, file=sys.stderr)
        return _CONFIGURATION if isinstance(told, Unusable) else _FAILED
    except KeyboardInterrupt:
        return _stopped()
    except asyncio.CancelledError:
        if not terminated:
            raise
        return _TERMINATED
    return 0


def _told(error: BaseException) -> MeiriError | None:
    """The error that has the sentence; task groups wrap theirs. None when one of them is a mistake of the program."""
    if not isinstance(error, BaseExceptionGroup):
        return error if isinstance(error, MeiriError) else None
    told = [_told(one) for one in error.exceptions]
    return None if None in told else told[0]


def _stopped() -> int:
    print("Stopped.", file=sys.stderr)
    return _INTERRUPTED


def launch(module: str, arguments: Sequence[str]) -> int:
    sys.argv[1:] = arguments
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    except KeyboardInterrupt:
        return _stopped()
    return 0


if __name__ == "__main__":
    sys.exit(launch(sys.argv[1], sys.argv[2:]))
