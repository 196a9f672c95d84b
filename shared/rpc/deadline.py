"""How long the current rpc may still take, so that what it calls does not outlive it."""

import time
from contextvars import ContextVar

ends_at: ContextVar[float | None] = ContextVar("ends_at", default=None)
"""When the current rpc ends, in `time.monotonic()` seconds; None outside an rpc."""


def remaining_s() -> float | None:
    """Seconds left to the current rpc, never below zero; None outside an rpc."""
    end = ends_at.get()
    return None if end is None else max(0.0, end - time.monotonic())
