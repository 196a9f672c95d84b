"""Tokens: what is verified, what is refused, and that every refusal reads the same."""

import base64
import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import jwt
import pytest

from shared.clock import Clock, move_to
from shared.errors import Unusable
from shared.ids import TenantId
from shared.rpc.errors import Unauthenticated
from shared.rpc.principal import Principal, Scope
from shared.rpc.tokens import CACHED_TOKENS, Verifier, generate_key_pair, mint

PRIVATE, PUBLIC = generate_key_pair()
NOW = datetime.now(UTC)
HOUR = timedelta(hours=1)
ANN = Principal(TenantId("acme"), "ann", Scope.USER)
CLAIMS = {"ten": "acme", "sub": "ann", "scope": "user", "iat": int(NOW.timestamp())}
LATER = int((NOW + HOUR).timestamp())


def token(private: str = PRIVATE, *, ttl: timedelta = HOUR) -> str:
    return mint(private, tenant_id="acme", subject="ann", scope=Scope.USER, now=NOW, ttl=ttl)


def part(value: object) -> str:
    return base64.urlsafe_b64encode(json.dumps(value).encode()).rstrip(b"=").decode()


def test_a_minted_token_gives_its_principal_back() -> None:
    assert Verifier(PUBLIC, Clock()).verify(token()) == ANN


@pytest.mark.parametrize(
    ("tenant_id", "subject", "scope"),
    [(None, "ann", Scope.USER), (None, "backend", Scope.APP), ("acme", "ingest", Scope.SERVICE), ("acme", "", "user")],
)
def test_a_contradicting_token_is_not_minted(tenant_id: str | None, subject: str, scope: str) -> None:
    with pytest.raises(ValueError, match="cannot have"):
        mint(PRIVATE, tenant_id=tenant_id, subject=subject, scope=Scope(scope), now=NOW, ttl=HOUR)


REFUSED = {
    "expired": token(ttl=-HOUR),
    "signed by another key": token(generate_key_pair()[0]),
    "no text": "",
    "not a token": "a.b.c",
    "unsigned": f"{part({'alg': 'none'})}.{part(CLAIMS | {'exp': LATER})}.",
    "signed with the public key as a shared secret": jwt.api_jws.PyJWS().encode(b"{}", "x" * 64, algorithm="HS256"),
    "cut": token()[:-8],
    "too long": token() + "A" * 4096,
    "without expiry": jwt.encode(CLAIMS, PRIVATE, algorithm="EdDSA"),
    "expiry of another type": jwt.encode(CLAIMS | {"exp": float("nan")}, PRIVATE, algorithm="EdDSA"),
    "without scope": jwt.encode({"sub": "ann", "ten": "acme", "exp": LATER}, PRIVATE, algorithm="EdDSA"),
    "unknown scope": jwt.encode(CLAIMS | {"scope": "root", "exp": LATER}, PRIVATE, algorithm="EdDSA"),
    "scope of another type": jwt.encode(CLAIMS | {"scope": ["user"], "exp": LATER}, PRIVATE, algorithm="EdDSA"),
    "user without tenant": jwt.encode({"sub": "a", "scope": "user", "exp": LATER}, PRIVATE, algorithm="EdDSA"),
    "tenant of another type": jwt.encode(CLAIMS | {"ten": 7, "exp": LATER}, PRIVATE, algorithm="EdDSA"),
    "empty tenant": jwt.encode(CLAIMS | {"ten": "", "exp": LATER}, PRIVATE, algorithm="EdDSA"),
}


@pytest.mark.parametrize("text", REFUSED.values(), ids=REFUSED.keys())
def test_what_is_not_a_valid_token_is_refused_with_the_one_sentence(text: str) -> None:
    with pytest.raises(Unauthenticated) as refusal:
        Verifier(PUBLIC, Clock()).verify(text)
    assert (str(refusal.value), refusal.value.reason) == ("Send a valid token with this call.", "unauthenticated")
    assert refusal.value.__cause__ is None


def test_a_remembered_token_ends_with_its_expiry_by_our_clock(tmp_path: Path) -> None:
    verifier = Verifier(PUBLIC, Clock(tmp_path / "clock"))
    verifier.verify(token())
    verifier.verify(token())
    move_to(tmp_path / "clock", NOW + HOUR + timedelta(seconds=1))
    moved = Verifier(PUBLIC, Clock(tmp_path / "clock"))
    moved._valid = dict(verifier._valid)
    assert moved._valid
    with pytest.raises(Unauthenticated):
        moved.verify(token())
    assert not moved._valid


def test_the_verifier_remembers_no_refused_token_and_no_more_than_its_bound() -> None:
    verifier = Verifier(PUBLIC, Clock())
    for text in REFUSED.values():
        with pytest.raises(Unauthenticated):
            verifier.verify(text)
    assert not verifier._valid
    verifier._valid = {f"old {n}": (ANN, LATER) for n in range(CACHED_TOKENS)}
    verifier.verify(token())
    assert len(verifier._valid) == CACHED_TOKENS
    assert token() in verifier._valid
    assert "old 0" not in verifier._valid


@pytest.mark.parametrize("pem", ["", "no key", PRIVATE])
def test_a_wrong_public_key_stops_the_start(pem: str) -> None:
    with pytest.raises(Unusable, match="Ed25519"):
        Verifier(pem, Clock())
