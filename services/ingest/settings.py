"""What ingest reads from the environment."""

from pydantic import Field

from shared.settings import ServiceSettings


class IngestSettings(ServiceSettings):
    ingest_listen: str = Field(
        description="where ingest answers health questions, host:port", examples=["127.0.0.1:7002"]
    )
    ingest_breaker: bool = Field(
        default=True,
        description="whether a topic is halted when over a tenth of it is invalid; false lets it drain into dead letters",
        examples=["false"],
    )
