"""The embedder's settings."""

from pydantic import Field

from shared.settings import ServiceSettings


class EmbedderSettings(ServiceSettings):
    embedder_listen: str = Field(
        description="the host and port that the embedder's gRPC listens on", examples=["127.0.0.1:7405"]
    )
    registry: str = Field(
        description="the folder of model releases, a path or a file URI", examples=["file:///var/lib/meiri/registry"]
    )
    embedder_threads: int = Field(default=1, ge=1, description="the CPU threads that inference may use", examples=["2"])
