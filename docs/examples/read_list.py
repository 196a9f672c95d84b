"""Read a listener's newest list: PYTHONPATH=protos/gen MEIRI_TOKEN=… python docs/examples/read_list.py mira"""

import os
import sys

import grpc
from meiri.playlist.v1.playlist_service_pb2 import GetDailyPlaylistRequest
from meiri.playlist.v1.playlist_service_pb2_grpc import PlaylistServiceStub

with grpc.insecure_channel(os.environ.get("MEIRI_PLAYLISTS_ADDRESS", "127.0.0.1:7407")) as channel:
    playlist = (
        PlaylistServiceStub(channel)
        .GetDailyPlaylist(
            GetDailyPlaylistRequest(user_id=sys.argv[1]),
            metadata=[("authorization", f"Bearer {os.environ['MEIRI_TOKEN']}")],
            timeout=10,
        )
        .playlist
    )
print(f"{playlist.user_id}, {playlist.playlist_date}: {playlist.familiar_share:.0%} familiar")
for song in playlist.recommendations:
    print(f"  {song.title} · {song.artist_name} — {song.reason.sentence}")
