"""Agent clients that run to their end for each request of the user, on a machine of their own, set
up by one `turnwire connect` command."""

import json
import re
import shlex
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

from tests.clients.machine import Machine, Result
from tests.clients.packages import (
    AIDER,
    CLINE,
    COPILOT,
    HERMES,
    KILO,
    KIMI_CODE,
    NODE,
    OPENCLAW,
    OPENCODE,
    PI,
    QWEN_CODE,
)
from tests.clients.pieces import Piece, unchanged


class Agent(ABC):
    """A client: `await connect(url)` first, then `ask`."""

    client: ClassVar[str]
    """Its name for `turnwire connect`."""
    normalized: Callable[[Piece], Piece] | None = None
    """The changes that it makes to pieces that it sends back; None: not examined."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.shown: list[tuple[int, int]] = []
        """The tokens of prompts and outputs that it shows."""

    async def connect(self, url: str, api: str | None = None) -> None:
        await self.machine.connect(self.client, url, *(["--api", api] if api else []))

    @abstractmethod
    async def ask(self, prompt: str, *, resume: bool = False) -> str:
        """Runs the client to its end; returns its last text. Raises AssertionError where it
        complains."""

    async def _run(self, *command: str | Path, **env: str) -> Result:
        return (await self.machine.run(*command, env=env)).ok()


class Opencode(Agent):
    """Shows the tokens of each request."""

    client = "opencode"

    def __init__(self, machine: Machine) -> None:
        super().__init__(machine)
        self.binary = OPENCODE.find()
        for switch in ("AUTOUPDATE", "MODELS_FETCH", "SHARE"):
            machine.environment[f"OPENCODE_DISABLE_{switch}"] = "1"
        self._settings = machine.home / ".config" / "opencode" / "opencode.json"

    async def connect(self, url: str, api: str | None = None) -> None:
        """Over Responses it requests no summaries, sends reasoning back as its seal only, and
        re-encodes arguments."""
        await super().connect(url, api)
        self.normalized = _sealed_and_encoded if api == "responses" else unchanged

    def limit(self, model: str, context: int, output: int) -> None:
        """Configures a smaller context window of the model."""
        limit = {"context": context, "output": output}
        self._change(lambda provider: provider["models"][model].update(limit=limit))

    def send_header(self, name: str, value: str) -> None:
        """Adds a header to its requests."""
        self._change(lambda provider: provider["options"].update(headers={name: value}))

    def _change(self, change: Callable[[dict[str, Any]], None]) -> None:
        settings = json.loads(self._settings.read_text())
        change(settings["provider"]["turnwire"])
        self._settings.write_text(json.dumps(settings))

    async def ask(self, prompt: str, *, resume: bool = False) -> str:
        options = ["--format", "json", *(["--continue"] if resume else [])]
        ran = await self._run(self.binary, "run", *options, prompt)
        assert not ran.err.strip(), ran.err
        assert not [line for line in ran.lines if line["type"] == "error"], ran.out
        for line in ran.lines:
            if line["type"] == "step_finish":
                tokens = line["part"]["tokens"]
                cached = tokens["cache"]["read"] + tokens["cache"]["write"]
                self.shown.append(
                    (tokens["input"] + cached, tokens["output"] + tokens["reasoning"])
                )
        return str([line["part"]["text"] for line in ran.lines if line["type"] == "text"][-1])


def _sealed_and_encoded(piece: Piece) -> Piece:
    if piece[0] == "reasoning":
        return ("reasoning", "", piece[2])
    if piece[0] == "call":
        return (*piece[:3], json.dumps(json.loads(piece[3]), sort_keys=True))
    return piece


class OpenClaw(Agent):
    """One session, embedded. Shows the tokens of the requests for each prompt, together."""

    client = "openclaw"

    def __init__(self, machine: Machine) -> None:
        super().__init__(machine)
        self.node, self.program = NODE.find(), OPENCLAW.find()
        self._settings = machine.home / ".openclaw" / "openclaw.json"
        machine.environment |= {
            "DO_NOT_TRACK": "1",
            "PATH": f"{self.node.parent}:{machine.environment['PATH']}",
        }

    async def connect(self, url: str, api: str | None = None) -> None:
        self._settings.parent.mkdir(exist_ok=True)
        workspace = {"defaults": {"workspace": str(self.machine.project)}}
        settings = {"update": {"checkOnStart": False}, "agents": workspace}
        self._settings.write_text(json.dumps(settings))
        await super().connect(url, api)
        self.normalized = _with_own_ids_and_seals if api == "responses" else _with_own_ids

    async def ask(self, prompt: str, *, resume: bool = False) -> str:
        options = ["--local", "--session-id", "s1", "--json", "--thinking", "medium"]
        ran = await self._run(self.node, self.program, "agent", *options, "-m", prompt)
        report: dict[str, Any] = json.loads(ran.out)
        meta = report["meta"]
        trace = meta["executionTrace"]
        assert [one["result"] for one in trace["attempts"]] == ["success"], trace
        assert not trace["fallbackUsed"]
        assert meta.get("toolSummary", {}).get("failures", 0) == 0, meta
        used = meta["agentMeta"]["usage"]
        cached = used["cacheRead"] + used["cacheWrite"]
        self.shown.append((used["input"] + cached, used["output"]))
        return str(report["payloads"][0]["text"])


def _with_own_ids(piece: Piece) -> Piece:
    """The client re-encodes arguments. Over Responses it gives calls its own ids, which contain
    ours."""
    if piece[0] != "call":
        return piece
    _, call_id, name, arguments = piece
    found = re.search(r"toolu_\w{24}", call_id)
    encoded = json.dumps(json.loads(arguments), sort_keys=True)
    return ("call", found[0] if found else call_id, name, encoded)


def _with_own_ids_and_seals(piece: Piece) -> Piece:
    """Over Responses reasoning of earlier requests comes back as its seal only."""
    return ("reasoning", "", piece[2]) if piece[0] == "reasoning" else _with_own_ids(piece)


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
        options = ["-s", "--allow-all-tools", *(["--continue"] if resume else [])]
        command = shlex.join([str(self.program), *options, "-p", prompt])
        ran = await self._run("sh", "-c", f". ~/.copilot/turnwire.env && exec {command}")
        return ran.out.strip()


class KimiCode(Agent):
    """In print mode, with all tools allowed."""

    client = "kimi"

    def __init__(self, machine: Machine) -> None:
        super().__init__(machine)
        self.node, self.program = NODE.find(), KIMI_CODE.find()
        machine.environment |= {"KIMI_CODE_NO_AUTO_UPDATE": "1"}

    async def ask(self, prompt: str, *, resume: bool = False) -> str:
        options = ["-c"] if resume else ["-m", "turnwire/acme/coder"]
        options = ["--output-format", "stream-json", *options]
        ran = await self._run(self.node, self.program, *options, "-p", prompt)
        answers = [line for line in ran.lines if line.get("role") == "assistant"]
        return str([line["content"] for line in answers if "content" in line][-1])


class Hermes(Agent):
    """With the profile that `connect` has written, and all commands allowed."""

    client = "hermes"

    def __init__(self, machine: Machine) -> None:
        super().__init__(machine)
        self.packages = HERMES.find()

    async def ask(self, prompt: str, *, resume: bool = False) -> str:
        program = [sys.executable, "-m", "hermes_cli.main", "-p", "turnwire", "chat"]
        options = ["-Q", "--yolo", *(["--continue"] if resume else []), "-q", prompt]
        env = {"PYTHONPATH": str(self.packages), "HERMES_DISABLE_TELEMETRY": "1"}
        ran = await self._run(*program, *options, **env)
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

    async def ask(self, prompt: str, *, resume: bool = False) -> str:
        config = str(self.machine.home / ".aider.turnwire.conf.yml")
        options = ["--no-git", "--yes-always", "--no-check-update", "--analytics-disable"]
        options += ["--edit-format", "whole", "--config", config, "--no-fancy-input", "--no-pretty"]
        options += ["--restore-chat-history"] if resume else []
        files = sorted(path.name for path in self.machine.project.glob("*.txt"))
        command = [sys.executable, "-m", "aider", *options, "--message", prompt, *files]
        env = {"PYTHONPATH": str(self.packages), "LITELLM_LOCAL_MODEL_COST_MAP": "True"}
        return (await self._run(*command, **env)).out
