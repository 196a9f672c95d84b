"""What the gateway reads from the environment."""

from pydantic import Field

from shared.settings import ServiceSettings


class GatewaySettings(ServiceSettings):
    gateway_listen: str = Field(
        description="the host and port that the gateway's gRPC listens on", examples=["127.0.0.1:7401"]
    )
    gateway_database_url: str = Field(
        description="the Postgres database and role that keep tenants, users and tracks",
        examples=["postgresql://gateway:secret@127.0.0.1:5432/meiri"],
    )
    gateway_token_private_key: str = Field(
        description="the PEM file of the Ed25519 private key that signs the tokens the gateway makes",
        examples=["/etc/meiri/token.key.pem"],
    )
