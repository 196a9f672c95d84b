"""What a person reads who starts a door without a setting."""

import os
import subprocess
import sys

import pytest


@pytest.mark.parametrize(
    ("service", "missing"),
    [
        ("ingest", ("MEIRI_INGEST_LISTEN", "MEIRI_KAFKA_BOOTSTRAP_SERVERS")),
        ("gateway", ("MEIRI_GATEWAY_DATABASE_URL", "MEIRI_GATEWAY_TOKEN_PRIVATE_KEY")),
    ],
)
def test_a_missing_setting_is_told_with_its_purpose_and_an_example(service: str, missing: tuple[str, ...]) -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MEIRI_")}
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
    ended = subprocess.run(
        [sys.executable, "-m", f"services.{service}"], env=environment, capture_output=True, text=True, check=False
    )
    assert ended.returncode == 2
    assert "Traceback" not in ended.stderr
    for name in missing:
        (line,) = [line for line in ended.stderr.splitlines() if line.startswith(name)]
        assert f"{name} is not set. It is " in line
        assert f"Example: {name}=" in line
