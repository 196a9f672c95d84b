"""Files that are there whole or not at all, also after the machine has lost its power."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO


@contextmanager
def flushed(path: Path) -> Iterator[BinaryIO]:
    """A new file, on the disk when the block ends. Write beside the place, rename, then `flush_folder`."""
    with path.open("wb") as file:
        yield file
        file.flush()
        os.fsync(file.fileno())


def flush_folder(path: Path) -> None:
    """Flush the names in a folder: a rename is durable only after its folder has reached the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
