"""A nats-server with the deployment's own configuration and freshly made secrets."""

import re
import shutil
import subprocess
import time
from collections import defaultdict
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
from structlog.typing import FilteringBoundLogger

from services.cli.commands.make_secrets import make_secrets
from services.runtime.config.service import BusConfig
from services.runtime.nats.bus import Bus
from tests.kit.nats import NatsServer, free_port
from tests.kit.stack import Stack
from tests.kit.waiting import LIMIT_S

CONF = Path(__file__).parents[2] / "deploy" / "nats" / "nats.conf"
STAGES = ("frontend", "preprocessor", "worker", "parser")
_DONE = re.compile(r'"\w+/user:(\w+)" - <<- \[H?(PUB|SUB) (\S+)')


class DeployedNats(NatsServer):
    """deploy/nats/nats.conf on loopback. `log`: the server's log, with `trace` every message of
    every user."""

    def __init__(
        self,
        binary: str,
        directory: Path,
        *,
        trace: bool = False,
        more: str = "",
        change: Callable[[str], str] = lambda conf: conf,
    ) -> None:
        """`more`: further lines of the configuration. `change`: replaces the deployment's own."""
        super().__init__(binary, str(directory))
        self.secrets = directory / "made"
        self.log = directory / "nats.log"
        (directory / CONF.name).write_text(change(CONF.read_text()))
        make_secrets(self.secrets)
        shutil.copytree(self.secrets / "nats", directory / "secrets")
        self.scheme = "tls" if "tls {" in more else "nats"
        self._config = directory / "server.conf"
        tracing = "trace: true\nmax_traced_msg_len: 1\n" if trace else ""
        self._config.write_text(f'include "{CONF.name}"\n{tracing}{more}')
        self.tls: dict[str, str] = {}
        """Settings of every client for TLS."""
        self._store = directory / "jetstream"
        self._ready = 0
        self.start()

    @property
    def url(self) -> str:
        return f"{self.scheme}://127.0.0.1:{self.port}"

    def start(self) -> None:
        ports = ["-p", str(self.port), "-m", str(free_port())]
        address = ["-a", "127.0.0.1", *ports, "-sd", str(self._store)]
        with self.log.open("ab") as output:
            self._process = subprocess.Popen(
                [self._binary, "-c", str(self._config), *address], stderr=output
            )
        self._ready += 1
        deadline = time.monotonic() + LIMIT_S
        while self.log.read_text().count("Server is ready") < self._ready:
            if time.monotonic() > deadline:
                raise RuntimeError(self.log.read_text())
            time.sleep(0.01)

    def make_buckets(self, **login: str) -> None:
        super().make_buckets(**(login or self.login("setup")))

    def login(self, user: str) -> dict[str, str]:
        """The settings with which a user of the bus connects."""
        return {"nats_user": user, "nats_password_file": self.password_file(user), **self.tls}

    def password_file(self, user: str) -> str:
        """Where the password of a user of the bus is."""
        return str(self.secrets / user / "nats.password")

    async def bus(self, user: str, log: FilteringBoundLogger) -> Bus:
        """The connection of a service as this user."""
        made = Bus(
            BusConfig(nats_url=self.url, **self.login(user)),  # type: ignore[arg-type]
            name="test",
            inbox_prefix=f"_INBOX_{user}",
            log=log,
            on_fatal=pytest.fail,
        )
        await made.connect()
        return made

    def violations(self) -> list[str]:
        """What the server refused."""
        return [line for line in self.log.read_text().splitlines() if "Violation" in line]

    def done(self) -> set[tuple[str, str, str]]:
        """With `trace`: (user, "PUB" or "SUB", subject) of everything that was sent and subscribed
        to."""
        return set(_DONE.findall(self.log.read_text()))


def users(nats: DeployedNats, **options: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """The options of a stack with this server's users and keys."""
    found: dict[str, dict[str, Any]] = {}
    for stage in STAGES:
        keys = {"heartbeat_key_file": str(nats.secrets / stage / "heartbeat.key")}
        if stage != "worker":
            keys["seal_key_file"] = str(nats.secrets / stage / "seal.key")
        found[stage] = {**nats.login(stage), **keys, **options.get(stage, {})}
    return found


def rights(conf: str) -> dict[str, dict[str, list[str]]]:
    """The subjects on which each user may publish, and to which it may subscribe."""
    text = re.sub(r"#.*", "", conf)
    found: dict[str, dict[str, list[str]]] = defaultdict(dict)
    for block in re.split(r"\buser: ", text)[1:]:
        user = block.split(maxsplit=1)[0]
        for what, subjects in re.findall(r"\b(publish|subscribe): \[(.*?)\]", block, re.DOTALL):
            found[user][what] = re.findall(r'"([^"]+)"', subjects)
    return dict(found)


def matches(pattern: str, subject: str) -> bool:
    """Whether a subject is one of those that a pattern with wildcards stands for."""
    wanted, given = pattern.split("."), subject.split(".")
    if wanted[-1] == ">":
        wanted, given = wanted[:-1], given[: len(wanted) - 1]
    return len(wanted) == len(given) and all(
        w in ("*", g) for w, g in zip(wanted, given, strict=True)
    )


def unused(patterns: Iterable[str], subjects: Iterable[str]) -> list[str]:
    """The patterns that stand for none of these subjects."""
    subjects = list(subjects)
    return [
        pattern
        for pattern in patterns
        if not any(matches(pattern, subject) for subject in subjects)
    ]


def stop(nats: DeployedNats, stack: Stack) -> None:
    """Ends all processes."""
    stack.stop()
    nats.kill()
