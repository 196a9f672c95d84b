"""Who is calling, and what that caller may touch."""

from contextvars import ContextVar
from dataclasses import dataclass
from enum import StrEnum

from shared.ids import TenantId
from shared.rpc.errors import PermissionDenied

TENANT_HEADER = "meiri-tenant"
"""The gRPC metadata that names the tenant which a token without a tenant (a service's, the operator's) acts for."""


class Scope(StrEnum):
    ADMIN = "admin"
    """The operator (no tenant) or a tenant's administrator."""
    APP = "app"
    """A tenant's back end: any user of its tenant."""
    USER = "user"
    """One listener: only themselves."""
    SERVICE = "service"
    """One of Meiri's own processes: the tenant comes with each call."""


@dataclass(frozen=True, slots=True)
class Principal:
    """The caller of one rpc. `tenant_id` is None only where the method's policy says `tenantless`."""

    tenant_id: TenantId | None
    subject: str
    scope: Scope


current: ContextVar[Principal] = ContextVar("principal")
"""Set by the shell for the task of one rpc, which tasks started by the handler inherit."""


def principal() -> Principal:
    """Tell the caller of the current rpc. Outside one this is a mistake in the program: LookupError."""
    return current.get()


def require_tenant(caller: Principal) -> TenantId:
    if caller.tenant_id is None:
        raise PermissionDenied("tenant_missing", f"Name the tenant of this call in the metadata {TENANT_HEADER}.")
    return caller.tenant_id


def require_user(caller: Principal, user_id: str) -> None:
    """Let a user-scope caller name itself only, and every other scope any user of its own tenant."""
    require_tenant(caller)
    if caller.scope is Scope.USER and caller.subject != user_id:
        raise PermissionDenied("other_user", "This token allows calls about its own user only.")
