"""The sessions of a recording, drawn from one seed: what each sends, one request after another."""

import json
from collections.abc import Iterator
from functools import cache
from itertools import count
from random import Random

from fuzz.targets import bodies
from tests.compare.agents import AGENTS, Agent
from tests.compare.contents import chosen, options
from tests.compare.recording import KEYS, MODEL, Request, Run, Send, Session

Headers = dict[str, str]
JSON = {"content-type": "application/json"}
ALSO = {
    "/v1/messages": ("/v1/messages/count_tokens",),
    "/v1/responses": ("/v1/responses/input_tokens", "/v1/responses/compact"),
    "/v1/chat/completions": ("/tokenize",),
    "/v1/completions": ("/tokenize", "/detokenize"),
}
"""Further endpoints that take the bodies of an API."""
OF_A_STORED_RESPONSE = (
    ("GET", ""),
    ("GET", "/input_items"),
    ("GET", "/input_items?order=asc&limit=2"),
    ("GET", "?stream=true"),
    ("POST", "/cancel"),
)


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
        headers = _headers(rng, mark)
        if kind == "agent":
            await _converse(Agent(rng, rng.choice(AGENTS), mark), rng, size, headers, send)
            return
        for _ in range(size):
            await send(_fuzzed(rng, mark, headers))

    return run


async def _converse(agent: Agent, rng: Random, size: int, headers: Headers, send: Send) -> None:
    turns = sent = 0
    while sent < size:
        if not turns:
            turns = rng.randint(1, 5)
            agent.ask(turns)
        body = json.dumps(agent.body(), ensure_ascii=False).encode()
        answer = await send(Request("POST", agent.client.path, JSON | headers, body))
        sent, turns = sent + 1, max(turns - 1, 0)
        if not agent.take(answer):
            turns = 0
        if agent.previous and sent < size and rng.random() < 0.2:
            method, more = rng.choice(OF_A_STORED_RESPONSE)
            await send(Request(method, f"/v1/responses/{agent.previous}{more}", headers))
            sent += 1


def _headers(rng: Random, mark: str) -> Headers:
    key = rng.choice(list(KEYS.values()))
    found = {"authorization": f"Bearer {key}"} if rng.random() < 0.7 else {"x-api-key": key}
    return found | chosen(rng, 0.12, options(mark)["headers"])


def _fuzzed(rng: Random, mark: str, headers: Headers) -> Request:
    """A request of the fuzzer, mostly changed; some have a wrong key, or are cut off."""
    if rng.random() < 0.05:
        method, path = rng.choice(options()["paths"]).split(" ")
        return Request(method, path, headers)
    if rng.random() < 0.05:
        wrong = rng.choice(["Bearer wrong", "Basic eDp5", "", "Bearer"])
        headers = {**headers, "authorization": wrong}
        headers.pop("x-api-key", None)
    data = rng.choice(_seeds())
    for _ in range(rng.choice([0, 1, 1, 2])):
        data = bodies.mutate(data, rng)
    path = bodies.PATHS[data[0] % len(bodies.PATHS)]
    if rng.random() < 0.2:
        path = rng.choice(ALSO[path])
    # The state of a background response depends on time.
    body = data[1:].replace(b'"background"', b'"foreground"')
    model = json.dumps({"model": MODEL, "cache_salt": mark})[1:-1]
    body = body.replace(b'"model": "m"', model.encode(), 1)
    if rng.random() < 0.05:
        body = body[: rng.randint(0, len(body))] + rng.choice([b"", b"\xff", b'"', b"[" * 5000])
    more = {"content-type": ["text/plain"], "content-encoding": ["gzip", "br", "unknown"]}
    return Request("POST", path, {**JSON, **headers, **chosen(rng, 0.01, more)}, body)


@cache
def _seeds() -> list[bytes]:
    return [data for _, data in bodies.seeds()]
