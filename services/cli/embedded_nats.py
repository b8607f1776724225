"""The nats-server that `turnwire up` starts for itself, on loopback and a port that the system chose."""

import asyncio
from pathlib import Path

import msgspec

from services.cli.nats_binary import find_nats_server
from services.cli.supervisor import Spec

NAME = "nats"
MAX_PAYLOAD = "8MB"
"""The most that the NATS documentation advises; as base64 a million token ids take 5.3 MB."""
_POLL_S = 0.02


class EmbeddedNats:
    """One embedded server. `directory` must be its alone."""

    def __init__(self, directory: Path) -> None:
        """Raises FileNotFoundError, saying what to install, where there is no nats-server."""
        self._binary = find_nats_server()
        self._directory = directory
        self._config = directory / "nats.conf"
        self._write_config(port=-1)

    @property
    def spec(self) -> Spec:
        """What to keep running."""
        return Spec(NAME, [str(self._binary), "-c", str(self._config)])

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
ports_file_dir: {msgspec.json.encode(str(self._directory)).decode()}
"""
        )
