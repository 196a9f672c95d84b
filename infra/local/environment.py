"""The environment of each service, made from the fields of its settings: what it declares it gets, and nothing else."""

import importlib
import os
from collections.abc import Mapping
from pathlib import Path

from shared.settings import ServiceSettings, env_name

ROOT = Path(__file__).parents[2]
SERVICES = ("gateway", "ingest", "features", "trainer", "embedder", "materialiser", "playlists")


def settings_of(service: str) -> type[ServiceSettings]:
    """The settings class of `services/<service>/settings.py`."""
    module = importlib.import_module(f"services.{service}.settings")
    for found in vars(module).values():
        if isinstance(found, type) and issubclass(found, ServiceSettings) and found.__module__ == module.__name__:
            return found
    raise LookupError(f"services/{service}/settings.py has no settings")


def variables(service: str) -> dict[str, bool]:
    """Every variable the service reads, and whether it has to be set."""
    settings = settings_of(service)
    return {env_name(settings, name): field.is_required() for name, field in settings.model_fields.items()}


def env_of(service: str, values: Mapping[str, str]) -> dict[str, str]:
    """The service's whole environment: of `values` (by variable) what it reads, else what is set here already."""
    env = {name: os.environ[name] for name in ("PATH", "HOME", "LANG", "TMPDIR") if name in os.environ}
    env |= {"PYTHONPATH": os.pathsep.join((str(ROOT), str(ROOT / "protos" / "gen"))), "PYTHONUNBUFFERED": "1"}
    for name in variables(service):
        if (value := values.get(name, os.environ.get(name))) is not None:
            env[name] = value
    return env
