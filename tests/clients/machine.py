"""A user's machine: a home, a project, a shell, and no network beyond loopback."""

import asyncio
import json
import os
import signal
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

RUN_S = 400


@dataclass
class Result:
    """The result of a program."""

    status: int
    out: str
    err: str

    @property
    def lines(self) -> list[dict[str, Any]]:
        """What it printed as JSON, line by line."""
        return [json.loads(line) for line in self.out.splitlines() if line.startswith("{")]

    def ok(self) -> "Result":
        """Raises AssertionError, with the end of its output, unless the status is 0."""
        assert self.status == 0, f"status {self.status}\n{self.out[-3000:]}\n{self.err[-3000:]}"
        return self


class Machine:
    """Its folders are made in `directory`."""

    def __init__(self, directory: Path) -> None:
        self.home = directory / "home"
        self.project = directory / "project"
        for folder in (self.project, self.home / "tmp"):
            folder.mkdir(parents=True, exist_ok=True)
        self.environment = {
            "HOME": str(self.home),
            "TMPDIR": str(self.home / "tmp"),
            "PATH": "/usr/local/bin:/usr/bin:/bin",
            "LANG": "C.UTF-8",
            "TERM": "dumb",
            "SHELL": "/bin/bash",
            "USER": "dev",
            "NO_PROXY": "127.0.0.1,localhost",
            "no_proxy": "127.0.0.1,localhost",
            # Requests beyond loopback fail: a run uses Turnwire only.
            "HTTPS_PROXY": "http://127.0.0.1:9",
            "HTTP_PROXY": "http://127.0.0.1:9",
        }

    async def run(self, *command: str | Path, env: Mapping[str, str] | None = None) -> Result:
        """Runs a program in the project. One that takes too long is killed, with its children."""
        process = await asyncio.create_subprocess_exec(
            *map(str, command),
            cwd=self.project,
            env={**self.environment, **(env or {})},
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            start_new_session=True,
        )
        try:
            out, err = await asyncio.wait_for(process.communicate(), RUN_S)
        finally:
            if process.returncode is None:
                os.killpg(process.pid, signal.SIGKILL)
                await process.wait()
        return Result(
            process.returncode or 0, out.decode(errors="replace"), err.decode(errors="replace")
        )

    async def connect(self, client: str, url: str, *options: str) -> None:
        """Configures a client with `turnwire connect CLIENT --write`."""
        await self.print_settings(client, url, "--write", *options)

    async def print_settings(self, client: str, url: str, *options: str) -> str:
        """The output of `turnwire connect CLIENT`."""
        command = [sys.executable, "-m", "services.cli.main", "connect", client, "--url", url]
        env = {"PYTHONPATH": str(Path(__file__).parents[2])}
        return (await self.run(*command, *options, env=env)).ok().out

    def file(self, name: str) -> str:
        """A file of the project."""
        return (self.project / name).read_text()

    def write(self, name: str, text: str) -> None:
        (self.project / name).write_text(text)
