"""A listener's word on a track or an artist: check, stamp, send, acknowledged."""

from google.protobuf.timestamp_pb2 import Timestamp
from meiri.feedback.v1.feedback_service_pb2 import SendFeedbackRequest, SendFeedbackResponse
from meiri.feedback.v1.feedback_service_pb2_grpc import FeedbackServiceServicer

from services.gateway.domain import refuse_feedback
from shared.clock import Clock
from shared.errors import Permanent
from shared.ids import partition_of, user_topic_key
from shared.kafka.log import Publisher
from shared.limits import USER_ID, USER_ID_BAD
from shared.rpc.principal import Scope, principal, require_tenant
from shared.topics import FEEDBACK


class Feedback(FeedbackServiceServicer):
    def __init__(self, publisher: Publisher, clock: Clock) -> None:
        self._publisher = publisher
        self._clock = clock

    async def SendFeedback(self, request: SendFeedbackRequest, context: object) -> SendFeedbackResponse:
        caller = principal()
        tenant_id = require_tenant(caller)
        event = request.event
        if caller.scope is Scope.USER:
            event.user_id = caller.subject
        refusal = USER_ID_BAD if USER_ID.fullmatch(event.user_id) is None else refuse_feedback(event)
        if refusal is not None:
            raise Permanent(*refusal)
        received_at = Timestamp()
        received_at.FromDatetime(self._clock.now())
        event.received_at.CopyFrom(received_at)
        if (event.given_at.seconds, event.given_at.nanos) > (received_at.seconds, received_at.nanos):
            event.given_at.CopyFrom(received_at)  # else a clock that runs ahead would win over all that is said later
        target = f"track:{event.track_id}" if event.WhichOneof("target") == "track_id" else f"artist:{event.artist_id}"
        key = user_topic_key(tenant_id, event.user_id) + f"|{target}".encode()
        partition = partition_of(tenant_id, event.user_id, FEEDBACK.partitions)
        await self._publisher.send(FEEDBACK, partition, key, event.SerializeToString())
        return SendFeedbackResponse()
