"""Claude Code on a machine of its own."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from tests.clients.machine import Machine, Result
from tests.clients.packages import CLAUDE_CODE
from tests.clients.tasks import EDIT, PARALLEL

QUIET = {
    "DISABLE_TELEMETRY": "1",
    "DISABLE_AUTOUPDATER": "1",
    "DISABLE_ERROR_REPORTING": "1",
    "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
}
NOTICES = (
    # For every model that is not Anthropic's; it has no other effect.
    "[claude-code:unrecognized_model]",
    # Sessions that start at once in one home replace ~/.claude.json under each other (2.1.328); one
    # that finds none goes on.
    "Claude configuration file not found at:",
    "A backup file exists at:",
    "You can manually restore it by running:",
)
"""Lines on stderr that are not complaints about the server."""
ANSWER_S = 120


class ClaudeCode:
    """`await ClaudeCode(machine).connect(url)` first."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.binary = CLAUDE_CODE.find()
        machine.environment |= QUIET

    async def connect(self, url: str) -> "ClaudeCode":
        await self.machine.connect("claude", url)
        return self

    async def ask(self, prompt: str, *options: str) -> Result:
        """`claude -p` to its end. Raises AssertionError where the client complained."""
        ran = (await self.machine.run(*self.command(*options, "-p", prompt))).ok()
        return checked(ran)

    def command(self, *options: str) -> list[str]:
        """The program with its output format and tools, without a prompt."""
        tools = ["--allowedTools", "Bash,Read,Write,Edit"]
        return [str(self.binary), *options, "--output-format", "stream-json", "--verbose", *tools]

    @asynccontextmanager
    async def dialog(self) -> AsyncIterator["Dialog"]:
        """One process that reads one prompt after the other."""
        process = await asyncio.create_subprocess_exec(
            *self.command("-p", "--input-format", "stream-json"),
            cwd=self.machine.project,
            env=self.machine.environment,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            limit=1 << 26,
        )
        dialog = Dialog(process)
        try:
            yield dialog
            assert process.stdin is not None
            process.stdin.close()
            _, err = await asyncio.wait_for(process.communicate(), ANSWER_S)
            out = "\n".join(map(json.dumps, dialog.lines))
            checked(Result(process.returncode or 0, out, err.decode()).ok())
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()


async def work(claude: ClaudeCode) -> list[str]:
    """An edit and calls in parallel, in one process. Returns the kinds of the blocks that the
    client reports."""
    machine = claude.machine
    machine.write("notes.txt", "alpha one\n")
    async with claude.dialog() as dialog:
        result = await dialog.ask(EDIT)
        assert (result["result"], machine.file("notes.txt")) == ("EDITED", "beta one\n")
        result = await dialog.ask(PARALLEL)
        assert result["result"] == "DONE"
    assert [machine.file(f"p{n}.txt") for n in (1, 2, 3)] == ["1\n", "2\n", "3\n"]
    return [kind for kind, _ in blocks(dialog.lines)]


class Dialog:
    """A running process that reads prompts."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.lines: list[dict[str, Any]] = []

    async def ask(self, prompt: str) -> dict[str, Any]:
        """Returns the line with the result."""
        stdin, stdout = self.process.stdin, self.process.stdout
        assert stdin is not None
        assert stdout is not None
        message = {"role": "user", "content": [{"type": "text", "text": prompt}]}
        stdin.write(json.dumps({"type": "user", "message": message}).encode() + b"\n")
        async with asyncio.timeout(ANSWER_S):
            while line := await stdout.readline():
                self.lines.append(json.loads(line))
                if self.lines[-1]["type"] == "result":
                    return self.lines[-1]
        raise AssertionError(f"the process has ended: {self.lines[-1:]}")


def checked(ran: Result) -> Result:
    """Raises AssertionError where the client complains on stderr or in its report, or retries."""
    complaints = [
        line for line in ran.err.splitlines() if line.strip() and not line.startswith(NOTICES)
    ]
    assert not complaints, complaints
    for line in ran.lines:
        assert not (line["type"] == "system" and "retry" in str(line.get("subtype"))), line
        assert not line.get("is_error"), line
    return ran


def blocks(lines: list[dict[str, Any]]) -> list[tuple[str, str]]:
    """(type, text or command) of the assistant's output, as the client reports it."""
    found = []
    for line in lines:
        for block in line["message"]["content"] if line["type"] == "assistant" else ():
            text = block.get("thinking") or block.get("text") or json.dumps(block.get("input"))
            found.append((block["type"], text.strip()))
    return found
