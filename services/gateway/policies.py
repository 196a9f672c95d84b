"""Who may call what, how large, how long: every method of the gateway."""

from shared.rpc.policy import Policy
from shared.rpc.principal import Scope

_LISTENERS = frozenset({Scope.APP, Scope.USER})
_MIB = 1 << 20

POLICIES = {
    "/meiri.playback.v1.PlayEventService/PublishPlays": Policy(
        scopes=_LISTENERS, max_request_bytes=4 * _MIB, deadline_s=15.0
    ),
    "/meiri.playback.v1.PlayEventService/ImportPlays": Policy(
        scopes=_LISTENERS, max_request_bytes=4 * _MIB, deadline_s=30.0
    ),
    "/meiri.feedback.v1.FeedbackService/SendFeedback": Policy(
        scopes=_LISTENERS, max_request_bytes=16 * 1024, deadline_s=15.0
    ),
    "/meiri.catalog.v1.CatalogService/UpsertTracks": Policy(
        scopes=frozenset({Scope.APP}), max_request_bytes=4 * _MIB, deadline_s=15.0
    ),
    "/meiri.account.v1.AccountService/UpsertUsers": Policy(
        scopes=_LISTENERS, max_request_bytes=4 * _MIB, deadline_s=15.0
    ),
    "/meiri.account.v1.AccountService/UpsertTenant": Policy(
        scopes=frozenset({Scope.ADMIN}), max_request_bytes=4 * _MIB, deadline_s=15.0, tenantless=True
    ),
    "/meiri.account.v1.AccountService/CreateToken": Policy(
        scopes=frozenset({Scope.ADMIN}), max_request_bytes=4 * _MIB, deadline_s=5.0, tenantless=True
    ),
}
