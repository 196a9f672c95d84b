"""Ports on 127.0.0.1, where every local server and service listens."""

import asyncio
import contextlib
import random
import socket
from collections.abc import Sequence
from pathlib import Path

from shared.errors import Unusable

LOOPBACK = "127.0.0.1"
_LOWEST = 10_000
_TRIES = 100


def free_port() -> int:
    """A port that was free a moment ago. The caller binds it soon; who comes too late gets the sentence of `claim`.

    It is none that the kernel gives to outgoing connections, where it can be helped: one of those would take it while
    a killed process is started again.
    """
    below = _lowest_outgoing()
    tries = random.sample(range(_LOWEST, below), _TRIES) if below - _LOWEST >= _TRIES else []
    for port in (*tries, 0):
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe, contextlib.suppress(OSError):
            probe.bind((LOOPBACK, port))
            return int(probe.getsockname()[1])
    raise Unusable("This machine has no free port left on 127.0.0.1: stop some programs.")


def _lowest_outgoing() -> int:
    try:
        return int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text(encoding="ascii").split()[0])
    except (OSError, ValueError):
        return 0


def claim_all(wanted: Sequence[int | None], names: Sequence[str] = ()) -> list[int]:
    """Different ports, one for each place: the one asked for, or a free one where none was.

    Raises Unusable when another program holds one that was asked for.
    """
    ports: list[int] = []
    asked = {port for port in wanted if port is not None}
    for place, port in enumerate(wanted):
        if port is not None:
            name = names[place]
            port = claim(port, what=name, setting=f"MEIRI_{name.upper()}_PORT")  # noqa: PLW2901
            if port in ports:
                raise Unusable(f"Two services should listen on port {port}: set MEIRI_{name.upper()}_PORT to another.")
        else:
            port = free_port()  # noqa: PLW2901
            while port in ports or port in asked:
                port = free_port()  # noqa: PLW2901
        ports.append(port)
    return ports


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
