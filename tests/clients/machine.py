"""A user's machine: a home, a project, a shell, and nothing outside that could be reached."""

import asyncio
import json
import os
import signal
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

RUN_S = 120


@dataclass
class Ran:
    """A program that has run to its end."""

    status: int
    out: str
    err: str

    @property
    def lines(self) -> list[dict[str, Any]]:
        """What it printed as JSON, line by line."""
        return [json.loads(line) for line in self.out.splitlines() if line.startswith("{")]

    def ok(self) -> "Ran":
        """Raises AssertionError, with the end of what was said, unless the program ended well."""
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
            # Whatever does not go to this machine goes nowhere: a run shows what Turnwire alone can serve.
            "HTTPS_PROXY": "http://127.0.0.1:9",
            "HTTP_PROXY": "http://127.0.0.1:9",
        }

    async def run(
        self,
        *command: str | Path,
        text: str | None = None,
        env: Mapping[str, str] | None = None,
        timeout_s: float = RUN_S,
    ) -> Ran:
        """Runs a program in the project; `text` is its input. One that takes too long is killed, with its children."""
        process = await asyncio.create_subprocess_exec(
            *map(str, command),
            cwd=self.project,
            env={**self.environment, **(env or {})},
            stdin=asyncio.subprocess.DEVNULL if text is None else asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            start_new_session=True,
        )
        try:
            out, err = await asyncio.wait_for(process.communicate(None if text is None else text.encode()), timeout_s)
        finally:
            if process.returncode is None:
                os.killpg(process.pid, signal.SIGKILL)
                await process.wait()
        return Ran(process.returncode or 0, out.decode(errors="replace"), err.decode(errors="replace"))

    async def connect(self, client: str, url: str, *options: str) -> None:
        """`turnwire connect CLIENT --write`: what the product says a client needs."""
        command = [sys.executable, "-m", "services.cli.main", "connect", client, "--url", url, "--write", *options]
        (await self.run(*command, env={"PYTHONPATH": str(Path(__file__).parents[2])})).ok()

    def file(self, name: str) -> str:
        """A file of the project."""
        return (self.project / name).read_text()

    def write(self, name: str, text: str) -> None:
        (self.project / name).write_text(text)
