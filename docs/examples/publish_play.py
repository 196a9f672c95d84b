"""Publish a play that has just ended: PYTHONPATH=protos/gen MEIRI_TOKEN=… python docs/examples/publish_play.py mira t-1"""

import os
import sys
import time
import uuid

import grpc
from meiri.playback.v1.play_event_pb2 import PlayEvent
from meiri.playback.v1.play_event_service_pb2 import PublishPlaysRequest
from meiri.playback.v1.play_event_service_pb2_grpc import PlayEventServiceStub

user_id, track_id = sys.argv[1:]
play = PlayEvent(event_id=uuid.uuid4().bytes, user_id=user_id, track_id=track_id)  # resend with the same event_id
play.started_at.FromSeconds(int(time.time()) - 200)
play.played_for.FromSeconds(200)
with grpc.insecure_channel(os.environ.get("MEIRI_GATEWAY_ADDRESS", "127.0.0.1:7401")) as channel:
    answer = PlayEventServiceStub(channel).PublishPlays(
        PublishPlaysRequest(events=[play]),
        metadata=[("authorization", f"Bearer {os.environ['MEIRI_TOKEN']}")],
        timeout=10,
    )
print(f"acknowledged {answer.accepted_count}", *(refused.sentence for refused in answer.refused))
