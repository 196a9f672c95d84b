"""The jars of Apache Kafka: fetched once into the Python environment, then found without network or resolution.

python -m infra.local.jars
"""

import contextlib
import os
import shutil
import sys
import tempfile
from pathlib import Path

from shared.errors import Unusable

KAFKA_VERSION = "4.3.1"
# Kafka speaks the slf4j 1.7 interface: a newer binding would print nothing.
_COORDINATES = f"org.apache.kafka:kafka_2.13:{KAFKA_VERSION}+org.slf4j:slf4j-simple:1.7.36"


def folder() -> Path:
    return Path(sys.prefix) / "share" / "meiri" / f"kafka-{KAFKA_VERSION}"


def _remembered(home: Path) -> Path:
    """Lists the jars in class path order."""
    return home / "classpath.txt"


def class_path(home: Path | None = None) -> str:
    """As Java takes it. Fetches the jars the first time; raises Unusable when the network for it is not there."""
    home = home or folder()
    if not _remembered(home).exists():
        print(f"Fetching Apache Kafka {KAFKA_VERSION} (once).", file=sys.stderr)
        _fetch(home)
    names = _remembered(home).read_text(encoding="utf-8").split()
    missing = [name for name in names if not (home / name).is_file()]
    if missing:
        raise Unusable(f"{home} lacks {missing[0]}: delete that folder and run the same command again with a network.")
    return os.pathsep.join(str(home / name) for name in names)


def _fetch(home: Path) -> None:
    import jgo  # noqa: PLC0415  a second of imports that a later start does not need

    home.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=home.parent) as resolved:
        try:
            jars = jgo.build(_COORDINATES, cache_dir=Path(resolved)).all_jars
        except Exception as error:  # jgo lets whatever its transport raises through
            raise Unusable(
                f"Apache Kafka {KAFKA_VERSION} is not in {home} yet and could not be fetched "
                f"({type(error).__name__}): run the same command once with a network, "
                "or set KAFKA_BOOTSTRAP_SERVERS to a running Kafka."
            ) from error
        whole = Path(resolved) / home.name
        whole.mkdir()
        for jar in jars:
            shutil.copyfile(jar, whole / jar.name)
        _remembered(whole).write_text("".join(f"{jar.name}\n" for jar in jars), encoding="utf-8")
        # Another process that fetched at the same time may have been first: its folder is as good.
        with contextlib.suppress(OSError):
            whole.rename(home)


if __name__ == "__main__":
    try:
        class_path()
    except Unusable as error:
        print(error, file=sys.stderr)
        sys.exit(2)
