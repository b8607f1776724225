"""Agent clients that run to their end for each request of the user, on a machine of their own, set
up by one `turnwire connect` command."""

import json
import shlex
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ClassVar

from tests.clients import packages
from tests.clients.machine import Machine, Result
from tests.clients.packages import NODE, Package, PythonPackage


class Agent(ABC):
    """A client: `await connect(url)` first, then `ask`."""

    client: ClassVar[str]
    """Its name for `turnwire connect`."""
    package: ClassVar[Package | PythonPackage]
    on_node: ClassVar[bool] = False
    """Whether its program is a script for our Node."""
    environment: ClassVar[Mapping[str, str]] = {}

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.program = self.package.find()
        self.command = [NODE.find(), self.program] if self.on_node else [self.program]
        if isinstance(self.package, PythonPackage):
            self.command = [Path(sys.executable), Path("-m")]
            machine.environment["PYTHONPATH"] = str(self.program)
        machine.environment |= self.environment

    async def connect(self, url: str, api: str | None = None) -> None:
        await self.machine.connect(self.client, url, *(["--api", api] if api else []))

    @abstractmethod
    async def ask(self, prompt: str, *, resume: bool = False) -> str:
        """Runs the client to its end; returns its last text. Raises AssertionError where it
        complains."""

    async def run(self, *arguments: str) -> Result:
        return (await self.machine.run(*self.command, *arguments)).ok()


class Opencode(Agent):
    """With its titles and summaries."""

    client, package = "opencode", packages.OPENCODE
    environment = dict.fromkeys(
        [f"OPENCODE_DISABLE_{switch}" for switch in ("AUTOUPDATE", "MODELS_FETCH", "SHARE")], "1"
    )

    def change_settings(self, change: Callable[[dict[str, Any]], None]) -> None:
        """Changes the settings of the provider."""
        settings = json.loads(self._settings.read_text())
        change(settings["provider"]["turnwire"])
        self._settings.write_text(json.dumps(settings))

    def add_mcp_server(self, name: str, *command: str) -> None:
        """Adds a server that opencode starts."""
        settings = json.loads(self._settings.read_text())
        settings["mcp"] = {name: {"type": "local", "command": [*command], "enabled": True}}
        self._settings.write_text(json.dumps(settings))

    @property
    def _settings(self) -> Path:
        return self.machine.home / ".config" / "opencode" / "opencode.json"

    async def ask(self, prompt: str, *, resume: bool = False) -> str:
        options = ["--format", "json", *(["--continue"] if resume else [])]
        ran = await self.run("run", *options, prompt)
        assert not ran.err.strip(), ran.err
        assert not [line for line in ran.lines if line["type"] == "error"], ran.out
        return str([line["part"]["text"] for line in ran.lines if line["type"] == "text"][-1])


class OpenClaw(Agent):
    """One session, embedded."""

    client, package, on_node = "openclaw", packages.OPENCLAW, True
    environment: ClassVar = {"DO_NOT_TRACK": "1"}

    async def connect(self, url: str, api: str | None = None) -> None:
        path = f"{self.command[0].parent}:{self.machine.environment['PATH']}"
        self.machine.environment["PATH"] = path
        workspace = {"defaults": {"workspace": str(self.machine.project)}}
        settings = {"update": {"checkOnStart": False}, "agents": workspace}
        (self.machine.home / ".openclaw").mkdir(exist_ok=True)
        file = self.machine.home / ".openclaw" / "openclaw.json"
        file.write_text(json.dumps(settings))
        await super().connect(url, api)

    async def ask(self, prompt: str, *, resume: bool = False) -> str:
        options = ["--local", "--session-id", "s1", "--json", "--thinking", "medium"]
        ran = await self.run("agent", *options, "-m", prompt)
        report: dict[str, Any] = json.loads(ran.out)
        meta = report["meta"]
        trace = meta["executionTrace"]
        assert [one["result"] for one in trace["attempts"]] == ["success"], trace
        assert not trace["fallbackUsed"]
        assert meta.get("toolSummary", {}).get("failures", 0) == 0, meta
        return str(report["payloads"][0]["text"])


class Pi(Agent):
    """In print mode."""

    client, package, on_node = "pi", packages.PI, True
    environment: ClassVar = {"PI_OFFLINE": "1", "PI_TELEMETRY": "0"}

    async def ask(self, prompt: str, *, resume: bool = False) -> str:
        options = ["--provider", "turnwire", "--model", "acme/coder", *(["-c"] if resume else [])]
        ran = await self.run(*options, "-p", prompt)
        assert not ran.err.strip(), ran.err
        return ran.out.strip()


class Copilot(Agent):
    """With its own variables from the file that `connect` has written, without a login."""

    client, package = "copilot", packages.COPILOT
    environment: ClassVar = {"COPILOT_OFFLINE": "true"}

    async def ask(self, prompt: str, *, resume: bool = False) -> str:
        options = ["-s", "--allow-all-tools", *(["--continue"] if resume else [])]
        command = shlex.join([str(self.program), *options, "-p", prompt])
        script = f". ~/.copilot/turnwire.env && exec {command}"
        return (await self.machine.run("sh", "-c", script)).ok().out.strip()


class KimiCode(Agent):
    """In print mode, with all tools allowed."""

    client, package, on_node = "kimi", packages.KIMI_CODE, True
    environment: ClassVar = {"KIMI_CODE_NO_AUTO_UPDATE": "1"}

    async def ask(self, prompt: str, *, resume: bool = False) -> str:
        options = ["-c"] if resume else ["-m", "turnwire/acme/coder"]
        ran = await self.run("--output-format", "stream-json", *options, "-p", prompt)
        answers = [line for line in ran.lines if line.get("role") == "assistant"]
        return str([line["content"] for line in answers if "content" in line][-1])


class Kilo(Agent):
    """With all tools allowed."""

    client, package = "kilo", packages.KILO

    async def ask(self, prompt: str, *, resume: bool = False) -> str:
        options = ["--auto", "-m", "turnwire/acme/coder", *(["-c"] if resume else [])]
        return (await self.run("run", *options, prompt)).out.strip()


class QwenCode(Agent):
    """Headless, with all tools allowed."""

    client, package, on_node = "qwen", packages.QWEN_CODE, True

    async def ask(self, prompt: str, *, resume: bool = False) -> str:
        options = ["-y", "-o", "stream-json", *(["-c"] if resume else [])]
        ran = await self.run("--auth-type", "openai", "-m", "acme/coder", *options, prompt)
        last = ran.lines[-1]
        assert (last["type"], last["is_error"]) == ("result", False), last
        return str(last["result"])


class Cline(Agent):
    """Its CLI, with all tools approved. It resumes a conversation on a terminal only."""

    client, package = "cline", packages.CLINE
    environment: ClassVar = {"DO_NOT_TRACK": "1"}

    async def ask(self, prompt: str, *, resume: bool = False) -> str:
        try:
            ran = await self.run("--json", "-P", "openai-compatible", "-m", "acme/coder", prompt)
        finally:
            await self.run("hub", "stop")  # a daemon that outlives it
        last = ran.lines[-1]
        assert (last["type"], last["finishReason"]) == ("run_result", "completed"), last
        return str(last["text"])


class Hermes(Agent):
    """With the profile that `connect` has written, and all commands allowed."""

    client, package = "hermes", packages.HERMES
    environment: ClassVar = {"HERMES_DISABLE_TELEMETRY": "1"}

    async def ask(self, prompt: str, *, resume: bool = False) -> str:
        options = ["-Q", "--yolo", *(["--continue"] if resume else []), "-q", prompt]
        return (await self.run("hermes_cli.main", "-p", "turnwire", "chat", *options)).out.strip()


class Aider(Agent):
    """With the project's files in the chat and every question answered with yes."""

    client, package = "aider", packages.AIDER
    environment: ClassVar = {"LITELLM_LOCAL_MODEL_COST_MAP": "True"}

    async def ask(self, prompt: str, *, resume: bool = False) -> str:
        config = str(self.machine.home / ".aider.turnwire.conf.yml")
        options = ["--no-git", "--yes-always", "--no-check-update", "--analytics-disable"]
        options += ["--edit-format", "whole", "--config", config, "--no-fancy-input", "--no-pretty"]
        options += ["--restore-chat-history"] if resume else []
        files = sorted(path.name for path in self.machine.project.glob("*.txt"))
        return (await self.run("aider", *options, "--message", prompt, *files)).out
