"""Prepare servers that run already: topics, roles, schemas, migrations and, where folders for them are named, keys.

    KAFKA_BOOTSTRAP_SERVERS=… DATABASE_URL=… python -m infra.local.setup

DATABASE_URL is an administrator's. A role's password is MEIRI_<SERVICE>_DB_PASSWORD; a new role without one gets a
generated password, which is printed this once. MEIRI_SIGNING_FOLDER and MEIRI_KEYS_FOLDER get the key pair and the tokens
of the operator and of the services. Running it again changes nothing but the tokens, which are new.
"""

import os
import secrets
import sys
from collections.abc import Mapping
from pathlib import Path

from infra.local import credentials, kafka, postgres, schemas
from infra.local.program import run
from shared.clock import Clock
from shared.errors import Unusable
from shared.topics import ALL

_EXAMPLES = {
    "KAFKA_BOOTSTRAP_SERVERS": "kafka:9092",
    "DATABASE_URL": "postgresql://postgres:secret@postgres:5432/meiri",
}


async def setup(env: Mapping[str, str]) -> None:
    for name, example in _EXAMPLES.items():
        if not env.get(name):
            raise Unusable(f"{name} is not set: it names the servers to prepare. Example: {name}={example}")
    bootstrap, admin_url = env["KAFKA_BOOTSTRAP_SERVERS"], env["DATABASE_URL"]
    await kafka.reach(bootstrap)
    await postgres.reach(admin_url)
    await kafka.create_topics(bootstrap, ALL)
    given = {
        schema: password for schema in schemas.SCHEMAS if (password := env.get(f"MEIRI_{schema.upper()}_DB_PASSWORD"))
    }
    new = set(schemas.SCHEMAS) - set(given) - await schemas.roles(admin_url)
    generated = {schema: secrets.token_urlsafe(24) for schema in sorted(new)}
    made = await schemas.prepare(admin_url, given | generated)
    for schema in generated:
        print(f"MEIRI_{schema.upper()}_DATABASE_URL={made.urls[schema]}")
    signing, keys = env.get("MEIRI_SIGNING_FOLDER"), env.get("MEIRI_KEYS_FOLDER")
    if signing and keys:
        issued = credentials.issue(Path(signing), Path(keys), Clock())
        print(f"The operator's token is in {issued.admin_token}.")
    print("Topics, schemas and roles are ready.")


def main() -> int:
    return run(setup(os.environ))


if __name__ == "__main__":
    sys.exit(main())
