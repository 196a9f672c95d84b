"""Structured logs on stdout, one JSON object a line, and the trace id that follows a play from gateway to list."""

import logging
import secrets
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import structlog

TRACE_HEADER = "meiri-trace-id"
"""The name of the trace id in Kafka headers and in gRPC metadata."""

trace_id: ContextVar[str] = ContextVar("trace_id", default="")


def new_trace_id() -> str:
    return secrets.token_hex(8)


@contextmanager
def bound_trace(value: str) -> Iterator[None]:
    token = trace_id.set(value)
    try:
        yield
    finally:
        trace_id.reset(token)


def _add_trace(_: object, __: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:
    if value := trace_id.get():
        event["trace_id"] = value
    return event


def configure(service: str, *, level: int = logging.INFO) -> None:
    """Log JSON lines with service, level, timestamp and the current trace id; libraries join them from WARNING on."""
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            _add_trace,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            structlog.processors.JSONRenderer(),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.WriteLoggerFactory(sys.stdout),
        cache_logger_on_first_use=True,
    )
    structlog.contextvars.clear_contextvars()
    structlog.contextvars.bind_contextvars(service=service)
    handler = logging.StreamHandler(sys.stdout)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[
                structlog.contextvars.merge_contextvars,
                structlog.stdlib.add_logger_name,
                structlog.processors.add_log_level,
                structlog.processors.TimeStamper(fmt="iso", utc=True),
                _library_event,
            ],
            processors=[
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                structlog.processors.format_exc_info,
                structlog.processors.JSONRenderer(),
            ],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)


def _library_event(_: object, __: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:
    """A library's free text becomes a fact of one constant event."""
    event["message"] = event.pop("event")
    event["event"] = "library.log"
    return event
