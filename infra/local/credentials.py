"""What callers prove themselves with: one Ed25519 key pair, the operator's token and the services' token."""

from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from shared.clock import Clock
from shared.rpc.principal import Scope
from shared.rpc.tokens import generate_key_pair, mint

_VALID_FOR = timedelta(days=365)


@dataclass(frozen=True)
class Credentials:
    """Files: the two keys and the two tokens."""

    private_key: Path
    public_key: Path
    admin_token: Path
    service_token: Path


def issue(signing: Path, keys: Path, clock: Clock) -> Credentials:
    """Mint new tokens with the key pair that is there, which is made when it is not.

    `signing` is for those who may mint (private key, operator's token), `keys` for every service.
    """
    issued = Credentials(
        signing / "token.key.pem", keys / "token.pub.pem", signing / "operator.token", keys / "service.token"
    )
    for folder in (signing, keys):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    # The public key is written last: without it the pair is not whole.
    if not issued.public_key.exists():
        private_pem, public_pem = generate_key_pair()
        _write(issued.private_key, private_pem)
        _write(issued.public_key, public_pem)
    private_pem, now = issued.private_key.read_text(encoding="ascii"), clock.now()
    for file, subject, scope in (
        (issued.admin_token, "operator", Scope.ADMIN),
        (issued.service_token, "services", Scope.SERVICE),
    ):
        _write(file, mint(private_pem, tenant_id=None, subject=subject, scope=scope, now=now, ttl=_VALID_FOR))
    return issued


def _write(file: Path, text: str) -> None:
    file.unlink(missing_ok=True)
    file.touch(mode=0o600)
    file.write_text(text, encoding="ascii")
