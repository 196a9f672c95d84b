"""docker-compose.yml and the Dockerfile, checked without an engine."""

import os
import re
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from infra.local.environment import SERVICES, settings_of, variables
from infra.local.schemas import SCHEMAS
from shared.settings import load

_ROOT = Path(__file__).parents[2]
_COMPOSE = _ROOT / "docker-compose.yml"
_DOCKERFILE = _ROOT / "infra" / "images" / "Dockerfile"
_REQUIRED = re.compile(r"\$\{(\w+):\?[^}]*\}")


@cache
def _compose() -> dict[str, Any]:
    parsed: dict[str, Any] = yaml.safe_load(_COMPOSE.read_text())
    return parsed


@cache
def _stages() -> dict[str, list[str]]:
    """The instructions of each stage of the Dockerfile, by its name."""
    text = "\n".join(line for line in _DOCKERFILE.read_text().splitlines() if not line.startswith("#"))
    stages: dict[str, list[str]] = {}
    for line in text.replace("\\\n", " ").splitlines():
        if line.startswith("FROM "):
            stages[line.split()[-1]] = []
        if line.strip():
            list(stages.values())[-1].append(line)
    return stages


def _names() -> list[str]:
    return list(_compose()["services"])


def test_the_whole_system_is_there() -> None:
    assert set(_names()) == {*SERVICES, "kafka", "postgres", "setup"}


@pytest.mark.parametrize("name", _names())
def test_every_image_has_an_exact_tag(name: str) -> None:
    tag = _compose()["services"][name]["image"].partition(":")[2]
    assert re.search(r"\d+\.\d+\.\d+", tag), f"{name} is not pinned: {tag!r}"


@pytest.mark.parametrize("name", _names())
def test_nothing_runs_as_root_or_may_become_it(name: str) -> None:
    service = _compose()["services"][name]
    assert service["user"] not in {"root", "0"}
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert not service.get("privileged")


@pytest.mark.parametrize("name", sorted({*_names()} - {"setup"}))
def test_everything_that_stays_has_a_health_check_and_is_restarted(name: str) -> None:
    service = _compose()["services"][name]
    assert service["healthcheck"]["test"][0] == "CMD"
    assert service["restart"] == "unless-stopped"


@pytest.mark.parametrize("name", SERVICES)
def test_a_service_gets_what_its_settings_ask_for_and_nothing_else(name: str) -> None:
    given, asked = set(_compose()["services"][name]["environment"]), variables(name)
    assert given - set(asked) == set()
    assert {variable for variable, required in asked.items() if required} - given == set()


@pytest.mark.parametrize("name", SERVICES)
def test_the_settings_of_a_service_accept_what_it_gets(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for variable, value in _compose()["services"][name]["environment"].items():
        monkeypatch.setenv(variable, _REQUIRED.sub("secret", value))
    load(settings_of(name))


@pytest.mark.parametrize("name", SERVICES)
def test_a_service_is_asked_for_its_health_where_it_listens(name: str) -> None:
    service = _compose()["services"][name]
    listen = service["environment"][f"MEIRI_{name.upper()}_LISTEN"]
    assert service["healthcheck"]["test"][-1] == "127.0.0.1:" + listen.rpartition(":")[2]
    assert service["command"] == ["python", "-m", f"services.{name}"]


def test_services_call_each_other_where_they_listen() -> None:
    services = _compose()["services"]
    for name in SERVICES:
        for variable, value in services[name]["environment"].items():
            if called := re.fullmatch(r"MEIRI_(\w+)_ADDRESS", variable):
                other = called[1].lower()
                port = services[other]["environment"][f"MEIRI_{called[1]}_LISTEN"].rpartition(":")[2]
                assert value == f"{other}:{port}"


def test_only_the_trainer_and_the_embedder_carry_torch() -> None:
    images = {name: _compose()["services"][name]["build"]["target"] for name in (*SERVICES, "setup")}
    assert {name for name, target in images.items() if target == "torch"} == {"trainer", "embedder"}
    locks = {
        target: (_ROOT / f"infra/images/requirements-{target}.lock").read_text() for target in _stages_with_locks()
    }
    assert {target for target, lock in locks.items() if re.search(r"^(torch|nvidia|triton)", lock, re.MULTILINE)} == {
        "torch"
    }


def _stages_with_locks() -> list[str]:
    return [stage for stage in _stages() if stage != "base"]


@pytest.mark.parametrize("target", _stages_with_locks())
def test_an_image_has_the_packages_of_the_lock_file(target: str) -> None:
    everything = set((_ROOT / "requirements.lock").read_text().splitlines())
    image = set((_ROOT / f"infra/images/requirements-{target}.lock").read_text().splitlines())
    assert image - everything == set(), "run make lock"
    assert any(line.startswith("COPY infra/images/requirements-" + target) for line in _stages()[target])


def test_only_the_gateway_and_the_setup_hold_the_signing_key() -> None:
    holders = {
        name for name in _names() if any("signing" in volume for volume in _compose()["services"][name]["volumes"])
    }
    assert holders == {"gateway", "setup"}
    assert all(
        volume.endswith(":ro")
        for name in SERVICES
        for volume in _compose()["services"][name]["volumes"]
        if volume.startswith(("signing", "keys"))
    )


def test_every_volume_of_ours_has_its_folder_and_owner_in_the_image() -> None:
    (made,) = [line for line in _stages()["base"] if "install --directory" in line]
    for name in (*SERVICES, "setup"):
        for volume in _compose()["services"][name]["volumes"]:
            assert volume.split(":")[1] in made.split()


def test_images_end_as_the_user_that_compose_runs() -> None:
    user = _compose()["services"]["gateway"]["user"]
    assert f"--uid {user} " in "\n".join(_stages()["base"])
    for stage in _stages_with_locks():
        assert _stages()[stage][-1] == f"USER {user}"


def test_base_images_have_an_exact_tag() -> None:
    own = set(_stages())
    bases = {line.split()[1] for lines in _stages().values() for line in lines if line.startswith("FROM ")} - own
    assert all(re.search(r":\d+\.\d+\.\d+", base) for base in bases)


def test_passwords_come_from_the_file_that_one_command_writes(tmp_path: Path) -> None:
    script = tmp_path / "infra" / "images" / "env.sh"
    script.parent.mkdir(parents=True)
    shutil.copy(_ROOT / "infra" / "images" / "env.sh", script)
    for told in ("Wrote .env", ".env is there already"):
        assert told in subprocess.run(["bash", script], check=True, capture_output=True, text=True).stdout
    written = dict(line.split("=", 1) for line in (tmp_path / ".env").read_text().splitlines())
    assert set(written) == set(_REQUIRED.findall(_COMPOSE.read_text()))
    assert {f"MEIRI_{schema.upper()}_DB_PASSWORD" for schema in SCHEMAS} < set(written)
    # They go into URLs as they are.
    assert all(re.fullmatch(r"[\w-]+", value) for value in written.values())
    assert (tmp_path / ".env").stat().st_mode & 0o077 == 0


def test_the_dockerfile_has_nothing_that_its_linter_warns_of() -> None:
    hadolint = Path(sys.executable).with_name("hadolint")
    ended = subprocess.run([hadolint, _DOCKERFILE], capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout) == (0, "")


def test_compose_itself_accepts_the_file(tmp_path: Path) -> None:
    docker = shutil.which("docker")
    if docker is None or subprocess.run([docker, "compose", "version"], capture_output=True, check=False).returncode:
        pytest.skip("this machine has no docker compose")
    env = tmp_path / ".env"
    env.write_text("".join(f"{name}=secret\n" for name in sorted(set(_REQUIRED.findall(_COMPOSE.read_text())))))
    command = [docker, "compose", "--env-file", str(env), "--file", str(_COMPOSE), "config", "--quiet"]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stderr) == (0, "")


_IMPORT = """
import importlib, re, sys
from importlib.metadata import packages_distributions

lock, *modules = sys.argv[1:]
had = {line.partition("==")[0] for line in open(lock)}
owners = packages_distributions()

class Absent:
    def find_spec(self, name, path=None, target=None):
        of = owners.get(name.partition(".")[0], [])
        if of and not had & {re.sub(r"[-_.]+", "-", owner).lower() for owner in of}:
            raise ModuleNotFoundError(f"{name} is not in {lock}", name=name)

sys.meta_path.insert(0, Absent())
for module in modules:
    importlib.import_module(module)
"""


@pytest.mark.parametrize("target", _stages_with_locks())
def test_the_services_of_an_image_need_no_package_that_it_lacks(target: str) -> None:
    services = [name for name in SERVICES if _compose()["services"][name]["build"]["target"] == target]
    modules = [f"services.{name}.app" for name in services] or ["infra.local.setup"]
    ended = subprocess.run(
        [sys.executable, "-c", _IMPORT, f"infra/images/requirements-{target}.lock", *modules],
        cwd=_ROOT,
        env={**os.environ, "PYTHONPATH": f"{_ROOT}:{_ROOT / 'protos' / 'gen'}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
