"""The materialiser, put together: views of users, tenants and catalogue, clients, and the loop over what is due."""

import asyncio
from pathlib import Path

import structlog
from meiri.playlist.v1.materialiser_service_pb2_grpc import add_MaterialiserServiceServicer_to_server

from services.materialiser.catalogue import Catalogues
from services.materialiser.clients import EmbedderClient, FeatureClient
from services.materialiser.materialise import BATCH, Materialiser
from services.materialiser.servicer import POLICIES, MaterialiserServicer
from services.materialiser.settings import MaterialiserSettings
from services.materialiser.store import Store
from shared.clock import Clock
from shared.codec.state import Tenant, User, decode_tenant, decode_track, decode_user
from shared.errors import Transient
from shared.kafka.broker import KafkaLog
from shared.kafka.producer import Producer
from shared.kafka.view import TopicView
from shared.postgres import Database
from shared.process import clock_of, run, verifier_of
from shared.rpc.client import channel
from shared.rpc.server import Server
from shared.topics import TENANTS, TRACKS, USERS

log = structlog.get_logger()

MAX_CONCURRENT = 32
MAX_ANSWER_BYTES = 64 << 20


async def serve(settings: MaterialiserSettings) -> None:
    clock = clock_of(settings)
    catalogues = Catalogues()
    moved: dict[tuple[str, str], None] = {}  # users whose zone changed, in order

    def user_changed(_: str, old: User | None, new: User | None) -> None:
        user = new or old
        if user is not None and (old is None or new is None or old.zone != new.zone):
            moved[user.tenant_id, user.user_id] = None

    token = _token(settings)
    async with (
        Database.open(settings.materialiser_database_url, application_name="materialiser") as db,
        Server(
            settings.materialiser_listen,
            policies=POLICIES,
            verifier=verifier_of(settings, clock),
            servicers=[(add_MaterialiserServiceServicer_to_server, MaterialiserServicer(Store(db), clock))],
            max_concurrent=MAX_CONCURRENT,
        ) as server,
        channel(settings.features_address, token=token, max_response_bytes=MAX_ANSWER_BYTES) as features,
        channel(settings.embedder_address, token=token, max_response_bytes=MAX_ANSWER_BYTES) as embedder,
        KafkaLog.open(settings.kafka_bootstrap_servers, client_id="materialiser") as events,
        Producer.open(settings.kafka_bootstrap_servers, client_id="materialiser") as producer,
        TopicView.open(
            events, TRACKS, decode_key=bytes.decode, decode_value=decode_track, on_change=catalogues.changed
        ) as tracks,
        TopicView.open(
            events, USERS, decode_key=bytes.decode, decode_value=decode_user, on_change=user_changed
        ) as users,
        TopicView.open(events, TENANTS, decode_key=bytes.decode, decode_value=decode_tenant) as tenants,
        asyncio.TaskGroup() as tasks,
    ):
        for view in (tracks, users, tenants):
            await view.ready()
        feature_client = FeatureClient(features)
        store = Store(db)
        materialiser = Materialiser(store, feature_client, EmbedderClient(embedder), producer, catalogues, users, clock)
        side = [tasks.create_task(view.failed()) for view in (tracks, users, tenants)]
        side.append(
            tasks.create_task(
                _loop(settings.materialiser_tick_s, tenants, moved, feature_client, store, materialiser, clock)
            )
        )
        await server.health.set(serving=True)
        await server.serve_until_stopped()
        for task in side:
            task.cancel()


async def _loop(
    tick_s: float,
    tenants: TopicView[str, Tenant],
    moved: dict[tuple[str, str], None],
    features: FeatureClient,
    store: Store,
    materialiser: Materialiser,
    clock: Clock,
) -> None:
    """Every tick, for each tenant: learn of new listeners, then work through what is due, in batches."""
    while True:
        for tenant in [tenant for _, tenant in tenants.items()]:
            try:
                while moved and (user := next(iter(moved))):
                    await store.add_users(user[0], [user[1]], clock.now())
                    await store.due_again(user[0], user[1], clock.now())
                    del moved[user]
                await store.add_users(tenant.tenant_id, await features.users(tenant.tenant_id), clock.now())
                while await materialiser.batch(tenant) == BATCH:
                    pass
            except Transient as error:
                # The leases of a batch that failed run out by themselves; nothing is lost but time.
                log.warning("materialise.delayed", tenant_id=tenant.tenant_id, reason=str(error))
        await asyncio.sleep(tick_s)


def _token(settings: MaterialiserSettings) -> str:
    """The token itself, or the content of the file that holds it."""
    return (
        Path(settings.service_token).read_text().strip()
        if Path(settings.service_token).exists()
        else settings.service_token
    )


def main() -> None:
    run("materialiser", MaterialiserSettings, serve)
