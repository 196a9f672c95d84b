"""The trainer's settings."""

from pydantic import Field

from shared.settings import ServiceSettings


class TrainerSettings(ServiceSettings):
    trainer_listen: str = Field(
        description="the host and port that the trainer's gRPC (health) listens on", examples=["127.0.0.1:7404"]
    )
    archive: str = Field(
        description="the folder that the archive of plays is kept in", examples=["/var/lib/meiri/archive"]
    )
    registry: str = Field(
        description="the folder of model releases, a path or a file URI", examples=["file:///var/lib/meiri/registry"]
    )
    trainer_threads: int = Field(default=2, ge=1, description="the CPU threads that training may use", examples=["2"])
    trainer_seed: int = Field(
        default=0, description="the seed of training; the same seed gives the same model", examples=["0"]
    )
    trainer_interval_s: int = Field(
        default=86_400,
        ge=0,
        description="how many seconds after its last training a tenant with new plays is trained again; 0 leaves it to "
        "`python -m services.trainer train`",
        examples=["86400"],
    )
