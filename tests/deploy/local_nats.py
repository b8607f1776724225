"""A NATS server of deploy/kubernetes as a process on loopback."""

import base64
import subprocess
import time
import urllib.request
from collections.abc import Mapping
from pathlib import Path

from tests.deploy.rendered import Rendered
from tests.kit.nats import free_port
from tests.kit.waiting import LIMIT_S


class LocalNats:
    """The container of the StatefulSet as a process on loopback: its own arguments, with its
    volumes as directories."""

    def __init__(
        self,
        binary: str,
        directory: Path,
        rendered: Rendered,
        more: Mapping[str, Mapping[str, bytes]],
        places: Mapping[str, str],
    ) -> None:
        """`more`: files of Secrets that the manifests do not make. `places`: what to replace in the
        arguments."""
        spec = rendered.get("StatefulSet", "nats")["spec"]["template"]["spec"]
        (container,) = spec["containers"]
        assert container["command"] == ["nats-server"]
        for source in next(
            v["projected"]["sources"] for v in spec["volumes"] if v["name"] == "config"
        ):
            if "configMap" in source:
                data = rendered.get("ConfigMap", source["configMap"]["name"])["data"]
                files = {name: text.encode() for name, text in data.items()}
            elif source["secret"]["name"] in more:
                files = dict(more[source["secret"]["name"]])
            else:
                data = rendered.get("Secret", source["secret"]["name"])["data"]
                files = {name: base64.b64decode(text) for name, text in data.items()}
            items = source.get("secret", {}).get("items") or [
                {"key": name, "path": name} for name in files
            ]
            for item in items:
                path = directory / "etc" / item["path"]
                path.parent.mkdir(parents=True, exist_ok=True)
                text = files[item["key"]]
                for inside, outside in {"/etc/nats": str(directory / "etc"), **places}.items():
                    text = text.replace(inside.encode(), outside.encode())
                path.write_bytes(text)
        args = container["args"]
        volumes = {"/etc/nats": str(directory / "etc"), "/data": str(directory / "data")}
        for inside, outside in {**volumes, **places}.items():
            args = [arg.replace(inside, outside) for arg in args]
        self.port, self._monitor = free_port(), free_port()
        self._health = container["readinessProbe"]["exec"]["command"][-1].replace(
            "8222", str(self._monitor)
        )
        address = ["-a", "127.0.0.1", "-p", str(self.port), "-m", str(self._monitor)]
        self._log = directory / "nats.log"
        self._command = [binary, *args, *address]
        self.start()

    def start(self) -> None:
        """Starts, or starts again."""
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(self._command, stderr=log)

    def drain(self, hook: list[str]) -> None:
        """The preStop hook, for this process instead of the first one of a container, and then its
        end."""
        subprocess.run([*hook[:-1], f"ldm={self._process.pid}"], check=True, timeout=LIMIT_S)
        self._process.wait(2 * LIMIT_S)

    def wait(self) -> None:
        """Until its readiness probe succeeds."""
        deadline = time.monotonic() + LIMIT_S
        while True:
            try:
                with urllib.request.urlopen(self._health, timeout=LIMIT_S) as answer:
                    assert answer.status == 200
                    return
            except OSError:
                assert self._process.poll() is None, self._log.read_text()
                assert time.monotonic() < deadline
                time.sleep(0.02)

    def stop(self) -> None:
        self._process.kill()
        self._process.wait()
