"""The playlist service's settings."""

from pydantic import Field

from shared.settings import ServiceSettings


class PlaylistsSettings(ServiceSettings):
    playlists_listen: str = Field(
        description="the host and port that the playlist service's gRPC listens on", examples=["127.0.0.1:7407"]
    )
    playlists_database_url: str = Field(
        description="the Postgres database and role that keep the lists",
        examples=["postgresql://playlists:secret@127.0.0.1:5432/meiri"],
    )
