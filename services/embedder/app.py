"""The embedder, put together: the releases that are announced, the engine that runs them, and gRPC."""

import asyncio

from meiri.embedding.v1.embedding_service_pb2_grpc import add_EmbeddingServiceServicer_to_server

from services.embedder.engine import Engine
from services.embedder.servicer import POLICIES, EmbeddingServicer
from services.embedder.settings import EmbedderSettings
from shared.codec.state import ModelRelease, decode_release
from shared.kafka.broker import KafkaLog
from shared.kafka.view import TopicView
from shared.process import clock_of, run, verifier_of
from shared.registry import Registry
from shared.rpc.server import Server
from shared.topics import MODEL_RELEASES

MAX_CONCURRENT = 64


async def serve(settings: EmbedderSettings) -> None:
    announced: asyncio.Queue[tuple[str, ModelRelease | None]] = asyncio.Queue()

    def announce(tenant_id: str, _: ModelRelease | None, release: ModelRelease | None) -> None:
        announced.put_nowait((tenant_id, release))

    async with (
        Engine(Registry(settings.registry), threads=settings.embedder_threads) as engine,
        Server(
            settings.embedder_listen,
            policies=POLICIES,
            verifier=verifier_of(settings, clock_of(settings)),
            servicers=[(add_EmbeddingServiceServicer_to_server, EmbeddingServicer(engine))],
            max_concurrent=MAX_CONCURRENT,
        ) as server,
        KafkaLog.open(settings.kafka_bootstrap_servers, client_id="embedder") as events,
        TopicView.open(
            events, MODEL_RELEASES, decode_key=bytes.decode, decode_value=decode_release, on_change=announce
        ) as releases,
        asyncio.TaskGroup() as tasks,
    ):
        await releases.ready()
        # Only a tenant's newest release is worth loading at the start; what comes later is loaded in turn.
        while not announced.empty():
            announced.get_nowait()
        for _, release in sorted(releases.items()):
            await engine.load(release)
        engine.caught_up()
        side = [tasks.create_task(releases.failed()), tasks.create_task(_follow(announced, engine))]
        await server.health.set(serving=True)
        await server.serve_until_stopped()
        for task in side:
            task.cancel()


async def _follow(announced: asyncio.Queue[tuple[str, ModelRelease | None]], engine: Engine) -> None:
    while True:
        tenant_id, release = await announced.get()
        if release is None:
            engine.drop(tenant_id)
        else:
            await engine.load(release)


def main() -> None:
    run("embedder", EmbedderSettings, serve)
