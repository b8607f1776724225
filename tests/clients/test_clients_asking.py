"""Which agent each request of a real client is taken to come from, with helpers that the client
starts."""

import pytest

from tests.clients.agents import Opencode
from tests.clients.claude import ClaudeCode
from tests.clients.machine import Machine
from tests.clients.session import Session
from tests.clients.wire import turn_id
from tests.kit.messages_client import say
from tests.kit.model_output import written_call

pytestmark = pytest.mark.timeout(900)
TASK = "Use your shell tool to run exactly this command and nothing else: `echo seen`. Then answer DONE."
OVER = "It is done.\n</think>\n\nDONE"
HELPERS = 2


def starting(tool: str, **arguments: str) -> str:
    """An output that starts helpers."""
    return "I delegate.\n</think>\n\n" + "\n".join(
        written_call(tool, **arguments) for _ in range(HELPERS)
    )


async def check_family(session: Session, *, titles: int = 0) -> None:
    """One agent, its helpers, and titles."""
    lines = await session.logged(*map(turn_id, session.wire.turns))
    main = {line["session"] for line in lines if line["kind"] == "main"}
    helpers = {(line["session"], line["parent"]) for line in lines if line["kind"] == "helper"}
    assert len(main) == 1
    assert len(helpers) == HELPERS
    assert {parent for _, parent in helpers} == main
    assert not {session for session, _ in helpers} & main
    background = [line["session"] for line in lines if line["kind"] == "background"]
    assert background == [*main] * titles


async def test_claude_codes_helpers_name_their_session(machine: Machine, session: Session) -> None:
    claude = await ClaudeCode(machine).connect(session.wire.url)
    agent = {"description": "look", "prompt": TASK, "subagent_type": "general-purpose"}
    agent["run_in_background"] = "false"
    await claude.ask(say(starting("Agent", **agent), OVER))
    await check_family(session)
    kinds = {one.headers.get("x-claude-code-request-class") for one in session.wire.turns}
    assert kinds <= {None, "main", "subagent"}  # None: releases before 2.1.273


async def test_opencodes_helpers_name_their_session(machine: Machine, session: Session) -> None:
    opencode = Opencode(machine)
    await opencode.connect(session.wire.url, "chat")
    task = {"description": "look", "prompt": TASK, "subagent_type": "general"}
    await opencode.ask(say(starting("task", **task), OVER))
    await check_family(session, titles=1)
