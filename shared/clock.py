"""The one clock that dates, windows and token expiry use. Deadlines are monotonic; leases use database time."""

import time
from datetime import UTC, datetime, timedelta
from pathlib import Path


class Clock:
    """System time plus an offset that running services re-read from one file, at most once a second.

    The file holds a number of seconds. The offset only grows: a smaller number is ignored, so that no date comes twice.
    """

    def __init__(self, offset_file: Path | None = None) -> None:
        self._offset_file = offset_file
        self._offset = timedelta()
        self._read_at = float("-inf")

    def now(self) -> datetime:
        if self._offset_file is not None and time.monotonic() - self._read_at >= 1.0:
            self._read_at = time.monotonic()
            self._offset = max(self._offset, read_offset(self._offset_file))
        return datetime.now(UTC) + self._offset

    def now_ms(self) -> int:
        return int(self.now().timestamp() * 1000)

    def ahead_ms(self) -> int:
        """How far this clock runs ahead of the system's, by which brokers stamp records."""
        self.now()
        return int(self._offset.total_seconds() * 1000)


def read_offset(file: Path) -> timedelta:
    try:
        return timedelta(seconds=float(file.read_text() or 0))
    except (FileNotFoundError, ValueError):  # ValueError: read while another process writes it; the next second has it
        return timedelta()


def move_to(file: Path, instant: datetime) -> None:
    """Make every clock on this file say at least `instant` now."""
    offset = max(read_offset(file), instant - datetime.now(UTC))
    temporary = file.with_suffix(".tmp")
    temporary.write_text(str(offset.total_seconds()))
    temporary.replace(file)
