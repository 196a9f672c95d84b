"""The releases that serve, and the one thread that runs them."""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from types import TracebackType
from typing import Self

import structlog
import torch

from shared.codec.state import ModelRelease
from shared.errors import Transient
from shared.registry import Registry, ReleaseRef
from shared.rpc.errors import Exhausted, FailedPrecondition, NotFound
from shared.two_tower.data import Histories, Lists
from shared.two_tower.scorer import Scorer, Scores

log = structlog.get_logger()

MAX_WAITING = 16
"""Calls that may wait for the thread; one more is shed at once, since it would only wait past its deadline."""


@dataclass(frozen=True, slots=True)
class Serving:
    """A release in memory."""

    release: ModelRelease
    scorer: Scorer


class Engine:
    """Serves each tenant's newest release that could be loaded: one that cannot be leaves the old one serving."""

    def __init__(self, registry: Registry, *, threads: int) -> None:
        self._registry = registry
        self._threads = threads
        self._serving: dict[str, Serving] = {}
        self._waiting = 0
        self._caught_up = False
        # Inference and loading each have a thread of their own: the event loop keeps answering health and cancellation,
        # and a release that loads does not hold up the one that serves.
        self._inference = ThreadPoolExecutor(1, "inference")
        self._loading = ThreadPoolExecutor(1, "loading")

    async def __aenter__(self) -> Self:
        await asyncio.get_running_loop().run_in_executor(self._inference, torch.set_num_threads, self._threads)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._inference.shutdown(wait=True, cancel_futures=True)
        self._loading.shutdown(wait=True, cancel_futures=True)

    async def load(self, release: ModelRelease) -> None:
        """Verify and load a release, then serve its tenant by it. Never raises: a bad release is a log event."""
        try:
            scorer = await asyncio.get_running_loop().run_in_executor(self._loading, self._open, release)
        except Exception as error:  # noqa: BLE001 - whatever is wrong with a release, the one before it keeps serving
            log.error(
                "release.load_failed",
                tenant_id=release.tenant_id,
                release_id=release.release_id,
                reason=str(error),
                still_serving=self._release_id(release.tenant_id),
            )
            return
        self._serving[release.tenant_id] = Serving(release, scorer)
        log.info("release.loaded", tenant_id=release.tenant_id, release_id=release.release_id, tracks=len(scorer))

    def drop(self, tenant_id: str) -> None:
        """Stop serving a tenant whose release was withdrawn."""
        if self._serving.pop(tenant_id, None) is not None:
            log.info("release.dropped", tenant_id=tenant_id)

    def caught_up(self) -> None:
        """Every release announced so far is loaded: from now on a tenant without one has none."""
        self._caught_up = True

    def serving(self, tenant_id: str) -> Serving:
        """Raises NotFound where the tenant has no release, Transient while that is not known yet."""
        found = self._serving.get(tenant_id)
        if found is None:
            if not self._caught_up:
                raise Transient("The releases are still being loaded: ask again in a second.")
            raise NotFound("no_release", "This tenant has no model release yet: train one, or serve fallback lists.")
        return found

    async def score(
        self, tenant_id: str, release_id: str, histories: Histories, extra: Lists, exclusions: Lists, k: int
    ) -> Scores:
        """Raises NotFound, FailedPrecondition (another release serves) or Exhausted (too many calls wait)."""
        serving = self.serving(tenant_id)
        if serving.release.release_id != release_id:
            raise FailedPrecondition(
                "release_mismatch",
                f"Release {serving.release.release_id} serves, not {release_id}: ask GetRelease and call again.",
            )
        if self._waiting >= MAX_WAITING:
            raise Exhausted(f"{MAX_WAITING} calls wait for the embedder: call again in a second.")
        self._waiting += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(
                self._inference, serving.scorer.score, histories, extra, exclusions, k
            )
        finally:
            self._waiting -= 1

    def _open(self, release: ModelRelease) -> Scorer:
        return Scorer.load(self._registry.open(ReleaseRef(release.uri, release.manifest_sha256)))

    def _release_id(self, tenant_id: str) -> str | None:
        found = self._serving.get(tenant_id)
        return None if found is None else found.release.release_id
