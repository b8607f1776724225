"""Faults between a client and the server: each client goes on, no call runs twice or is lost, and
the prompts after the fault are exact again."""

from collections import Counter
from itertools import pairwise

import pytest

from tests.clients.agents import Opencode
from tests.clients.claude import ClaudeCode
from tests.clients.codex import CodexCli
from tests.clients.machine import Machine
from tests.clients.noncanonical import call, request
from tests.clients.pieces import answer_pieces, history
from tests.clients.session import Session
from tests.clients.wire import Exchange

pytestmark = pytest.mark.timeout(900)

TOOLS = {
    "claude": ("Bash", "command"),
    "codex": ("exec_command", "cmd"),
    "opencode": ("bash", "command"),
}
PLACES = {"thinking": "Mark-T", "after a call": "Mark-B"}


def outputs(client: str) -> list[str]:
    """Thought, text and call; then the answer. Fillers keep the marks apart in the stream."""
    tool, argument = TOOLS[client]
    shell = call(tool, **{argument: "echo Mark-C >> log.txt", "description": "x"})
    first = (
        f"[[fill 20]] Mark-T [[fill 40]]\n</think>\n\n[[fill 40]]\n\n{shell}\n\nMark-B [[fill 40]]"
    )
    return [first, "So.\n</think>\n\nDONE"]


async def ask(client: str, machine: Machine, session: Session, prompt: str) -> str:
    """Runs the client once; returns its output."""
    url = session.wire.url
    if client == "claude":
        claude = await ClaudeCode(machine).connect(url)
        ran = await machine.run(*claude.command(), "-p", prompt)
    elif client == "codex":
        codex = await CodexCli(machine).connect(url)
        ran = await machine.run(*codex.command(), prompt)
    else:
        opencode = Opencode(machine)
        await opencode.connect(url, "messages")
        ran = await machine.run(opencode.program, "run", "--format", "json", prompt)
    return ran.ok().out


@pytest.mark.parametrize("client", list(TOOLS))
@pytest.mark.parametrize("place", list(PLACES))
async def test_a_stream_that_is_cut_is_retried(
    machine: Machine, session: Session, client: str, place: str
) -> None:
    """The client requests the turn again, or goes on from the call that it has run already.

    How much of the answer it had read before the cut, and what it keeps of that, depends on the
    client and on time.
    """
    session.wire.cut_at = PLACES[place]
    first, last = outputs(client)
    # What a client keeps of the lost answer counts as an answer: each further one is the last.
    out = await ask(client, machine, session, request([first, last, last, last]))
    assert "DONE" in out
    [cut] = [one for one in session.main if one.cut]
    whole = [one for one in session.main if not one.cut]
    served, lost = sum(map(calls, whole)), calls(cut)
    assert served <= runs(machine) <= served + lost
    for earlier, later in pairwise(whole):
        # A client that repeats pieces of the lost answer within the next one has changed that, and
        # nothing before it.
        kept = Counter(history(later)) - Counter(history(earlier) + answer_pieces(earlier))
        breaks = await session.prefix_breaks([earlier, later])
        assert not breaks or (kept and breaks[0].endswith("in its output")), (breaks, kept)


def calls(exchange: Exchange) -> int:
    """The calls in an answer."""
    return sum(piece[0] == "call" for piece in answer_pieces(exchange))


def runs(machine: Machine) -> int:
    """How often the command ran."""
    log = machine.project / "log.txt"
    return log.read_text().count("Mark-C\n") if log.exists() else 0
