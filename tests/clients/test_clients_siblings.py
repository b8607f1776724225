"""Ten Claude Code sessions at once, which look alike: the same folder, the same prompt, other
tokens. Each has a sub-agent. Every prompt is judged from the bus."""

import asyncio
from collections import defaultdict
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from tests.clients.claude import ClaudeCode
from tests.clients.machine import Machine
from tests.clients.noncanonical import call, request
from tests.clients.pieces import turn_id
from tests.clients.session import Session
from tests.clients.wire import Exchange

pytestmark = pytest.mark.timeout(900)

SESSIONS = 10
TASK = "Use your shell tool to run exactly this command and nothing else: `echo seen`. Then answer DONE."
OUTPUTS = [
    " I am [[turn]].  \n</think>\n\n Looking  \n\n\n"
    + call("Bash", command="echo  one", description="it")
    + "\n",
    "[[turn]] asks.\n</think>\n\n"
    + call(
        "Agent",
        description="look",
        prompt=TASK,
        subagent_type="general-purpose",
        run_in_background="false",
    ),
    "  [[turn]] ends. \n</think>\n\n\nDONE  ",
]


def conversations(exchanges: list[Exchange]) -> dict[tuple[str, str], list[Exchange]]:
    """The requests of each session and of each sub-agent, by the ids that Claude Code sends."""
    found: dict[tuple[str, str], list[Exchange]] = defaultdict(list)
    for one in exchanges:
        headers = {name.lower(): value for name, value in one.headers.items()}
        found[
            headers["x-claude-code-session-id"], headers.get("x-claude-code-agent-id", "")
        ].append(one)
    return found


async def test_each_session_has_its_own_tokens(
    machine: Machine, session: Session, demo_model: Path
) -> None:
    claude = await ClaudeCode(machine).connect(session.wire.url)
    await asyncio.gather(*(claude.ask(request(OUTPUTS)) for _ in range(SESSIONS)))
    session.check_served()
    found = conversations(session.main)
    assert sum(agent == "" for _, agent in found) == SESSIONS
    assert sum(agent != "" for _, agent in found) == SESSIONS
    tokenizer = Tokenizer.from_file(str(demo_model / "tokenizer.json"))
    for key, exchanges in found.items():
        assert len(exchanges) > 1
        assert await session.prefix_breaks(exchanges) == []
        others = [
            turn_id(one) for other, theirs in found.items() if other[0] != key[0] for one in theirs
        ]
        for one in exchanges:
            prompt = tokenizer.decode(
                (await session.bus.ended(turn_id(one))).prompt, skip_special_tokens=False
            )
            assert not [turn for turn in others if turn in prompt], "a thought of another session"
        if not key[1]:
            assert turn_id(exchanges[0]) in prompt, "its own first thought"
