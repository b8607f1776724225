"""OpenClaw on a machine of its own."""

import json
import re
from pathlib import Path
from typing import Any

from tests.clients.machine import Machine
from tests.clients.packages import NODE, OPENCLAW
from tests.clients.pieces import Piece


class OpenClaw:
    """`await OpenClaw(machine).connect(url, api)` first."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.node, self.program = NODE.find(), OPENCLAW.find()
        self.settings = machine.home / ".openclaw" / "openclaw.json"
        machine.environment |= {
            "DO_NOT_TRACK": "1",
            "PATH": f"{self.node.parent}:{machine.environment['PATH']}",
        }

    async def connect(self, url: str, api: str) -> "OpenClaw":
        self.settings.parent.mkdir(exist_ok=True)
        workspace = {"defaults": {"workspace": str(self.machine.project)}}
        self.settings.write_text(
            json.dumps({"update": {"checkOnStart": False}, "agents": workspace})
        )
        await self.machine.connect("openclaw", url, "--api", api)
        return self

    def limit(self, context: int) -> None:
        """Configures a smaller context window of the model."""
        settings = json.loads(self.settings.read_text())
        for model in settings["models"]["providers"]["turnwire"]["models"]:
            model["contextWindow"] = context
        self.settings.write_text(json.dumps(settings))

    async def ask(self, prompt: str) -> dict[str, Any]:
        """The next turn of the one session, embedded; returns its report. Raises AssertionError if
        it failed."""
        command: list[str | Path] = [
            self.node,
            self.program,
            "agent",
            "--local",
            "--session-id",
            "s1",
            "--json",
            "--thinking",
            "medium",
        ]
        ran = (await self.machine.run(*command, "-m", prompt)).ok()
        report: dict[str, Any] = json.loads(ran.out)
        trace = report["meta"]["executionTrace"]
        assert [one["result"] for one in trace["attempts"]] == ["success"], trace
        assert not trace["fallbackUsed"]
        assert report["meta"].get("toolSummary", {}).get("failures", 0) == 0, report["meta"]
        return report


def normalized(piece: Piece) -> Piece:
    """The client re-encodes arguments. Over Responses it gives calls its own ids, which contain
    ours."""
    if piece[0] != "call":
        return piece
    _, call_id, name, arguments = piece
    found = re.search(r"toolu_\w{24}", call_id)
    return (
        "call",
        found[0] if found else call_id,
        name,
        json.dumps(json.loads(arguments), sort_keys=True),
    )


def normalized_in_responses(piece: Piece) -> Piece:
    """Over Responses reasoning of earlier requests comes back as its seal only."""
    return ("reasoning", "", piece[2]) if piece[0] == "reasoning" else normalized(piece)
