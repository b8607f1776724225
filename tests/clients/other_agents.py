"""qwen-code, pi, Cline and aider on a machine of their own, set up by one `turnwire connect` command."""

import sys
from abc import ABC, abstractmethod
from pathlib import Path

from tests.clients.machine import Machine, Result
from tests.clients.packages import AIDER, CLINE, NODE, PI, QWEN_CODE


class Agent(ABC):
    """A client: `await connect(url)` first, then `ask`."""

    client: str
    """Its name for `turnwire connect`."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine

    async def connect(self, url: str, *options: str) -> None:
        await self.machine.connect(self.client, url, *options)

    @abstractmethod
    async def ask(self, prompt: str, *, resume: bool = False) -> str:
        """Runs the client to its end; returns its last text."""

    async def _run(self, *command: str | Path, **env: str) -> Result:
        return (await self.machine.run(*command, env=env)).ok()


class QwenCode(Agent):
    """Headless, with all tools allowed."""

    client = "qwen"

    def __init__(self, machine: Machine) -> None:
        super().__init__(machine)
        self.node, self.program = NODE.find(), QWEN_CODE.find()

    async def ask(self, prompt: str, *, resume: bool = False) -> str:
        options = ["-y", "-o", "stream-json", *(["-c"] if resume else [])]
        ran = await self._run(self.node, self.program, "--auth-type", "openai", "-m", "acme/coder", *options, prompt)
        last = ran.lines[-1]
        assert (last["type"], last["is_error"]) == ("result", False), last
        return str(last["result"])


class Pi(Agent):
    """In print mode."""

    client = "pi"

    def __init__(self, machine: Machine) -> None:
        super().__init__(machine)
        self.node, self.program = NODE.find(), PI.find()
        machine.environment |= {"PI_OFFLINE": "1", "PI_TELEMETRY": "0"}

    async def ask(self, prompt: str, *, resume: bool = False) -> str:
        options = ["--provider", "turnwire", "--model", "acme/coder", *(["-c"] if resume else [])]
        ran = await self._run(self.node, self.program, *options, "-p", prompt)
        assert not ran.err.strip(), ran.err
        return ran.out.strip()


class Cline(Agent):
    """Its CLI, with all tools approved. It resumes a conversation on a terminal only."""

    client = "cline"

    def __init__(self, machine: Machine) -> None:
        super().__init__(machine)
        self.program = CLINE.find()
        machine.environment |= {"DO_NOT_TRACK": "1"}

    async def ask(self, prompt: str, *, resume: bool = False) -> str:
        try:
            ran = await self._run(self.program, "--json", "-P", "openai-compatible", "-m", "acme/coder", prompt)
        finally:
            await self._run(self.program, "hub", "stop")  # a daemon that outlives it
        last = ran.lines[-1]
        assert (last["type"], last["finishReason"]) == ("run_result", "completed"), last
        return str(last["text"])


class Aider(Agent):
    """With the project's files in the chat and every question answered with yes."""

    client = "aider"

    def __init__(self, machine: Machine) -> None:
        super().__init__(machine)
        self.packages = AIDER.find()

    async def ask(self, prompt: str, *, resume: bool = False, form: str = "whole") -> str:
        options = ["--no-git", "--yes-always", "--no-check-update", "--analytics-disable", "--edit-format", form]
        options += ["--config", str(self.machine.home / ".aider.turnwire.conf.yml"), "--no-fancy-input", "--no-pretty"]
        options += ["--restore-chat-history"] if resume else []
        files = sorted(path.name for path in self.machine.project.glob("*.txt"))
        command = [sys.executable, "-m", "aider", *options, "--message", prompt, *files]
        ran = await self._run(*command, PYTHONPATH=str(self.packages), LITELLM_LOCAL_MODEL_COST_MAP="True")
        return ran.out
