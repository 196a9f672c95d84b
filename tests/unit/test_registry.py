import json
from datetime import UTC, datetime
from pathlib import Path

import pytest

from shared.errors import Permanent
from shared.registry import MANIFEST, Registry, ReleaseContent, ReleaseRef, folder, read_content

CONTENT = ReleaseContent({"index.safetensors": b"index", "vocabulary.json": b"{}"}, {"blend_weights": {"own": 1.0}})
CREATED = datetime(2026, 11, 30, tzinfo=UTC)


def publish(registry: Registry, content: ReleaseContent = CONTENT, release_id: str = "r1") -> ReleaseRef:
    return registry.publish(content, tenant="north", release_id=release_id, created_at=CREATED, code_version="abc")


def test_published_release_is_read_back_with_its_facts(tmp_path: Path) -> None:
    registry = Registry(tmp_path.as_uri())
    ref = publish(registry)
    place = registry.open(ref)
    assert place == tmp_path / "north" / "r1"
    assert len(ref.sha256) == 32
    content = read_content(place)
    assert dict(content.files) == dict(CONTENT.files)
    assert content.facts["blend_weights"] == {"own": 1.0}
    assert (content.facts["release_id"], content.facts["tenant"]) == ("r1", "north")
    assert content.facts["created_at"] == "2026-11-30T00:00:00+00:00"
    assert content.facts["code_version"] == "abc"


def test_nothing_but_the_release_is_left_in_the_registry(tmp_path: Path) -> None:
    publish(Registry(str(tmp_path)))
    assert [path.name for path in (tmp_path / "north").iterdir()] == ["r1"]


def test_publishing_the_same_release_again_is_no_error(tmp_path: Path) -> None:
    registry = Registry(str(tmp_path))
    assert publish(registry) == publish(registry)


def test_release_id_taken_by_other_bytes_is_refused(tmp_path: Path) -> None:
    registry = Registry(str(tmp_path))
    ref = publish(registry)
    with pytest.raises(Permanent, match="other content"):
        publish(registry, ReleaseContent({"index.safetensors": b"other"}, {}))
    registry.open(ref)


@pytest.mark.parametrize("name", ["index.safetensors", MANIFEST])
def test_changed_byte_is_found_before_use(tmp_path: Path, name: str) -> None:
    registry = Registry(str(tmp_path))
    ref = publish(registry)
    path = tmp_path / "north" / "r1" / name
    data = bytearray(path.read_bytes())
    data[0] ^= 1
    path.write_bytes(data)
    with pytest.raises(Permanent, match="must not be used"):
        registry.open(ref)


def test_missing_file_is_found_before_use(tmp_path: Path) -> None:
    registry = Registry(str(tmp_path))
    ref = publish(registry)
    (tmp_path / "north" / "r1" / "vocabulary.json").unlink()
    with pytest.raises(Permanent, match="missing"):
        registry.open(ref)


def test_release_of_a_newer_schema_says_to_upgrade(tmp_path: Path) -> None:
    from hashlib import sha256

    registry = Registry(str(tmp_path))
    ref = publish(registry)
    path = tmp_path / "north" / "r1" / MANIFEST
    data = json.dumps({**json.loads(path.read_bytes()), "schema_version": 99}).encode()
    path.write_bytes(data)
    with pytest.raises(Permanent, match="upgrade"):
        registry.open(ReleaseRef(ref.uri, sha256(data).digest()))


def test_facts_cannot_overwrite_what_the_registry_states(tmp_path: Path) -> None:
    registry = Registry(str(tmp_path))
    ref = publish(registry, ReleaseContent(CONTENT.files, {"tenant": "south"}))
    assert read_content(registry.open(ref)).facts["tenant"] == "north"


@pytest.mark.parametrize("tenant", ["../up", "..", "/root", "a/b"])
def test_tenant_named_like_a_path_stays_inside_the_registry(tmp_path: Path, tenant: str) -> None:
    ref = Registry(str(tmp_path)).publish(
        CONTENT, tenant=tenant, release_id="r1", created_at=CREATED, code_version="abc"
    )
    assert folder(ref.uri).parent.parent == tmp_path


def test_release_id_named_like_a_path_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Permanent, match="letters"):
        publish(Registry(str(tmp_path)), release_id="../r1")


def test_registry_elsewhere_is_refused_with_a_sentence() -> None:
    with pytest.raises(Permanent, match="not a folder on this machine"):
        Registry("s3://bucket/models")
