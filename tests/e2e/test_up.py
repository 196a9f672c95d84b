"""`make up` as a person uses it: the printed lines work, Ctrl-C stops everything, the next start has the data."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from infra.local.environment import SERVICES
from infra.local.ports import claim_all
from tests.integration.test_deployment import processes_of

_ROOT = Path(__file__).parents[2]
_LAST_LINE = "Ctrl-C stops everything"


@contextmanager
def _up(run_dir: Path) -> Iterator[list[str]]:
    """The lines to paste. The end of the block is Ctrl-C."""
    ports = dict(zip(SERVICES, claim_all([None] * len(SERVICES)), strict=True))
    out = run_dir.with_suffix(".out")
    with out.open("w") as file:
        process = subprocess.Popen(
            [sys.executable, "-m", "infra.local.program", "infra.local.up", "--run-dir", str(run_dir)],
            cwd=_ROOT,
            env={
                **os.environ,
                "PYTHONPATH": f"{_ROOT}:{_ROOT / 'protos' / 'gen'}",
                **{f"MEIRI_{name.upper()}_PORT": str(port) for name, port in ports.items()},
            },
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        deadline = time.monotonic() + 240
        while _LAST_LINE not in out.read_text():
            assert process.poll() is None, out.read_text()
            assert time.monotonic() < deadline, out.read_text()
            time.sleep(0.2)
        yield [line for line in out.read_text().splitlines() if re.match(r"export |\S*python\S* docs/", line)]
        os.killpg(process.pid, signal.SIGINT)
        assert process.wait(60) == 130
    finally:
        process.kill()
        process.wait()
    told = out.read_text()
    assert "Traceback" not in told
    assert told.endswith("Stopped.\n")
    assert processes_of(run_dir) == []


def _pasted(lines: list[str]) -> str:
    ended = subprocess.run(
        ["bash", "-e", "-c", "\n".join(lines)],
        cwd=_ROOT,
        env={name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


def test_the_printed_lines_publish_a_play_and_read_a_list(tmp_path: Path) -> None:
    with _up(tmp_path / "up") as lines:
        acknowledged, title, *songs = _pasted(lines).splitlines()
        assert acknowledged == "acknowledged 1"
        assert title.startswith("mira, ")
        assert len(songs) == 30
    with _up(tmp_path / "up") as lines:
        assert _pasted(lines).splitlines()[-30:] == songs
