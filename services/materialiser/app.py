"""The materialiser, put together: views of users, tenants and catalogue, clients, and the loop over what is due."""

import asyncio

import structlog
from meiri.playlist.v1.materialiser_service_pb2_grpc import add_MaterialiserServiceServicer_to_server

from services.materialiser.catalogue import Catalogues
from services.materialiser.clients import EmbedderClient, FeatureClient
from services.materialiser.keeping import purge
from services.materialiser.listeners import Listeners
from services.materialiser.materialise import Materialiser
from services.materialiser.servicer import POLICIES, MaterialiserServicer
from services.materialiser.settings import MaterialiserSettings
from services.materialiser.store import Store
from shared.codec.state import Tenant, decode_tenant, decode_track, decode_user
from shared.errors import Permanent, Transient
from shared.kafka.broker import KafkaLog
from shared.kafka.producer import Producer
from shared.kafka.view import TopicView
from shared.postgres import Database
from shared.process import clock_of, read_file, run, verifier_of
from shared.rpc.client import channel
from shared.rpc.server import Server
from shared.topics import TENANTS, TRACKS, USERS

log = structlog.get_logger()

MAX_CONCURRENT = 32
MAX_ANSWER_BYTES = 64 << 20
TICK_S = 1.0
"""How often it looks for new listeners and due lists when there is nothing to do."""


async def serve(settings: MaterialiserSettings) -> None:
    clock, token, servers = clock_of(settings), _token(settings), settings.kafka_bootstrap_servers
    async with (
        Database.open(settings.materialiser_database_url, application_name="materialiser") as db,
        channel(settings.features_address, token=token, max_response_bytes=MAX_ANSWER_BYTES) as features,
        channel(settings.embedder_address, token=token, max_response_bytes=MAX_ANSWER_BYTES) as embedder,
        KafkaLog.open(servers, client_id="materialiser") as events,
        Producer.open(servers, client_id="materialiser") as producer,
    ):
        store, feature_client, catalogues = Store(db), FeatureClient(features), Catalogues()
        listeners = Listeners(feature_client, store, clock)
        async with (
            Server(
                settings.materialiser_listen,
                policies=POLICIES,
                verifier=verifier_of(settings, clock),
                servicers=[(add_MaterialiserServiceServicer_to_server, MaterialiserServicer(store, clock))],
                max_concurrent=MAX_CONCURRENT,
            ) as server,
            TopicView.open(
                events, TRACKS, decode_key=bytes.decode, decode_value=decode_track, on_change=catalogues.changed
            ) as tracks,
            TopicView.open(
                events, USERS, decode_key=bytes.decode, decode_value=decode_user, on_change=listeners.changed
            ) as users,
            TopicView.open(events, TENANTS, decode_key=bytes.decode, decode_value=decode_tenant) as tenants,
            asyncio.TaskGroup() as tasks,
        ):
            for view in (tracks, users, tenants):
                await view.ready()
            materialiser = Materialiser(
                store, feature_client, EmbedderClient(embedder), producer, catalogues, users.get, clock
            )
            side = [tasks.create_task(view.failed()) for view in (tracks, users, tenants)]
            side.append(tasks.create_task(_loop(tenants, listeners, materialiser)))
            side.append(tasks.create_task(purge(store, clock)))
            await server.health.set(serving=True)
            await server.serve_until_stopped()
            for task in side:
                task.cancel()


async def _loop(tenants: TopicView[str, Tenant], listeners: Listeners, materialiser: Materialiser) -> None:
    """One batch of each tenant in turn, so that a large one does not hold up the others; a pause when nothing is left."""
    while True:
        more = False
        for _, tenant in list(tenants.items()):
            try:
                await listeners.look(tenant)
                more |= await materialiser.batch(tenant) > 0
            except Transient as error:
                log.warning("lists.delayed", tenant_id=tenant.tenant_id, reason=str(error))
            except Permanent as error:
                log.error("lists.refused", tenant_id=tenant.tenant_id, reason=error.reason, sentence=str(error))
        if not more:
            await asyncio.sleep(TICK_S)


def _token(settings: MaterialiserSettings) -> str:
    """The token itself (which as a JWT begins with these letters), or the content of the file that holds it."""
    value = settings.service_token
    return value if value.startswith("eyJ") else read_file(settings, "service_token")


def main() -> None:
    run("materialiser", MaterialiserSettings, serve)
