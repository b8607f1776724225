"""opencode on a machine of its own."""

import json
from pathlib import Path
from typing import Any

from tests.clients.machine import Machine, Result
from tests.clients.packages import OPENCODE
from tests.clients.pieces import Piece

QUIET = {
    "OPENCODE_DISABLE_AUTOUPDATE": "1",
    "OPENCODE_DISABLE_MODELS_FETCH": "1",
    "OPENCODE_DISABLE_SHARE": "1",
}


class Opencode:
    """`await Opencode(machine).connect(url, api)` first."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.binary = OPENCODE.find()
        machine.environment |= QUIET
        self.settings = machine.home / ".config" / "opencode" / "opencode.json"

    async def connect(self, url: str, api: str) -> "Opencode":
        await self.machine.connect("opencode", url, "--api", api)
        return self

    def limit(self, model: str, context: int, output: int) -> None:
        """Configures a smaller context window of the model."""
        settings = json.loads(self.settings.read_text())
        settings["provider"]["turnwire"]["models"][model]["limit"] = {
            "context": context,
            "output": output,
        }
        self.settings.write_text(json.dumps(settings))

    def send_header(self, name: str, value: str) -> None:
        """Adds a header to its requests."""
        settings = json.loads(self.settings.read_text())
        settings["provider"]["turnwire"]["options"]["headers"] = {name: value}
        self.settings.write_text(json.dumps(settings))

    async def ask(self, prompt: str, *, resume: bool = False) -> Result:
        """`opencode run` to its end. Raises AssertionError where the client complained."""
        command: list[str | Path] = [
            self.binary,
            "run",
            "--format",
            "json",
            *(["--continue"] if resume else []),
            prompt,
        ]
        ran = (await self.machine.run(*command)).ok()
        assert not ran.err.strip(), ran.err
        assert not [line for line in ran.lines if line["type"] == "error"], ran.out
        return ran


def normalized_in_responses(piece: Piece) -> Piece:
    """Over Responses the client requests no summaries, sends reasoning back as its seal only, and
    re-encodes arguments."""
    if piece[0] == "reasoning":
        return ("reasoning", "", piece[2])
    if piece[0] == "call":
        return (*piece[:3], json.dumps(json.loads(piece[3]), sort_keys=True))
    return piece


def steps(ran: Result) -> list[dict[str, Any]]:
    """The token counts of each step, as the client shows them."""
    return [line["part"]["tokens"] for line in ran.lines if line["type"] == "step_finish"]


def text(ran: Result) -> str:
    """The last text."""
    return str([line["part"]["text"] for line in ran.lines if line["type"] == "text"][-1])
