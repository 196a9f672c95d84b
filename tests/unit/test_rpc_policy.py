"""The policy table is complete, the error table maps both ways, and a principal touches only what is its own."""

from dataclasses import replace
from typing import Any

import pytest
from google.protobuf import descriptor_pb2, descriptor_pool

from shared.errors import Permanent, Transient, Unusable
from shared.ids import TenantId
from shared.rpc.errors import CODE_OF, NotFound, PermissionDenied, code_of
from shared.rpc.policy import Policy, complete, methods_of
from shared.rpc.principal import Principal, Scope, principal, require_tenant, require_user

ACME = TenantId("acme")
POLICY = Policy(scopes=frozenset({Scope.APP}), max_request_bytes=1, deadline_s=1.0)


def test_a_method_without_policy_and_a_policy_without_method_are_named() -> None:
    complete({"/a.B/C": POLICY}, ["/a.B/C"])
    with pytest.raises(Unusable, match=r"no policy.*: /a\.B/D\."):
        complete({"/a.B/C": POLICY}, ["/a.B/C", "/a.B/D"])
    with pytest.raises(Unusable, match=r"no method.*: /a\.B/C\."):
        complete({"/a.B/C": POLICY}, [])


def test_methods_are_read_from_proto_descriptors() -> None:
    file = descriptor_pb2.FileDescriptorProto(name="t.proto", package="a.v1", syntax="proto3")
    file.message_type.add(name="M")
    service = file.service.add(name="S")
    for name in ("Get", "Put"):
        service.method.add(name=name, input_type=".a.v1.M", output_type=".a.v1.M")
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    described = pool.FindFileByName("t.proto")
    assert methods_of(described) == {"/a.v1.S/Get", "/a.v1.S/Put"}
    assert methods_of(described.services_by_name["S"]) == methods_of(described)


@pytest.mark.parametrize("wrong", [{"scopes": frozenset[Scope]()}, {"max_request_bytes": 0}, {"deadline_s": 0.0}])
def test_a_policy_without_scopes_or_limits_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(Unusable, match="A policy needs"):
        replace(POLICY, **wrong)


def test_a_user_names_itself_only_and_an_app_any_user_of_its_tenant() -> None:
    require_user(Principal(ACME, "ann", Scope.USER), "ann")
    require_user(Principal(ACME, "backend", Scope.APP), "ann")
    with pytest.raises(PermissionDenied, match="own user"):
        require_user(Principal(ACME, "ann", Scope.USER), "bob")
    with pytest.raises(PermissionDenied, match="meiri-tenant"):
        require_user(Principal(None, "root", Scope.ADMIN), "ann")
    with pytest.raises(PermissionDenied, match="meiri-tenant"):
        require_tenant(Principal(None, "ingest", Scope.SERVICE))


def test_outside_an_rpc_there_is_no_principal() -> None:
    with pytest.raises(LookupError):
        principal()


def test_each_error_has_one_status_and_a_subclass_has_its_parents() -> None:
    class NoList(NotFound):
        pass

    assert code_of(NoList("no_list", "There is no list.")) is CODE_OF[NotFound]
    assert code_of(Permanent("x", "X.")) is CODE_OF[Permanent]
    assert code_of(Transient("later")) is CODE_OF[Transient]
    assert len(set(CODE_OF.values())) == len(CODE_OF)
