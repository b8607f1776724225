"""The sessions of a recording, drawn from one seed: what each sends, one request after another."""

import json
from collections.abc import Awaitable, Callable, Iterator
from itertools import count
from random import Random
from typing import Any

from tests.compare.agents import AGENTS, Agent, freely
from tests.compare.checkout import KEYS, MODEL
from tests.compare.contents import Json, chosen, options, words
from tests.compare.exchange import Answer, Request

Send = Callable[[Request], Awaitable[Answer]]
_KINDS = {"messages": 26, "chat": 20, "responses": 20, "history": 14, "wrong": 12, "completions": 4, "tokens": 2, "other": 2}  # fmt: skip


Run = Callable[[Send], Awaitable[None]]
Draw = Callable[[Random, str, dict[str, str]], Request]


def drawn(seed: int, requests: int) -> Iterator[tuple[str, str, int, Run]]:
    """Label, mark, number of requests and function of each session, until there are enough
    requests."""
    left = requests
    for number in count():
        if left <= 0:
            return
        rng, mark = Random(f"{seed} {number}"), f"case-{number:05}"
        kind = rng.choices(list(_KINDS), list(_KINDS.values()))[0]
        size = min(left, rng.randint(6, 14) if kind in AGENTS else 8)
        left -= size
        yield kind, mark, size, _session(kind, rng, mark, size)


def _session(kind: str, rng: Random, mark: str, size: int) -> Run:
    async def run(send: Send) -> None:
        headers = _headers(rng, mark)
        if kind in AGENTS:
            await _converse(Agent(rng, kind, mark), rng, size, headers, send)
            return
        for _ in range(size):
            own = headers | _headers(rng, mark) if kind == "wrong" else headers
            await send(_DRAW[kind](rng, mark, own))

    return run


async def _converse(
    agent: Agent, rng: Random, size: int, headers: dict[str, str], send: Send
) -> None:
    turns = sent = 0
    while sent < size:
        if not turns:
            turns = rng.randint(1, 5)
            agent.ask(turns)
        answer = await send(_post(agent.path, agent.body(), headers))
        sent, turns = sent + 1, max(turns - 1, 0)
        if not agent.take(answer):
            turns = 0
        if agent.previous and sent < size and rng.random() < 0.2:
            more = rng.choice(
                ["", "/input_items", "/input_items?order=asc&limit=2", "/cancel", "?stream=true"]
            )
            method = "POST" if more == "/cancel" else "GET"
            await send(Request(method, f"/v1/responses/{agent.previous}{more}", headers, b""))
            sent += 1


def _headers(rng: Random, mark: str) -> dict[str, str]:
    found = {"authorization": f"Bearer {rng.choice(list(KEYS.values()))}"}
    if rng.random() < 0.3:
        found = {
            "x-api-key": found["authorization"].removeprefix("Bearer "),
            "anthropic-version": "2023-06-01",
        }
    return found | chosen(rng, 0.12, options(mark)["headers"])


def _post(path: str, body: Json | bytes, headers: dict[str, str]) -> Request:
    raw = body
    if not isinstance(raw, bytes):
        raw = json.dumps(body, ensure_ascii=False).encode("utf-8", "surrogatepass")
    return Request("POST", path, {"content-type": "application/json", **headers}, raw)


def _history(rng: Random, mark: str, headers: dict[str, str]) -> Request:
    path, body = freely(rng, mark)
    return _post(path, body, headers)


def _completions(rng: Random, mark: str, headers: dict[str, str]) -> Request:
    two = [words(rng, 1, 5), words(rng, 1, 5)]
    prompts = [f"{mark} {words(rng, 1, 30)}", two, [5, 6, 7, 300], [[1, 2], [3]], ""]
    body: Json = {"model": MODEL, "prompt": rng.choice(prompts), "cache_salt": mark}
    body["max_tokens"] = rng.choice([1, 5, 30])
    return _post("/v1/completions", body | chosen(rng, 0.2, options()["completions"]), headers)


def _tokens(rng: Random, mark: str, headers: dict[str, str]) -> Request:
    if rng.random() < 0.4:
        tokens = [rng.randint(0, 4000) for _ in range(rng.randint(0, 30))]
        return _post("/detokenize", {"model": MODEL, "tokens": tokens}, headers)
    more = {"add_special_tokens": [True, False], "return_token_strs": [True]}
    body = {"model": MODEL, "prompt": f"{mark} {words(rng, 0, 40)}", **chosen(rng, 0.3, more)}
    return _post("/tokenize", body, headers)


def _other(rng: Random, mark: str, headers: dict[str, str]) -> Request:
    method, path = rng.choice(options()["paths"]).split(" ")
    return Request(method, path, headers, b"")


def _wrong(rng: Random, mark: str, headers: dict[str, str]) -> Request:
    """A request that was well-formed, with one or two mistakes."""
    if rng.random() < 0.12:
        del headers["authorization" if "authorization" in headers else "x-api-key"]
    elif rng.random() < 0.1:
        headers = {
            **headers,
            "authorization": rng.choice(["Bearer wrong", "Basic eDp5", "", "Bearer"]),
        }
    if rng.random() < 0.2:
        request = _completions(rng, mark, headers)
        path, body = request.path, json.loads(request.body)
    else:
        path, body = freely(rng, mark)
    for _ in range(rng.choice([1, 1, 2])):
        _spoil(rng, body)
    raw = json.dumps(body, ensure_ascii=False).encode()
    cut = rng.randint(0, len(raw))
    broken = rng.choice([
        raw[:cut], raw[:cut] + b"\xff\xfe" + raw[cut:], raw[:cut] + b'"' + raw[cut:], b"", b"null", b"[]", b'"text"', b"{}", b"[" * 5000, raw + b"x",
        b'{"model":' * 200 + b"1" + b"}" * 200, raw.replace(b'"user"', b'"\\ud800"', 1), raw.replace(b"true", b"1" * 400, 1), b"\xef\xbb\xbf" + raw,
    ])  # fmt: skip
    request = _post(path, broken if rng.random() < 0.25 else raw, headers)
    if rng.random() < 0.06:
        request.headers["content-type"] = rng.choice(
            ["text/plain", "application/json; charset=latin-1", "multipart/form-data; boundary=x"]
        )
    if rng.random() < 0.04:
        request.headers["content-encoding"] = rng.choice(["gzip", "br", "unknown"])
    return request


def _spoil(rng: Random, body: Json) -> None:
    """Changes one place of a body: removed, of another type, a huge number, deep nesting, an
    unknown name."""
    places = [place for place in _places(body) if place[1] != "cache_salt"]
    if rng.random() < 0.5:
        places = [place for place in places if place[0] is body or rng.random() < 0.05] or places
    holder, key = rng.choice(places)
    deep: Any = 1
    for _ in range(rng.choice([10, 100, 400])):
        deep = {"a": deep} if rng.random() < 0.5 else [deep]
    values = [None, 1, -1, 0, 1.5, True, "x", "", [], {}, [1], {"type": "unknown"}, 10**30, -(2**63) - 1, 1e308, deep, "\0", "é" * 300, "NaN", [[]], [None]]  # fmt: skip
    if rng.random() < 0.25:
        del holder[key]
    elif isinstance(holder, dict) and rng.random() < 0.1:
        holder[f"{key}_unknown"] = holder.pop(key)
    else:
        holder[key] = rng.choice(values)


def _places(node: Any) -> Iterator[tuple[Any, Any]]:
    if not isinstance(node, dict | list):
        return
    for key, value in list(node.items() if isinstance(node, dict) else enumerate(node)):
        yield node, key
        yield from _places(value)


_DRAW: dict[str, Draw] = {
    "history": _history,
    "wrong": _wrong,
    "completions": _completions,
    "tokens": _tokens,
    "other": _other,
}
"""How a request of each kind is drawn."""
