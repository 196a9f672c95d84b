"""The materialiser's settings."""

from pydantic import Field

from shared.settings import ServiceSettings


class MaterialiserSettings(ServiceSettings):
    materialiser_listen: str = Field(
        description="the host and port that the materialiser's gRPC listens on", examples=["127.0.0.1:7406"]
    )
    materialiser_database_url: str = Field(
        description="the Postgres database and role that keep due instants and lists",
        examples=["postgresql://materialiser:secret@127.0.0.1:5432/meiri"],
    )
    service_token: str = Field(
        description="the service-scope token, or a file with it, that calls to features and embedder carry",
        examples=["/etc/meiri/materialiser.token"],
    )
    features_address: str = Field(description="the host and port of the features service", examples=["127.0.0.1:7403"])
    embedder_address: str = Field(description="the host and port of the embedder", examples=["127.0.0.1:7405"])
