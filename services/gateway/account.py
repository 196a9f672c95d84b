"""Tenants, their tokens, and listeners' settings."""

from datetime import timedelta

import structlog
from meiri.account.v1.account_service_pb2 import (
    CreateTokenRequest,
    CreateTokenResponse,
    RefusedUser,
    TokenScope,
    UpsertTenantRequest,
    UpsertTenantResponse,
    UpsertUsersRequest,
    UpsertUsersResponse,
)
from meiri.account.v1.account_service_pb2_grpc import AccountServiceServicer

from services.gateway.domain import TENANT_ID_BAD, refuse_tenant, refuse_user
from services.gateway.store import StateStore
from shared.clock import Clock
from shared.codec.state import encode_tenant, encode_user, tenant_from_message, user_from_message
from shared.errors import Permanent
from shared.kafka.log import EventLog
from shared.limits import TENANT_ID, USER_ID, USER_ID_BAD
from shared.rpc.errors import NotFound, PermissionDenied
from shared.rpc.principal import Scope, principal, require_tenant, require_user
from shared.rpc.tokens import mint
from shared.topics import TENANTS, USERS, ingress_topic

log = structlog.get_logger()

MAX_USERS = 1000
DEFAULT_TTL = timedelta(days=90)
MAX_TTL = timedelta(days=366)
_SCOPES = {TokenScope.TOKEN_SCOPE_APP: Scope.APP, TokenScope.TOKEN_SCOPE_USER: Scope.USER}


class Accounts(AccountServiceServicer):
    def __init__(self, store: StateStore, events: EventLog, clock: Clock, private_pem: str) -> None:
        self._store = store
        self._events = events
        self._clock = clock
        self._private_pem = private_pem

    async def UpsertTenant(self, request: UpsertTenantRequest, context: object) -> UpsertTenantResponse:
        if refusal := refuse_tenant(request.tenant):
            raise Permanent(*refusal)
        tenant = tenant_from_message(request.tenant)
        _require_admin_of(tenant.tenant_id)
        topic = ingress_topic(tenant.tenant_id)
        await self._events.create([topic])  # first: a tenant that is stored can produce
        await self._store.put(TENANTS, {tenant.tenant_id: encode_tenant(tenant)})
        log.info("gateway.tenant_stored", tenant_id=tenant.tenant_id)
        return UpsertTenantResponse(ingress_topic=topic.name)

    async def CreateToken(self, request: CreateTokenRequest, context: object) -> CreateTokenResponse:
        if TENANT_ID.fullmatch(request.tenant_id) is None:
            raise Permanent(*TENANT_ID_BAD)
        _require_admin_of(request.tenant_id)
        scope = _SCOPES.get(request.scope)
        if scope is None:
            raise Permanent("scope_missing", "scope is required: send TOKEN_SCOPE_APP or TOKEN_SCOPE_USER.")
        if scope is Scope.USER and USER_ID.fullmatch(request.subject) is None:
            raise Permanent(USER_ID_BAD.reason, "subject must be the user's id: 1 to 64 of A-Z, a-z, 0-9, _ and -.")
        if not 1 <= len(request.subject) <= 64 or not request.subject.isprintable():
            raise Permanent(
                "subject_bad", "subject must be 1 to 64 printable characters: name who will bear the token."
            )
        ttl = DEFAULT_TTL
        if request.HasField("ttl"):
            ttl = timedelta(seconds=max(-1, min(request.ttl.seconds, 10**10)))
        if not timedelta(0) < ttl <= MAX_TTL:
            raise Permanent("ttl_bad", "ttl must be from a second to 366 days.")
        if not await self._store.has(TENANTS, request.tenant_id):
            raise NotFound("tenant_unknown", f"There is no tenant {request.tenant_id}: create it with UpsertTenant.")
        now = self._clock.now()
        token = mint(
            self._private_pem, tenant_id=request.tenant_id, subject=request.subject, scope=scope, now=now, ttl=ttl
        )
        log.info("gateway.token_made", tenant_id=request.tenant_id, scope=scope.value, ttl_s=int(ttl.total_seconds()))
        response = CreateTokenResponse(token=token)
        response.expires_at.FromDatetime(now + ttl)
        return response

    async def UpsertUsers(self, request: UpsertUsersRequest, context: object) -> UpsertUsersResponse:
        caller = principal()
        tenant_id = require_tenant(caller)
        if not 1 <= len(request.users) <= MAX_USERS:
            raise Permanent(
                "user_count_bad", f"A call has 1 to {MAX_USERS} users, this has {len(request.users)}: split it."
            )
        states: dict[str, bytes] = {}
        refused: list[RefusedUser] = []
        for index, message in enumerate(request.users):
            require_user(caller, message.user_id)
            if refusal := refuse_user(message):
                refused.append(RefusedUser(index=index, reason=refusal.reason, sentence=refusal.sentence))
            else:
                user = user_from_message(message, tenant_id=tenant_id)
                states[f"{tenant_id}|{user.user_id}"] = encode_user(user)
        await self._store.put(USERS, states)
        return UpsertUsersResponse(stored_count=len(request.users) - len(refused), refused=refused)


def _require_admin_of(tenant_id: str) -> None:
    """The operator's token names no tenant and may do it for all; a tenant's administrator for their own only."""
    caller = principal()
    if caller.tenant_id is not None and caller.tenant_id != tenant_id:
        raise PermissionDenied("other_tenant", "This token allows calls about its own tenant only.")
