"""Settings of a process, read once from the environment; a missing one is told in a sentence a person can act on."""

import sys
from typing import TypeVar

from pydantic import Field, ValidationError
from pydantic_settings import BaseSettings, SettingsConfigDict


class Settings(BaseSettings):
    """Base of every service's settings. Each field has a description (what it is for) and an example."""

    model_config = SettingsConfigDict(env_prefix="MEIRI_", extra="ignore", frozen=True)


class ServiceSettings(Settings):
    """What every service needs."""

    kafka_bootstrap_servers: str = Field(
        description="the Kafka brokers to start from, host:port with commas between", examples=["127.0.0.1:9092"]
    )
    token_public_key: str = Field(
        description="the PEM file of the Ed25519 public key that caller tokens are verified with",
        examples=["/etc/meiri/token.pub.pem"],
    )
    clock_file: str | None = Field(
        default=None,
        description="a file with seconds to add to the clock, for tests and demos",
        examples=["/run/clock"],
    )


S = TypeVar("S", bound=Settings)


def load(settings: type[S]) -> S:
    """Read `settings` from the environment, or print one line per fault (name, purpose, example) and exit with 2."""
    try:
        return settings()
    except ValidationError as error:
        for fault in error.errors():
            name = str(fault["loc"][0])
            field = settings.model_fields.get(name)
            variable = env_name(settings, name)
            purpose = field.description if field else "unknown"
            example = (field.examples or ["…"])[0] if field else "…"
            wrong = "is not set" if fault["type"] == "missing" else f"cannot be used ({fault['msg']})"
            sys.stderr.write(f"{variable} {wrong}. It is {purpose}. Example: {variable}={example}\n")
        raise SystemExit(2) from None


def env_name(settings: type[Settings], field: str) -> str:
    """The environment variable that sets `field`."""
    alias = settings.model_fields[field].validation_alias if field in settings.model_fields else None
    return alias if isinstance(alias, str) else f"{settings.model_config.get('env_prefix', '')}{field}".upper()
