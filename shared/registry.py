"""Model releases in a folder: written whole or not at all, and verified before use.

`<registry>/<tenant>/<release_id>/` holds the files of one release and `manifest.json`, which names the sha256 of each.
A release is written into a temporary folder beside its place, flushed to disk and renamed: a reader finds all of it or
nothing. A release never changes; publishing the same bytes again is no error, publishing others under its id is.
"""

import hashlib
import json
import re
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote, urlsplit

from shared.durable import flush_folder, flushed
from shared.errors import Permanent

MANIFEST = "manifest.json"
SCHEMA_VERSION = 1


@dataclass(frozen=True, slots=True)
class ReleaseContent:
    """A release before it has a name: its files, and the facts that its manifest states (JSON values)."""

    files: Mapping[str, bytes] = field(repr=False)
    facts: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ReleaseRef:
    """Where a release lies (file URI of its folder) and the sha256 (32 bytes) of its manifest: enough to trust it."""

    uri: str
    sha256: bytes


class Registry:
    def __init__(self, uri: str) -> None:
        """`uri`: `file:///…` or a path. The folder is made at the first release."""
        self._root = folder(uri)

    def publish(
        self, content: ReleaseContent, *, tenant: str, release_id: str, created_at: datetime, code_version: str
    ) -> ReleaseRef:
        """Write a release atomically and durably. Raises Permanent when its id is taken by other bytes."""
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", release_id):
            raise Permanent("release_bad_id", "A release id is made of letters, digits, dots, dashes and underscores.")
        manifest = {
            **content.facts,
            "schema_version": SCHEMA_VERSION,
            "release_id": release_id,
            "tenant": tenant,
            "created_at": created_at.isoformat(),
            "code_version": code_version,
            "files": {
                name: {"sha256": _sha256(data).hex(), "bytes": len(data)} for name, data in content.files.items()
            },
        }
        manifest_bytes = json.dumps(manifest, indent=1, sort_keys=True, ensure_ascii=False).encode()
        place = self._root / _folder_name(tenant) / release_id
        ref = ReleaseRef(place.absolute().as_uri(), _sha256(manifest_bytes))
        if place.exists():
            return self._same(place, ref)
        place.parent.mkdir(parents=True, exist_ok=True)
        temporary = Path(tempfile.mkdtemp(prefix=f".{release_id}.", dir=place.parent))
        try:
            temporary.chmod(0o755)
            for name, data in {**content.files, MANIFEST: manifest_bytes}.items():
                with flushed(temporary / name) as file:
                    file.write(data)
            flush_folder(temporary)
            temporary.rename(place)
        except OSError:
            shutil.rmtree(temporary, ignore_errors=True)
            if place.exists():  # another process published it meanwhile
                return self._same(place, ref)
            raise
        flush_folder(place.parent)
        return ref

    def open(self, ref: ReleaseRef) -> Path:
        """Give the release's folder after verifying all its bytes. Raises Permanent when one differs or is missing."""
        place = folder(ref.uri)
        if _sha256(_read(place / MANIFEST)) != ref.sha256:
            raise _corrupt(place, f"{MANIFEST} is not the one that was announced")
        manifest = json.loads(_read(place / MANIFEST))
        if manifest["schema_version"] > SCHEMA_VERSION:
            raise Permanent(
                "release_too_new",
                f"Release {place.name} has schema {manifest['schema_version']}, this code reads up to {SCHEMA_VERSION}:"
                " upgrade this service first.",
            )
        for name, facts in manifest["files"].items():
            if _sha256(_read(place / name)) != bytes.fromhex(facts["sha256"]):
                raise _corrupt(place, f"the sha256 of {name} differs from its manifest")
        return place

    def _same(self, place: Path, ref: ReleaseRef) -> ReleaseRef:
        if _sha256(_read(place / MANIFEST)) != ref.sha256:
            raise Permanent("release_exists", f"Release {place.name} exists with other content: choose another id.")
        return ref


def read_content(place: Path) -> ReleaseContent:
    """Read a release's files and its manifest's facts from a folder that `Registry.open` returned."""
    manifest = json.loads(_read(place / MANIFEST))
    return ReleaseContent({name: _read(place / name) for name in manifest["files"]}, manifest)


def folder(uri: str) -> Path:
    """Give the local folder that a `file:` URI or a plain path names. Raises Permanent for any other scheme."""
    if "://" not in uri:
        return Path(uri)
    parts = urlsplit(uri)
    if parts.scheme != "file" or parts.netloc not in {"", "localhost"}:
        raise Permanent("registry_bad_uri", f"{uri} is not a folder on this machine: give a path or a file:/// URI.")
    return Path(unquote(parts.path))


def _folder_name(tenant: str) -> str:
    """Give a tenant one folder, whatever its id is made of (`..` too)."""
    name = quote(tenant, safe="")
    return "%2E" + name[1:] if name.startswith(".") else name


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise Permanent(
            "release_missing", f"{path} is missing: the release was not published here or was removed."
        ) from None


def _sha256(data: bytes) -> bytes:
    return hashlib.sha256(data).digest()


def _corrupt(place: Path, what: str) -> Permanent:
    return Permanent("release_corrupt", f"Release {place.name} must not be used: {what}. Publish it again.")
