"""What callers prove themselves with in a local deployment: one Ed25519 key pair, the operator's and the services' token."""

from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from shared.clock import Clock
from shared.rpc.principal import Scope
from shared.rpc.tokens import generate_key_pair, mint

_VALID_FOR = timedelta(days=365)


@dataclass(frozen=True)
class Credentials:
    private_key: Path
    public_key: Path
    service_token: Path
    admin_token: str


def issue(folder: Path, clock: Clock) -> Credentials:
    """Mint new tokens with the key pair of `folder`, which is made when it is not there."""
    private, public, service = folder / "token.key.pem", folder / "token.pub.pem", folder / "service.token"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    # The public key is written last: without it the pair is not whole.
    if not public.exists():
        private_pem, public_pem = generate_key_pair()
        _write(private, private_pem)
        _write(public, public_pem)
    private_pem, now = private.read_text(encoding="ascii"), clock.now()
    _write(
        service,
        mint(private_pem, tenant_id=None, subject="services", scope=Scope.SERVICE, now=now, ttl=_VALID_FOR),
    )
    admin = mint(private_pem, tenant_id=None, subject="operator", scope=Scope.ADMIN, now=now, ttl=_VALID_FOR)
    return Credentials(private, public, service, admin)


def _write(file: Path, text: str) -> None:
    file.unlink(missing_ok=True)
    file.touch(mode=0o600)
    file.write_text(text, encoding="ascii")
