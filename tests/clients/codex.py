"""Codex on a machine of its own."""

import sys
from pathlib import Path
from typing import Any

from tests.clients.machine import Machine, Result
from tests.clients.packages import CODEX
from tests.clients.tasks import EDIT, FOLLOW, PARALLEL

HARMLESS = ("Reading additional input from stdin",)


class CodexCli:
    """Configured by `connect` or `built_in`."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.binary = CODEX.find()
        self.folder = machine.home / ".codex"
        self.folder.mkdir(exist_ok=True)
        machine.environment |= {"CODEX_API_KEY": "any", "RUST_LOG": "error"}

    async def connect(self, url: str) -> "CodexCli":
        """A provider of its own, over HTTP, as `turnwire connect` configures it."""
        await self.machine.connect("codex", url, "--default")
        return self

    async def built_in(self, url: str, model: str) -> "CodexCli":
        """OpenAI's own provider, which tries a WebSocket first and compacts remotely."""
        catalogue = self.folder / "models.json"
        program = [sys.executable, "-m", "services.cli.main", "catalog", "codex"]
        command = [*program, "--url", url, "-o", str(catalogue)]
        env = {"PYTHONPATH": str(Path(__file__).parents[2])}
        (await self.machine.run(*command, env=env)).ok()
        (self.folder / "config.toml").write_text(
            f'model = "{model}"\nopenai_base_url = "{url}/v1"\nmodel_catalog_json = "{catalogue}"\n'
            "[analytics]\nenabled = false\n"
        )
        return self

    async def ask(self, prompt: str, *options: str, resume: bool = False) -> Result:
        """Runs `codex exec`. Raises AssertionError where the client complained."""
        flags = ["--json", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox"]
        rest = [*options, *(["resume", "--last"] if resume else []), prompt]
        return checked((await self.machine.run(self.binary, "exec", *flags, *rest)).ok())


async def work(codex: CodexCli) -> list[dict[str, int]]:
    """An edit, calls in parallel, a third turn; returns the usage that each reported."""
    machine = codex.machine
    machine.write("notes.txt", "alpha one\n")
    first = await codex.ask(EDIT)
    assert machine.file("notes.txt") == "beta one\n"
    assert items(first)[-1]["text"] == "EDITED"
    second = await codex.ask(PARALLEL, resume=True)
    assert [machine.file(f"p{n}.txt") for n in (1, 2, 3)] == ["1\n", "2\n", "3\n"]
    third = await codex.ask(FOLLOW, resume=True)
    assert machine.file("both.txt") == "1\nbeta one\n"
    assert items(third)[-1]["text"] == "JOINED"
    changes = [item for item in items(first) if item["type"] == "file_change"]
    kinds = [(item["status"], item["changes"][0]["kind"]) for item in changes]
    assert kinds == [("completed", "update")]
    return [ran.lines[-1]["usage"] for ran in (first, second, third)]


def checked(ran: Result) -> Result:
    """Raises AssertionError on a fallback profile, a retry, a failed turn or output on stderr."""
    complaints = [
        line for line in ran.err.splitlines() if line.strip() and not line.startswith(HARMLESS)
    ]
    assert not complaints, complaints
    kinds = [line["type"] for line in ran.lines]
    assert "error" not in kinds, ran.out
    assert kinds[-1] == "turn.completed", ran.out
    assert not [item for item in items(ran) if item["type"] == "error"], ran.out
    return ran


def items(ran: Result) -> list[dict[str, Any]]:
    """The completed items, in order."""
    return [line["item"] for line in ran.lines if line["type"] == "item.completed"]
