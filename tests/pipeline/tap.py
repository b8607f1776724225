"""Records a bus with `turnwire tap`, and makes samples of it with `turnwire trajectories`."""

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.kit.waiting import LIMIT_S

CHECK = Path(__file__).parent / "trajectory_check.py"
SAMPLE = dict[str, Any]


class Tap:
    """Records the bus while it is open."""

    def __init__(self, nats_url: str, folder: Path) -> None:
        self.folder = folder
        self._file = (folder / "tap.jsonl").open("wb")
        argv = [sys.executable, "-m", "services.cli.main", "tap", "--json", "--nats-url", nats_url]
        self._process = subprocess.Popen(argv, stdout=self._file, stderr=subprocess.PIPE)
        assert self._process.stderr is not None
        assert b"listening" in self._process.stderr.readline()

    def stop(self) -> None:
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGINT)
            self._process.communicate(timeout=LIMIT_S)
        self._file.close()

    def samples(self, model: Path) -> list[SAMPLE]:
        """Stops; returns the samples, after the independent script has checked them."""
        self.stop()
        made = _run(
            "-m", "services.cli.main", "trajectories", self.folder / "tap.jsonl", "--model", model
        )
        return self.check(made)

    def check(self, lines: str, *missing: str) -> list[SAMPLE]:
        """Stops; returns samples, after the independent script has checked them. `missing`: turns
        that may be in none."""
        self.stop()
        samples = self.folder / "samples.jsonl"
        samples.write_text(lines)
        _run("-S", "-I", CHECK, self.folder / "tap.jsonl", samples, *missing)
        return [json.loads(line) for line in lines.splitlines()]


def _run(*arguments: str | Path) -> str:
    """Runs Python; returns what it prints."""
    argv = [sys.executable, *map(str, arguments)]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=LIMIT_S)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
