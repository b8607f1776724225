"""The sessions of a recording, drawn from one seed: what each sends, one request after another."""

import json
import re
from collections.abc import Iterator
from itertools import count
from random import Random

from fuzz import bodies
from tests.compare.agents import AGENTS, Agent
from tests.compare.contents import chosen, options
from tests.compare.recording import MODEL, Request, Run, Send, Session

Headers = dict[str, str]
JSON = {"content-type": "application/json"}
_ID = re.compile(rb'("id": "(?:[^"\\]|\\.)+)"')


def drawn(seed: int, requests: int) -> Iterator[Session]:
    """The sessions of a seed, until there are enough requests."""
    left = requests
    for number in count():
        if left <= 0:
            return
        rng, mark = Random(f"{seed} {number}"), f"case-{number:05}"
        kind = rng.choices(["agent", "fuzzed"], [2, 1])[0]
        size = min(left, rng.randint(6, 14))
        left -= size
        yield kind, mark, _session(kind, rng, mark, size)


def _session(kind: str, rng: Random, mark: str, size: int) -> Run:
    async def run(send: Send) -> None:
        headers = JSON | chosen(rng, 0.12, options(mark)["headers"])
        if kind == "agent":
            await _converse(Agent(rng, rng.choice(AGENTS), mark), rng, size, headers, send)
            return
        for _ in range(size):
            await send(_fuzzed(rng, mark, headers))

    return run


async def _converse(agent: Agent, rng: Random, size: int, headers: Headers, send: Send) -> None:
    turns = 0
    for _ in range(size):
        if not turns:
            turns = rng.randint(1, 5)
            agent.ask(turns)
        body = json.dumps(agent.body(), ensure_ascii=False).encode()
        answer = await send(Request("POST", agent.client.path, headers, body))
        turns = max(turns - 1, 0) if agent.take(answer) else 0


def _fuzzed(rng: Random, mark: str, headers: Headers) -> Request:
    """A random request, mostly changed."""
    request = rng.choice(bodies.seeds())
    for _ in range(rng.choice([0, 1, 1, 2])):
        request = bodies.mutate(request, rng)
    path, body = request
    if path == "/v1/responses":
        # An item is found by its id, whichever session has stored it.
        body = _ID.sub(rb"\1-" + mark.encode() + b'"', body)
    # The state of a background response depends on time.
    body = body.replace(b'"background"', b'"foreground"')
    model = json.dumps({"model": MODEL, "cache_salt": mark})[1:-1]
    return Request("POST", path, headers, body.replace(b'"model": "m"', model.encode(), 1))
