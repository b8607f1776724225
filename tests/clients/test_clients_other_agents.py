"""Copilot CLI, kimi-code, Hermes, Kilo, qwen-code, pi, Cline and aider: from one `turnwire connect`
command to files that their tools have changed."""

from itertools import pairwise

import pytest

from tests.clients.machine import Machine
from tests.clients.other_agents import (
    Agent,
    Aider,
    Cline,
    Copilot,
    Hermes,
    Kilo,
    KimiCode,
    Pi,
    QwenCode,
)
from tests.clients.session import Session
from tests.clients.tasks import EDIT, FOLLOW, PARALLEL

pytestmark = pytest.mark.timeout(900)

PROBES = ("/api/v1/models", "/api/tags", "/v1/props", "/props", "/models")
"""What Hermes requests to find out whether the server is LM Studio, Ollama or llama.cpp."""
PATHS = {"messages": "/v1/messages", "responses": "/v1/responses", "chat": "/v1/chat/completions"}


@pytest.mark.parametrize(
    ("kind", "api"),
    [(QwenCode, "chat"), (Pi, "messages"), (Pi, "responses"), (Pi, "chat"), (Cline, "chat")],
)
async def test_a_session_is_served(
    machine: Machine, session: Session, kind: type[QwenCode | Pi | Cline], api: str
) -> None:
    """Three user turns, each in a process of its own. Cline begins a new conversation with each;
    qwen-code lists the project's files in the first message again, so that only pi continues its
    prompt from process to process."""
    agent = kind(machine)
    await agent.connect(session.wire.url, "--api", api)
    machine.write("notes.txt", "alpha one\n")
    assert (await agent.ask(EDIT), machine.file("notes.txt")) == ("EDITED", "beta one\n")
    ends = [len(session.main)]
    await agent.ask(PARALLEL, resume=True)
    assert [machine.file(f"p{n}.txt") for n in (1, 2, 3)] == ["1\n", "2\n", "3\n"]
    ends.append(len(session.main))
    assert (await agent.ask(FOLLOW, resume=True), machine.file("both.txt")) == (
        "JOINED",
        "1\nbeta one\n",
    )
    assert {one.path for one in session.wire.turns} == {PATHS[api]}
    session.check_served()
    await session.check_counts(session.main)
    runs = (
        [slice(None)] if kind is Pi else [slice(*bounds) for bounds in pairwise([0, *ends, None])]
    )
    assert [
        broken for run in runs for broken in await session.prefix_breaks(session.main[run])
    ] == []


@pytest.mark.parametrize(
    ("kind", "api"),
    [
        *[(kind, api) for kind in (Copilot, KimiCode, Kilo) for api in PATHS],
        (Hermes, "messages"),
        (Hermes, "chat"),
    ],
)
async def test_a_session_of_another_agent_is_served(
    machine: Machine, session: Session, kind: type[Agent], api: str
) -> None:
    """Three user turns, each in a process of its own. Copilot over Responses sends reasoning back
    as text, too."""
    agent = kind(machine)
    await agent.connect(session.wire.url, "--api", api)
    machine.write("notes.txt", "alpha one\n")
    assert (await agent.ask(EDIT)).endswith("EDITED")
    assert machine.file("notes.txt") == "beta one\n"
    await agent.ask(PARALLEL, resume=True)
    assert [machine.file(f"p{n}.txt") for n in (1, 2, 3)] == ["1\n", "2\n", "3\n"]
    assert (await agent.ask(FOLLOW, resume=True)).endswith("JOINED")
    assert machine.file("both.txt") == "1\nbeta one\n"
    assert {one.path for one in session.wire.turns} == {PATHS[api]}
    session.wire.exchanges = [one for one in session.wire.exchanges if one.path not in PROBES]
    session.check_served()
    await session.check_counts(session.main)
    assert bool(await session.prefix_breaks(session.main)) is (
        (kind, api) == (Copilot, "responses")
    )


async def test_a_prompt_without_work_ends(machine: Machine, session: Session) -> None:
    """The demo agent ends a run that has nothing to do, with the client that has the most tools."""
    cline = Cline(machine)
    await cline.connect(session.wire.url)
    assert "demo engine" in await cline.ask("How are you?")
    assert len(session.main) == 1


@pytest.mark.parametrize("form", ["whole", "diff", "udiff"])
async def test_aider_edits_a_file(machine: Machine, session: Session, form: str) -> None:
    """It offers no tools: the answer contains the edit, in one of its formats."""
    aider = Aider(machine)
    await aider.connect(session.wire.url)
    machine.write("notes.txt", "alpha one\nalpha two\n")
    await aider.ask('Replace "alpha one" with "beta one" in notes.txt', form=form)
    assert machine.file("notes.txt") == "beta one\nalpha two\n"
    await aider.ask('Replace "alpha two" with "beta two" in notes.txt', form=form, resume=True)
    assert machine.file("notes.txt") == "beta one\nbeta two\n"
    session.check_served()
    assert [one.path for one in session.wire.turns] == ["/v1/chat/completions"] * 2
