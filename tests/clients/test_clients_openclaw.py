"""Sessions of OpenClaw over each of the three APIs.

OpenClaw adds a message after the user's request and removes it from later requests, so that no
prompt begins with the whole one before. The output of the model still comes back as its original
tokens.
"""

from itertools import pairwise

import pytest

from tests.clients.bus_turns import contains
from tests.clients.machine import Machine
from tests.clients.openclaw import OpenClaw, normalized, normalized_in_responses
from tests.clients.pieces import turn_id, usage
from tests.clients.session import Session
from tests.clients.tasks import EDIT, FOLLOW, ON, PARALLEL

pytestmark = pytest.mark.timeout(900)

PATHS = {"messages": "/v1/messages", "responses": "/v1/responses", "chat": "/v1/chat/completions"}
NORMALIZED = {"messages": normalized, "responses": normalized_in_responses, "chat": normalized}


async def check_original_tokens(session: Session) -> None:
    """Each prompt contains the output before it, token for token."""
    decoded = [await session.bus.ended(turn_id(one)) for one in session.main]
    assert all(contains(later.prompt, earlier.output) for earlier, later in pairwise(decoded))


async def test_openclaw_runs_one_loop(machine: Machine, session: Session) -> None:
    claw = await OpenClaw(machine).connect(session.wire.url, "messages")
    report = await claw.ask(PARALLEL)
    assert report["payloads"][0]["text"] == "DONE"
    assert [machine.file(f"p{n}.txt") for n in (1, 2, 3)] == ["1\n", "2\n", "3\n"]
    session.check_served()
    session.check_history(session.main, normalized)
    await session.check_counts(session.main)


@pytest.mark.parametrize("api", list(PATHS))
async def test_a_session_is_served(machine: Machine, session: Session, api: str) -> None:
    claw = await OpenClaw(machine).connect(session.wire.url, api)
    machine.write("notes.txt", "alpha one\n")
    report = await claw.ask(EDIT)
    assert (report["payloads"][0]["text"], machine.file("notes.txt")) == ("EDITED", "beta one\n")
    await claw.ask(PARALLEL)
    assert [machine.file(f"p{n}.txt") for n in (1, 2, 3)] == ["1\n", "2\n", "3\n"]
    report = await claw.ask(FOLLOW)
    assert (report["payloads"][0]["text"], machine.file("both.txt")) == ("JOINED", "1\nbeta one\n")
    assert {one.path for one in session.wire.turns} == {PATHS[api]}
    session.check_served()
    session.check_history(session.main, NORMALIZED[api])
    await session.check_counts(session.main)
    await check_original_tokens(session)
    counts = [usage(one) for one in session.main[-2:]]
    shown = report["meta"]["agentMeta"]["usage"]
    assert shown["input"] + shown["cacheRead"] + shown["cacheWrite"] == sum(
        one["prompt"] for one in counts
    )
    assert shown["output"] == sum(one["output"] for one in counts)


@pytest.mark.parametrize("api", list(PATHS))
async def test_a_session_is_compacted(machine: Machine, session: Session, api: str) -> None:
    """The client requests a summary without tools and continues from it."""
    claw = await OpenClaw(machine).connect(session.wire.url, api)
    await claw.ask("Run exactly this command: `seq 1 3000`. Then answer with the single word MUCH.")
    filled = usage(session.main[-1])
    claw.limit(filled["prompt"] + 7000)
    before = len(session.wire.turns)
    report = await claw.ask(ON)
    assert (report["payloads"][0]["text"], machine.file("on.txt")) == ("ON", "on\n")
    session.check_served()
    after = session.wire.turns[before:]
    summaries = [one for one in after if not one.body.get("tools")]
    assert len(summaries) == 1
    assert usage(after[-1])["prompt"] < filled["prompt"]
