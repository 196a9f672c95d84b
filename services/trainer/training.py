"""Train: archive and catalogue → columns → towers → gate → registry → announcement. One tenant, one run, top to bottom."""

import asyncio
import json
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from datetime import datetime
from importlib.metadata import version
from pathlib import Path

import structlog
import torch

from services.trainer.archive import Archive
from services.trainer.dataset import listens, track_features
from services.trainer.settings import TrainerSettings
from shared.codec.state import ModelRelease, Track, decode_track, encode_release, key_partition, tenant_record_key
from shared.errors import Permanent
from shared.kafka.broker import KafkaLog
from shared.kafka.producer import Producer
from shared.kafka.view import TopicView
from shared.process import clock_of
from shared.registry import Registry, ReleaseContent
from shared.topics import MODEL_RELEASES, TRACKS
from shared.two_tower.gate import GateDecision, train_and_judge
from shared.two_tower.train import Progress

log = structlog.get_logger()


async def train(settings: TrainerSettings, tenant_id: str, progress: Callable[[Progress], None]) -> GateDecision | None:
    """Train and judge one tenant; release what passes. None: there was nothing to train on yet."""
    now = clock_of(settings).now()
    started = time.monotonic()
    async with KafkaLog.open(settings.kafka_bootstrap_servers, client_id="trainer") as events:
        tracks = await _catalogue(events, tenant_id)
        try:
            content, decision, plays = await asyncio.to_thread(
                _train_and_judge, settings, tenant_id, tracks, now, progress
            )
        except Permanent as error:
            log.warning("training.impossible", tenant_id=tenant_id, reason=error.reason, sentence=str(error))
            return None
        facts = {
            "tenant_id": tenant_id,
            "plays": plays,
            "tracks": len(tracks),
            "seconds": round(time.monotonic() - started, 1),
            "candidate": decision.candidate.recall_all,
            "popularity": decision.baseline.recall_all,
        }
        if not decision.passed:
            log.warning("release.refused", reason=decision.reason, **facts)
            return decision
        release_id = now.strftime("%Y%m%dT%H%M%SZ")
        reference = Registry(settings.registry).publish(
            content, tenant=tenant_id, release_id=release_id, created_at=now, code_version=_code_version()
        )
        release = ModelRelease(tenant_id, release_id, reference.uri, reference.sha256, now)
        key = tenant_record_key(tenant_id)
        async with Producer.open(settings.kafka_bootstrap_servers, client_id="trainer") as producer:
            await producer.send(
                MODEL_RELEASES, key_partition(key, MODEL_RELEASES.partitions), key, encode_release(release)
            )
        log.info("release.published", release_id=release_id, uri=reference.uri, **facts)
        return decision


def tell(progress: Progress) -> None:
    """One JSON line per epoch to stderr, for whoever shows a progress bar."""
    sys.stderr.write(json.dumps(asdict(progress)) + "\n")
    sys.stderr.flush()


async def _catalogue(events: KafkaLog, tenant_id: str) -> list[Track]:
    async with TopicView.open(events, TRACKS, decode_key=bytes.decode, decode_value=decode_track) as tracks:
        await tracks.ready()
        return [track for _, track in tracks.items() if track.tenant_id == tenant_id]


def _train_and_judge(
    settings: TrainerSettings,
    tenant_id: str,
    tracks: list[Track],
    now: datetime,
    progress: Callable[[Progress], None],
) -> tuple[ReleaseContent, GateDecision, int]:
    torch.set_num_threads(settings.trainer_threads)
    features = track_features(tracks)
    plays = listens(Archive(Path(settings.archive)).read(tenant_id), features)
    content, decision = train_and_judge(
        features, plays, now_ms=int(now.timestamp() * 1000), seed=settings.trainer_seed, progress=progress
    )
    return content, decision, len(plays)


def _code_version() -> str:
    """The version this runs as. A checkout is not installed, and says so."""
    try:
        return version("meiri")
    except ImportError:
        return "checkout"
