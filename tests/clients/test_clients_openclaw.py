"""OpenClaw does its work over each of the three APIs.

Behind the user's request it puts a message of its own, which it takes away again: no prompt of its begins with the whole
one before, whatever a server does. What the model said comes back as its own tokens all the same.
"""

from itertools import pairwise

import pytest

from tests.clients.bus_turns import holds
from tests.clients.laws import Session
from tests.clients.machine import Machine
from tests.clients.openclaw import OpenClaw, kept, kept_in_responses
from tests.clients.pieces import turn_id, usage
from tests.clients.tasks import EDIT, FOLLOW, ON, PARALLEL

pytestmark = pytest.mark.timeout(900)

PATHS = {"messages": "/v1/messages", "responses": "/v1/responses", "chat": "/v1/chat/completions"}
KEPT = {"messages": kept, "responses": kept_in_responses, "chat": kept}


async def own_tokens(session: Session) -> None:
    """Each prompt holds the output before it, token for token."""
    spoken = [await session.bus.ended(turn_id(one)) for one in session.main]
    assert all(holds(later.prompt, earlier.output) for earlier, later in pairwise(spoken))


async def test_one_loop(machine: Machine, session: Session) -> None:
    claw = await OpenClaw(machine).connect(session.wire.url, "messages")
    report = await claw.ask(PARALLEL)
    assert report["payloads"][0]["text"] == "DONE"
    assert [machine.file(f"p{n}.txt") for n in (1, 2, 3)] == ["1\n", "2\n", "3\n"]
    session.served_at_once()
    session.said_again(session.main, kept)
    await session.counted(session.main)


@pytest.mark.clients
@pytest.mark.parametrize("api", list(PATHS))
async def test_a_session(machine: Machine, session: Session, api: str) -> None:
    claw = await OpenClaw(machine).connect(session.wire.url, api)
    machine.write("notes.txt", "alpha one\n")
    report = await claw.ask(EDIT)
    assert (report["payloads"][0]["text"], machine.file("notes.txt")) == ("EDITED", "beta one\n")
    await claw.ask(PARALLEL)
    assert [machine.file(f"p{n}.txt") for n in (1, 2, 3)] == ["1\n", "2\n", "3\n"]
    report = await claw.ask(FOLLOW)
    assert (report["payloads"][0]["text"], machine.file("both.txt")) == ("JOINED", "1\nbeta one\n")
    assert {one.path for one in session.wire.turns} == {PATHS[api]}
    session.served_at_once()
    session.said_again(session.main, KEPT[api])
    await session.counted(session.main)
    await own_tokens(session)
    told = [usage(one) for one in session.main[-2:]]
    shown = report["meta"]["agentMeta"]["usage"]
    assert shown["input"] + shown["cacheRead"] + shown["cacheWrite"] == sum(one["prompt"] for one in told)
    assert shown["output"] == sum(one["output"] for one in told)


@pytest.mark.clients
@pytest.mark.parametrize("api", list(PATHS))
async def test_compaction(machine: Machine, session: Session, api: str) -> None:
    """It saves what it wants to keep, asks for a summary without tools, and goes on from that."""
    claw = await OpenClaw(machine).connect(session.wire.url, api)
    await claw.ask("Run exactly this command: `seq 1 3000`. Then answer with the single word MUCH.")
    filled = usage(session.main[-1])
    claw.limit(filled["prompt"] + 7000)
    before = len(session.wire.turns)
    report = await claw.ask(ON)
    assert (report["payloads"][0]["text"], machine.file("on.txt")) == ("ON", "on\n")
    session.served_at_once()
    after = session.wire.turns[before:]
    summaries = [one for one in after if not one.body.get("tools")]
    assert len(summaries) == 1
    assert usage(after[-1])["prompt"] < filled["prompt"]
