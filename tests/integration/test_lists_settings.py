"""What the person at the terminal is told when a setting is missing."""

import os
import subprocess
import sys

import pytest

MISSING = {
    "materialiser": ("MEIRI_MATERIALISER_LISTEN", "the host and port that the materialiser's gRPC listens on"),
    "playlists": ("MEIRI_PLAYLISTS_DATABASE_URL", "the Postgres database and role that keep the lists"),
    "embedder": ("MEIRI_REGISTRY", "the folder of model releases, a path or a file URI"),
    "trainer": ("MEIRI_ARCHIVE", "the folder that the archive of plays is kept in"),
}


@pytest.mark.parametrize("service", MISSING)
def test_a_missing_setting_is_told_with_its_purpose_and_an_example(service: str) -> None:
    env = {name: value for name, value in os.environ.items() if not name.startswith("MEIRI_")}
    env["PYTHONPATH"] = os.pathsep.join(sys.path)
    ended = subprocess.run(
        (sys.executable, "-m", f"services.{service}"), env=env, capture_output=True, text=True, check=False, timeout=60
    )
    name, purpose = MISSING[service]
    (line,) = (line for line in ended.stderr.splitlines() if line.startswith(f"{name} "))
    assert line.startswith(f"{name} is not set. It is {purpose}. Example: {name}=")
    assert "Traceback" not in ended.stderr
    assert ended.returncode == 2
