"""Sessions of every client that runs to its end for each request: from one `turnwire connect`
command to files that its tools have changed. Over each API that it speaks, the server answers each
request at the first try, all token counts agree, and each prompt begins with the one before."""

from itertools import pairwise, product

import pytest

from tests.clients.agents import (
    Agent,
    Aider,
    Cline,
    Copilot,
    Hermes,
    Kilo,
    KimiCode,
    OpenClaw,
    Opencode,
    Pi,
    QwenCode,
)
from tests.clients.conftest import MODEL
from tests.clients.machine import Machine
from tests.clients.session import Session
from tests.clients.tasks import EDIT, FOLLOW, MUCH, ON, PARALLEL
from tests.clients.wire import turn_id, usage
from tests.kit.bus_turns import contains

pytestmark = pytest.mark.timeout(900)

PATHS = {"messages": "/v1/messages", "responses": "/v1/responses", "chat": "/v1/chat/completions"}
PROBES = ("/api/v1/models", "/api/tags", "/v1/props", "/props", "/models")
"""What Hermes requests to find out whether the server is LM Studio, Ollama or llama.cpp."""
CHATTY = (Copilot, KimiCode, Kilo, Hermes)
"""Clients that print more than the last answer."""
WITH_ANOTHER_PREFIX = (QwenCode, Cline)
"""Cline begins a new conversation with each prompt; qwen-code lists the project's files in the
first message again."""


@pytest.mark.parametrize(
    ("kind", "api"),
    [
        *product((Opencode, OpenClaw, Pi, Copilot, KimiCode, Kilo), PATHS),
        (QwenCode, "chat"),
        (Cline, "chat"),
        (Hermes, "messages"),
        (Hermes, "chat"),
    ],
)
async def test_session_is_served(
    machine: Machine, session: Session, kind: type[Agent], api: str
) -> None:
    """An edit, calls in parallel, and work that goes on, each in a process of its own."""
    agent = kind(machine)
    await agent.connect(session.wire.url, api)
    machine.write("notes.txt", "alpha one\n")
    first = await agent.ask(EDIT)
    turns = [session.main]
    assert machine.file("notes.txt") == "beta one\n"
    await agent.ask(PARALLEL, resume=True)
    turns.append(session.main[len(turns[0]) :])
    last = await agent.ask(FOLLOW, resume=True)
    assert [machine.file(f"p{n}.txt") for n in (1, 2, 3)] == ["1\n", "2\n", "3\n"]
    assert machine.file("both.txt") == "1\nbeta one\n"
    if kind in CHATTY:
        assert first.endswith("EDITED")
        assert last.endswith("JOINED")
    else:
        assert (first, last) == ("EDITED", "JOINED")

    assert {one.path for one in session.wire.turns} == {PATHS[api]}
    session.wire.exchanges = [one for one in session.wire.exchanges if one.path not in PROBES]
    session.check_served()
    await session.check_counts(session.main)
    if kind in WITH_ANOTHER_PREFIX:
        for turn in turns:
            assert await session.prefix_breaks(turn) == []
    else:
        await check_prefixes(session, kind, api)


async def check_prefixes(session: Session, kind: type[Agent], api: str) -> None:
    """Each prompt begins with the prompt and the output before it."""
    if kind is OpenClaw:
        # It adds a message after the user's and removes it from later requests. The output still
        # comes back as its original tokens.
        decoded = [await session.bus.ended(turn_id(one)) for one in session.main]
        assert all(contains(later.prompt, earlier.output) for earlier, later in pairwise(decoded))
    else:
        breaks = await session.prefix_breaks(session.main)
        # Copilot over Responses sends reasoning back as text, too.
        assert bool(breaks) is ((kind, api) == (Copilot, "responses")), breaks


@pytest.mark.parametrize("api", list(PATHS))
async def test_opencodes_session_is_compacted(machine: Machine, session: Session, api: str) -> None:
    opencode = Opencode(machine)
    await opencode.connect(session.wire.url, api)
    await opencode.ask(MUCH)
    filled = usage(session.main[-1])
    limit = {"context": filled["prompt"] + filled["output"] + 8000, "output": 8000}
    opencode.change_settings(lambda provider: provider["models"][MODEL].update(limit=limit))
    before = len(session.wire.turns)
    await opencode.ask("Answer with the single word READY.", resume=True)
    after = session.wire.turns[before:]
    assert [len(one.body.get("tools") or []) > 0 for one in after] == [False, True]
    assert usage(after[1])["prompt"] < filled["prompt"]
    # The request is in the summary, which the scripted agent ignores. The session continues from
    # it.
    assert (await opencode.ask(ON, resume=True), machine.file("on.txt")) == ("ON", "on\n")
    await session.check(session.main[-3:])


async def test_aider_edits_a_file(machine: Machine, session: Session) -> None:
    """It offers no tools: the answer contains the edit."""
    aider = Aider(machine)
    await aider.connect(session.wire.url)
    machine.write("notes.txt", "alpha one\nalpha two\n")
    await aider.ask('Replace "alpha one" with "beta one" in notes.txt')
    assert machine.file("notes.txt") == "beta one\nalpha two\n"
    await aider.ask('Replace "alpha two" with "beta two" in notes.txt', resume=True)
    assert machine.file("notes.txt") == "beta one\nbeta two\n"
    session.check_served()
    assert [one.path for one in session.wire.turns] == ["/v1/chat/completions"] * 2
