"""Tokens: a JWT signed with Ed25519 that says tenant (`ten`), subject (`sub`), scope, and when it ends (`exp`)."""

from datetime import datetime, timedelta
from typing import Any

import jwt
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_public_key,
)

from shared.clock import Clock
from shared.errors import Unusable
from shared.ids import TenantId
from shared.rpc.errors import Unauthenticated
from shared.rpc.principal import Principal, Scope

ALGORITHM = "EdDSA"
MAX_TOKEN_LENGTH = 2048
CACHED_TOKENS = 4096


def generate_key_pair() -> tuple[str, str]:
    """Make a new (private, public) key pair as PEM text. Only what mints tokens has the private one."""
    private = Ed25519PrivateKey.generate()
    return (
        private.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode(),
        private.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo).decode(),
    )


def mint(private_pem: str, *, tenant_id: str | None, subject: str, scope: Scope, now: datetime, ttl: timedelta) -> str:
    """Sign a token. ValueError: an app or user token without a tenant, a service token with one, or no subject."""
    claims = {
        "sub": subject,
        "scope": scope.value,
        "iat": int(now.timestamp()),
        "exp": int((now + ttl).timestamp()),
    }
    if tenant_id is not None:
        claims["ten"] = tenant_id
    if _principal(claims) is None:
        raise ValueError(f"A token of scope {scope} cannot have subject {subject!r} and tenant {tenant_id!r}.")
    return jwt.encode(claims, private_pem, algorithm=ALGORITHM)


class Verifier:
    """Tells a token's principal; remembers the tokens it found valid, until they expire.

    Only verified tokens are remembered and only `CACHED_TOKENS` of them, so that no caller can fill the memory.
    """

    def __init__(self, public_pem: str, clock: Clock) -> None:
        try:
            key = load_pem_public_key(public_pem.encode())
        except ValueError:
            key = None
        if not isinstance(key, Ed25519PublicKey):
            raise Unusable("The token public key is not an Ed25519 key in PEM form; name the file that has it.")
        self._key = key
        self._clock = clock
        self._valid: dict[str, tuple[Principal, int]] = {}

    def verify(self, token: str) -> Principal:
        """Tell the principal of a valid token, else raise Unauthenticated with one fixed sentence."""
        caller, expires_at = self._valid.get(token) or self._decode(token)
        if expires_at <= self._clock.now().timestamp():
            self._valid.pop(token, None)
            raise Unauthenticated
        if token not in self._valid:
            if len(self._valid) >= CACHED_TOKENS:
                del self._valid[next(iter(self._valid))]
            self._valid[token] = caller, expires_at
        return caller

    def _decode(self, token: str) -> tuple[Principal, int]:
        if len(token) > MAX_TOKEN_LENGTH:
            raise Unauthenticated
        try:
            # The expiry is compared in `verify` by our clock, which tests and demos move; jwt would use the system's.
            claims = jwt.decode(
                token,
                self._key,
                algorithms=[ALGORITHM],
                options={"require": ["exp", "sub", "scope"], "verify_exp": False, "verify_iat": False},
            )
        except jwt.PyJWTError:
            raise Unauthenticated from None
        caller, expires_at = _principal(claims), claims["exp"]
        if caller is None or type(expires_at) is not int:
            raise Unauthenticated
        return caller, expires_at


def _principal(claims: dict[str, Any]) -> Principal | None:
    """Read the principal that these claims describe; None where they contradict each other."""
    tenant_id, subject, scope = claims.get("ten"), claims["sub"], claims["scope"]
    if scope not in list(Scope) or not isinstance(subject, str) or not subject:
        return None
    if tenant_id is not None and not (isinstance(tenant_id, str) and tenant_id):
        return None
    if scope in (Scope.APP, Scope.USER) and tenant_id is None:
        return None
    if scope == Scope.SERVICE and tenant_id is not None:
        return None
    return Principal(TenantId(tenant_id) if tenant_id is not None else None, subject, Scope(scope))
