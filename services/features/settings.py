"""The settings of features."""

import socket

from pydantic import Field

from shared.settings import ServiceSettings


class FeaturesSettings(ServiceSettings):
    features_listen: str = Field(description="where its gRPC listens, host:port", examples=["127.0.0.1:7103"])
    features_database_url: str = Field(
        description="the Postgres database, as the role `features`",
        examples=["postgresql://features:secret@127.0.0.1:5432/meiri"],
    )
    features_instance: str = Field(
        default_factory=socket.gethostname,
        description="this replica's name in its consumer group; a restart under the same name goes on at once, so no two"
        " running replicas may share one (default: the host's name)",
        examples=["features-0"],
    )
