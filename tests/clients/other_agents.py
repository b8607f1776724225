"""Copilot CLI, kimi-code, Hermes, Kilo, qwen-code, pi, Cline and aider on a machine of their own,
set up by one `turnwire connect` command."""

import shlex
import sys
from abc import ABC, abstractmethod
from pathlib import Path

from tests.clients.machine import Machine, Result
from tests.clients.packages import (
    AIDER,
    CLINE,
    COPILOT,
    HERMES,
    KILO,
    KIMI_CODE,
    NODE,
    PI,
    QWEN_CODE,
)


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
        ran = await self._run(
            self.node, self.program, "--auth-type", "openai", "-m", "acme/coder", *options, prompt
        )
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
            ran = await self._run(
                self.program, "--json", "-P", "openai-compatible", "-m", "acme/coder", prompt
            )
        finally:
            await self._run(self.program, "hub", "stop")  # a daemon that outlives it
        last = ran.lines[-1]
        assert (last["type"], last["finishReason"]) == ("run_result", "completed"), last
        return str(last["text"])


class Copilot(Agent):
    """With its own variables from the file that `connect` has written, without a login."""

    client = "copilot"

    def __init__(self, machine: Machine) -> None:
        super().__init__(machine)
        self.program = COPILOT.find()
        machine.environment |= {"COPILOT_OFFLINE": "true"}

    async def ask(self, prompt: str, *, resume: bool = False) -> str:
        command = [
            str(self.program),
            "-s",
            "--allow-all-tools",
            *(["--continue"] if resume else []),
            "-p",
            prompt,
        ]
        ran = await self._run(
            "sh", "-c", f". ~/.copilot/turnwire.env && exec {shlex.join(command)}"
        )
        return ran.out.strip()


class KimiCode(Agent):
    """In print mode, with all tools allowed."""

    client = "kimi"

    def __init__(self, machine: Machine) -> None:
        super().__init__(machine)
        self.node, self.program = NODE.find(), KIMI_CODE.find()
        machine.environment |= {"KIMI_CODE_NO_AUTO_UPDATE": "1"}

    async def ask(self, prompt: str, *, resume: bool = False) -> str:
        options = [
            "--output-format",
            "stream-json",
            *(["-c"] if resume else ["-m", "turnwire/acme/coder"]),
        ]
        ran = await self._run(self.node, self.program, *options, "-p", prompt)
        return str(
            [
                line["content"]
                for line in ran.lines
                if line.get("role") == "assistant" and "content" in line
            ][-1]
        )


class Hermes(Agent):
    """With the profile that `connect` has written, and all commands allowed."""

    client = "hermes"

    def __init__(self, machine: Machine) -> None:
        super().__init__(machine)
        self.packages = HERMES.find()

    async def ask(self, prompt: str, *, resume: bool = False) -> str:
        options = [
            "-p",
            "turnwire",
            "chat",
            "-Q",
            "--yolo",
            *(["--continue"] if resume else []),
            "-q",
            prompt,
        ]
        ran = await self._run(
            sys.executable,
            "-m",
            "hermes_cli.main",
            *options,
            PYTHONPATH=f"{self.packages}",
            HERMES_DISABLE_TELEMETRY="1",
        )
        return ran.out.strip()


class Kilo(Agent):
    """With all tools allowed."""

    client = "kilo"

    def __init__(self, machine: Machine) -> None:
        super().__init__(machine)
        self.program = KILO.find()

    async def ask(self, prompt: str, *, resume: bool = False) -> str:
        options = ["--auto", "-m", "turnwire/acme/coder", *(["-c"] if resume else [])]
        return (await self._run(self.program, "run", *options, prompt)).out.strip()


class Aider(Agent):
    """With the project's files in the chat and every question answered with yes."""

    client = "aider"

    def __init__(self, machine: Machine) -> None:
        super().__init__(machine)
        self.packages = AIDER.find()

    async def ask(self, prompt: str, *, resume: bool = False, form: str = "whole") -> str:
        options = [
            "--no-git",
            "--yes-always",
            "--no-check-update",
            "--analytics-disable",
            "--edit-format",
            form,
        ]
        options += [
            "--config",
            str(self.machine.home / ".aider.turnwire.conf.yml"),
            "--no-fancy-input",
            "--no-pretty",
        ]
        options += ["--restore-chat-history"] if resume else []
        files = sorted(path.name for path in self.machine.project.glob("*.txt"))
        command = [sys.executable, "-m", "aider", *options, "--message", prompt, *files]
        ran = await self._run(
            *command, PYTHONPATH=str(self.packages), LITELLM_LOCAL_MODEL_COST_MAP="True"
        )
        return ran.out
