"""What a method allows. A method without a policy is not served: the table is checked before a port is opened."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from google.protobuf.descriptor import FileDescriptor, ServiceDescriptor

from shared.errors import Unusable
from shared.rpc.principal import Scope


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """The limits of one method.

    `max_request_bytes` holds for each message of a request stream. `deadline_s` is the longest a call may take, a
    stream from its first byte to its last; a client that asks for more gets this. `tenantless`: callers without a
    tenant are let in (the operator, or a service that acts for all tenants at once).
    """

    scopes: frozenset[Scope]
    max_request_bytes: int
    deadline_s: float
    tenantless: bool = False

    def __post_init__(self) -> None:
        if not self.scopes or self.max_request_bytes <= 0 or self.deadline_s <= 0:
            raise Unusable("A policy needs at least one scope, a positive size limit and a positive deadline.")


Policies = Mapping[str, Policy]
"""Full method name ("/meiri.playlist.v1.PlaylistService/GetDaily") to its policy."""


def methods_of(*descriptors: FileDescriptor | ServiceDescriptor) -> frozenset[str]:
    """Every method of these services, or of the services of these proto files, by full method name."""
    services = [
        service
        for descriptor in descriptors
        for service in (
            descriptor.services_by_name.values() if isinstance(descriptor, FileDescriptor) else (descriptor,)
        )
    ]
    return frozenset(f"/{service.full_name}/{method.name}" for service in services for method in service.methods)


def complete(policies: Policies, methods: Iterable[str]) -> None:
    """Raise Unusable unless every method has a policy and every policy has a method."""
    served = set(methods)
    if missing := sorted(served - policies.keys()):
        raise Unusable(f"These methods have no policy, give each one in the service's table: {', '.join(missing)}.")
    if unknown := sorted(policies.keys() - served):
        raise Unusable(f"These policies name no method that is served, correct or delete them: {', '.join(unknown)}.")
