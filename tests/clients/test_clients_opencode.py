"""Sessions of opencode over each of the three APIs."""

import pytest

from tests.clients.conftest import MODEL
from tests.clients.machine import Machine
from tests.clients.opencode import Opencode, normalized_in_responses, steps, text
from tests.clients.pieces import unchanged, usage
from tests.clients.session import Session
from tests.clients.tasks import EDIT, FOLLOW, MUCH, ON, PARALLEL

pytestmark = pytest.mark.timeout(900)

PATHS = {"messages": "/v1/messages", "responses": "/v1/responses", "chat": "/v1/chat/completions"}
NORMALIZED = {"messages": unchanged, "responses": normalized_in_responses, "chat": unchanged}


@pytest.mark.parametrize("api", ["messages", "responses", "chat"])
async def test_a_session_is_served(machine: Machine, session: Session, api: str) -> None:
    opencode = await Opencode(machine).connect(session.wire.url, api)
    machine.write("notes.txt", "alpha one\n")
    ran = await opencode.ask(EDIT)
    assert (text(ran), machine.file("notes.txt")) == ("EDITED", "beta one\n")
    shown = steps(ran)
    ran = await opencode.ask(PARALLEL, resume=True)
    assert [machine.file(f"p{n}.txt") for n in (1, 2, 3)] == ["1\n", "2\n", "3\n"]
    shown += steps(ran)
    ran = await opencode.ask(FOLLOW, resume=True)
    assert (text(ran), machine.file("both.txt")) == ("JOINED", "1\nbeta one\n")
    shown += steps(ran)
    main = session.main
    assert {one.path for one in session.wire.turns} == {PATHS[api]}
    session.check_served()
    session.check_history(main, NORMALIZED[api])
    await session.check_counts(main)
    counts = [usage(one) for one in main]
    assert [one["input"] + one["cache"]["read"] + one["cache"]["write"] for one in shown] == [
        t["prompt"] for t in counts
    ]
    assert [one["output"] + one["reasoning"] for one in shown] == [t["output"] for t in counts]
    assert await session.prefix_breaks(main) == []


@pytest.mark.parametrize("api", list(PATHS))
async def test_a_session_is_compacted(machine: Machine, session: Session, api: str) -> None:
    opencode = await Opencode(machine).connect(session.wire.url, api)
    await opencode.ask(MUCH)
    filled = usage(session.main[-1])
    opencode.limit(MODEL, filled["prompt"] + filled["output"] + 8000, 8000)
    before = len(session.wire.turns)
    await opencode.ask("Answer with the single word READY.", resume=True)
    after = session.wire.turns[before:]
    assert [len(one.body.get("tools") or []) > 0 for one in after] == [False, True]
    assert usage(after[1])["prompt"] < filled["prompt"]
    # The request is in the summary, which the scripted agent ignores. The session continues from
    # it.
    ran = await opencode.ask(ON, resume=True)
    assert (text(ran), machine.file("on.txt")) == ("ON", "on\n")
    goes_on = session.main[-3:]
    session.check_served()
    session.check_history(goes_on, NORMALIZED[api])
    await session.check_counts(goes_on)
    assert await session.prefix_breaks(goes_on) == []


@pytest.mark.parametrize("api", list(PATHS))
async def test_dispatch_events_are_skipped(machine: Machine, session: Session, api: str) -> None:
    """The AI SDK fails on unknown events."""
    opencode = await Opencode(machine).connect(session.wire.url, api)
    opencode.send_header("x-turnwire-tool-dispatch", "1")
    await opencode.ask(PARALLEL)
    assert [machine.file(f"p{n}.txt") for n in (1, 2, 3)] == ["1\n", "2\n", "3\n"]
    names = [name for one in session.main for name, _ in one.events]
    assert names.count("tool_call_dispatch") == 3
    session.check_served()
