"""Ports on 127.0.0.1, where every local server and service listens."""

import asyncio
import contextlib
import socket

from shared.errors import Unusable

LOOPBACK = "127.0.0.1"


def free_port() -> int:
    """A port that was free a moment ago. The caller binds it soon; who comes too late gets the sentence of `claim`."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.bind((LOOPBACK, 0))
        return int(probe.getsockname()[1])


def claim(port: int | None, *, what: str, setting: str) -> int:
    """The port asked for, or a free one when none was. Raises Unusable when another program holds it."""
    if port is None:
        return free_port()
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        # As the servers do: a port whose last connections are still closing counts as free.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
        except OSError as error:
            raise Unusable(
                f"Port {port}, where {what} should listen, is taken by another program: "
                f"stop that program, or set {setting} to a free port."
            ) from error
    return port


async def answers(host: str, port: int, *, timeout_s: float = 1.0) -> bool:
    """Whether something accepts connections there."""
    try:
        _, writer = await asyncio.wait_for(asyncio.open_connection(host, port), timeout_s)
    except (OSError, TimeoutError):
        return False
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()
    return True
