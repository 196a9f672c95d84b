"""What a servicer raises, and the gRPC status it becomes. Clients of `shared.rpc.client` get the same types back."""

import grpc

from shared.errors import MeiriError, Permanent, Transient


class NotFound(Permanent):
    """What the request names does not exist for this tenant."""


class FailedPrecondition(Permanent):
    """The request is well formed, but the state does not allow it (for example another model release is live)."""


class PermissionDenied(Permanent):
    """The token is valid and does not allow this call."""


class Unauthenticated(Permanent):
    """There is no valid token. One sentence for every cause, so that nothing is learnt by trying."""

    def __init__(self, reason: str = "unauthenticated", sentence: str = "Send a valid token with this call.") -> None:
        super().__init__(reason, sentence)


class Exhausted(Transient):
    """A limit is reached: come back later, not at once."""


CODE_OF: dict[type[MeiriError], grpc.StatusCode] = {
    NotFound: grpc.StatusCode.NOT_FOUND,
    FailedPrecondition: grpc.StatusCode.FAILED_PRECONDITION,
    PermissionDenied: grpc.StatusCode.PERMISSION_DENIED,
    Unauthenticated: grpc.StatusCode.UNAUTHENTICATED,
    Exhausted: grpc.StatusCode.RESOURCE_EXHAUSTED,
    Permanent: grpc.StatusCode.INVALID_ARGUMENT,
    Transient: grpc.StatusCode.UNAVAILABLE,
}
"""Each error's status; a subclass has that of its nearest listed ancestor."""


def code_of(error: Permanent | Transient) -> grpc.StatusCode:
    return next(CODE_OF[kind] for kind in type(error).__mro__ if kind in CODE_OF)
