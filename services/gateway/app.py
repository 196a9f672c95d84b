"""The gateway, put together: Postgres for state, Kafka for what comes in, gRPC in front, the relay behind."""

import asyncio
from pathlib import Path

import structlog
from meiri.account.v1.account_service_pb2_grpc import add_AccountServiceServicer_to_server
from meiri.catalog.v1.catalog_service_pb2_grpc import add_CatalogServiceServicer_to_server
from meiri.feedback.v1.feedback_service_pb2_grpc import add_FeedbackServiceServicer_to_server
from meiri.playback.v1.play_event_service_pb2_grpc import add_PlayEventServiceServicer_to_server

from services.gateway.account import Accounts
from services.gateway.catalog import Catalog
from services.gateway.domain import zones
from services.gateway.feedback import Feedback
from services.gateway.play_events import PlayEvents
from services.gateway.policies import POLICIES
from services.gateway.relay import Relay
from services.gateway.settings import GatewaySettings
from services.gateway.store import StateStore
from shared import process
from shared.clock import Clock
from shared.errors import Unusable
from shared.kafka.broker import KafkaLog
from shared.kafka.producer import Producer
from shared.postgres import Database
from shared.rpc.server import Server
from shared.rpc.tokens import Verifier
from shared.settings import env_name

log = structlog.get_logger()

MAX_CONCURRENT_CALLS = 256


async def run(settings: GatewaySettings) -> None:
    """Serve until SIGTERM or SIGINT. Raises Unusable with a sentence where the configuration cannot work."""
    clock = Clock(Path(settings.clock_file) if settings.clock_file else None)
    verifier = Verifier(_read(settings, "token_public_key"), clock)
    private_pem = _read(settings, "gateway_token_private_key")
    zones()  # a slow first answer is better given here than to a caller
    async with (
        Database.open(settings.gateway_database_url, application_name="gateway") as db,
        KafkaLog.open(settings.kafka_bootstrap_servers, client_id="gateway") as events,
        Producer.open(settings.kafka_bootstrap_servers, client_id="gateway") as producer,
    ):
        store = StateStore(db)
        play_events = PlayEvents(producer, clock)
        servicers = (
            (add_PlayEventServiceServicer_to_server, play_events),
            (add_FeedbackServiceServicer_to_server, Feedback(producer, clock)),
            (add_CatalogServiceServicer_to_server, Catalog(store)),
            (add_AccountServiceServicer_to_server, Accounts(store, events, clock, private_pem)),
        )
        async with (
            Server(
                settings.gateway_listen,
                policies=POLICIES,
                verifier=verifier,
                servicers=servicers,
                max_concurrent=MAX_CONCURRENT_CALLS,
            ) as server,
            asyncio.TaskGroup() as tasks,
        ):
            side = [tasks.create_task(Relay(db, store, producer).run()), tasks.create_task(_log_windows(play_events))]
            await server.health.set(serving=True)
            await server.serve_until_stopped()
            for task in side:
                task.cancel()
        _log_window(play_events)


async def _log_windows(play_events: PlayEvents) -> None:
    while True:
        await asyncio.sleep(1.0)
        _log_window(play_events)


def _log_window(play_events: PlayEvents) -> None:
    """One line a second at most, and none when nothing came."""
    if play_events.counts:
        log.info("gateway.window", **play_events.counts)
        play_events.counts.clear()


def _read(settings: GatewaySettings, field: str) -> str:
    path = str(getattr(settings, field))
    try:
        return Path(path).read_text()
    except OSError as error:
        variable = env_name(GatewaySettings, field)
        raise Unusable(f"{path} cannot be read ({error.strerror}): set {variable} to the PEM file.") from None


def main() -> None:
    process.run("gateway", GatewaySettings, run)
