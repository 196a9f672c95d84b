"""The gateway, put together: Postgres for state, Kafka for what comes in, gRPC in front, the relay behind."""

import asyncio

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
from shared.kafka.broker import KafkaLog
from shared.kafka.producer import Producer
from shared.postgres import Database
from shared.process import clock_of, read_file, run, verifier_of
from shared.rpc.server import Server

log = structlog.get_logger()

MAX_CONCURRENT_CALLS = 256


async def serve(settings: GatewaySettings) -> None:
    """Serve until SIGTERM or SIGINT. Raises Unusable with a sentence where the configuration cannot work."""
    clock = clock_of(settings)
    verifier = verifier_of(settings, clock)
    private_pem = read_file(settings, "gateway_token_private_key")
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


def main() -> None:
    run("gateway", GatewaySettings, serve)
