"""Codex with the profile that `turnwire connect --write` adds to a user's settings."""

from pathlib import Path

import pytest

from tests.clients.machine import Machine
from tests.clients.packages import CODEX, INSTALL_S
from tests.kit.messages_client import say
from tests.kit.stack import MODEL, Stack

RUN_S = 120
SETTINGS = 'model = "gpt-6-sol"\n'
PATCH = '*** Begin Patch\n*** Add File: made.txt\n+by a "patch" é\n*** End Patch'
CALL = f"<tool_call>\n<function=apply_patch>\n<parameter=input>\n{PATCH}\n</parameter>\n</function>\n</tool_call>"
OPTIONS = ("--json", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox")


@pytest.mark.clients
@pytest.mark.timeout(INSTALL_S + RUN_S)
@pytest.mark.parametrize("catalogue", [(), ("--catalog-file",), ("--websockets",)])
async def test_codex_applies_a_patch_that_the_model_writes(
    stack: Stack, tmp_path: Path, catalogue: tuple[str, ...]
) -> None:
    """Only with the profile is the tool offered at all; its raw input is what the model wrote."""
    machine = Machine(tmp_path)
    settings = machine.home / ".codex" / "config.toml"
    settings.parent.mkdir()
    settings.write_text(SETTINGS)
    await machine.connect("codex", stack.url, "--model", MODEL, *catalogue)
    question = say(f"A file.\n</think>\n\n{CALL}", "It is there.\n</think>\n\nDONE")
    command = (CODEX.find(), "--profile", "turnwire", "exec", *OPTIONS, question)
    lines = (await machine.run(*command, timeout_s=RUN_S)).ok().lines
    assert machine.file("made.txt") == 'by a "patch" é\n'
    assert lines[-1]["type"] == "turn.completed"
    assert not [line for line in lines if "error" in line["type"]], "no fallback, no retry"
    kinds = [line["item"]["type"] for line in lines if line["type"] == "item.completed"]
    assert kinds == ["reasoning", "file_change", "reasoning", "agent_message"]
    assert settings.read_text() == SETTINGS, "the user's own settings are as they were"
