"""A nats-server with the deployment's own configuration and freshly made secrets."""

import shutil
import subprocess
import time
from pathlib import Path

from services.cli.make_secrets import make_secrets
from tests.conftest import LIMIT_S, NatsServer, free_port

CONF = Path(__file__).parents[2] / "deploy" / "nats" / "nats.conf"


class DeployedNats(NatsServer):
    """deploy/nats/nats.conf on loopback; `log` is the server's log file."""

    def __init__(self, binary: str, directory: Path) -> None:
        super().__init__(binary, str(directory))
        self.secrets = directory / "made"
        self.log = directory / "nats.log"
        shutil.copy(CONF, directory)
        make_secrets(self.secrets)
        shutil.copytree(self.secrets / "nats", directory / "secrets")
        address = ["-a", "127.0.0.1", "-p", str(self.port), "-m", str(free_port())]
        address += ["-sd", str(directory / "jetstream")]
        with self.log.open("wb") as output:
            self._server = subprocess.Popen([binary, "-c", str(directory / CONF.name), *address], stderr=output)
        deadline = time.monotonic() + LIMIT_S
        while "Server is ready" not in self.log.read_text():
            if time.monotonic() > deadline:
                raise RuntimeError(self.log.read_text())
            time.sleep(0.01)

    def password_file(self, user: str) -> str:
        """Where the password of a user of the bus is."""
        return str(self.secrets / user / "nats.password")

    def stop(self) -> None:
        self._server.kill()
        self._server.wait()
