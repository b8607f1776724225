"""The nats-server that `turnwire up` starts for itself, on loopback and a port that the system chose."""

import asyncio
import fcntl
import os
from pathlib import Path
from typing import IO

import msgspec

from services.cli.nats_binary import find_nats_server
from services.cli.supervisor import Spec

NAME = "nats"
MAX_PAYLOAD = "8MB"
"""The most that the NATS documentation advises; as base64 a million token ids take 5.3 MB."""
MAX_STORE = "8GB"
"""For all buckets together; each has a limit of its own below it."""
GO = {"GOMAXPROCS": "1", "GOGC": "400"}
"""Of Go's runtime, where the environment does not say otherwise. Its threads wake each other for every message; on one,
with fewer collections of its small heap, a message of 4 KB costs the server about a quarter less CPU, one of 300 KB
about half (at 100 ticks a second, on two cores)."""
_POLL_S = 0.02


class EmbeddedNats:
    """One embedded server. `directory` must be its alone.

    What JetStream keeps is in `state_dir` and outlives this run, unless another run has it at the moment: then it is in
    `directory`. The claim on it lasts as long as this object.
    """

    def __init__(self, directory: Path, state_dir: Path) -> None:
        """Raises FileNotFoundError, saying what to install, where there is no nats-server."""
        self._binary = find_nats_server()
        self._directory = directory
        self._claim = _claim(state_dir / "jetstream.lock")
        self._store = (state_dir if self._claim else directory) / "jetstream"
        self._config = directory / "nats.conf"
        self._write_config(port=-1)

    @property
    def spec(self) -> Spec:
        """What to keep running."""
        env = {name: value for name, value in GO.items() if name not in os.environ}
        return Spec(NAME, [str(self._binary), "-c", str(self._config)], env)

    async def url(self, pid: int) -> str:
        """Waits for the server's address; from then on every restart has the same one. Cancel it to give up."""
        ports = self._directory / f"nats-server_{pid}.ports"
        while True:
            try:
                (url,) = msgspec.json.decode(ports.read_bytes())["nats"]
                break
            except (FileNotFoundError, msgspec.DecodeError):
                await asyncio.sleep(_POLL_S)
        self._write_config(port=int(url.rpartition(":")[2]))
        return str(url)

    def _write_config(self, port: int) -> None:
        self._config.write_text(
            f"""host: "127.0.0.1"
port: {port}
max_payload: {MAX_PAYLOAD}
write_deadline: "2s"
logtime: false
ports_file_dir: {_quoted(self._directory)}
jetstream {{
  store_dir: {_quoted(self._store)}
  max_file_store: {MAX_STORE}
  max_memory_store: 64MB
}}
"""
        )


def _quoted(path: Path) -> str:
    return msgspec.json.encode(str(path)).decode()


def _claim(path: Path) -> IO[bytes] | None:
    """The open lock file; None where somebody else has it. A server that finds another's files in use breaks them."""
    file = path.open("ab")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        file.close()
        return None
    return file
