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
        argv = [
            sys.executable,
            "-m",
            "services.cli.main",
            "trajectories",
            str(self.folder / "tap.jsonl"),
        ]
        made = subprocess.run(
            [*argv, "--model", str(model)], capture_output=True, text=True, timeout=LIMIT_S
        )
        assert made.returncode == 0, made.stderr
        lines = made.stdout
        (self.folder / "samples.jsonl").write_text(lines)
        argv = [
            sys.executable,
            "-S",
            "-I",
            str(CHECK),
            str(self.folder / "tap.jsonl"),
            str(self.folder / "samples.jsonl"),
        ]
        checked = subprocess.run(argv, capture_output=True, text=True, timeout=LIMIT_S)
        assert checked.returncode == 0, checked.stdout + checked.stderr
        return [json.loads(line) for line in lines.splitlines()]
