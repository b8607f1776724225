"""The sessions of a recording, drawn from one seed: what each sends, one request after another."""

import json
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

from tests.compare.agents import AGENTS, Agent, freely
from tests.compare.checkout import KEYS, MODEL
from tests.compare.contents import Json, chosen, options, words
from tests.compare.exchange import Answer, Request

Send = Callable[[Request], Awaitable[Answer]]
_KINDS = {"messages": 26, "chat": 20, "responses": 20, "history": 14, "wrong": 12, "completions": 4, "tokens": 2, "other": 2}  # fmt: skip
_SKIPPED_HEADERS = frozenset(
    {
        "host",
        "connection",
        "content-length",
        "accept-encoding",
        "authorization",
        "x-api-key",
        "transfer-encoding",
    }
)


def drawn(
    seed: int, requests: int, captures: Path
) -> Iterator[tuple[str, str, int, Callable[[Send], Awaitable[None]]]]:
    """Label, mark, number of requests and function of each session, until there are enough
    requests."""
    left = requests
    files = sorted(
        file
        for file in captures.glob("*/*/[0-9]*-[A-Z]*-*.json")
        if not file.name.endswith(".response.json")
    )[:left]
    if (
        files
    ):  # one session, as their prompts have beginnings in common, and answers report cached tokens
        left -= len(files)
        yield "captured", "captured", len(files), _captured(files)
    number = 0
    while left > 0:
        rng = Random(f"{seed} {number}")
        kind = rng.choices(list(_KINDS), list(_KINDS.values()))[0]
        count = min(left, rng.randint(6, 14) if kind in AGENTS else 8)
        left -= count
        yield kind, f"case-{number:05}", count, _session(kind, rng, f"case-{number:05}", count)
        number += 1


def _session(kind: str, rng: Random, mark: str, count: int) -> Callable[[Send], Awaitable[None]]:
    async def run(send: Send) -> None:
        headers = _headers(rng, mark)
        if kind in AGENTS:
            await _converse(AGENTS[kind](rng, mark), rng, count, headers, send)
            return
        for _ in range(count):
            draw = {
                "history": _history,
                "wrong": _wrong,
                "completions": _completions,
                "tokens": _tokens,
                "other": _other,
            }[kind]
            await send(
                draw(rng, mark, {**headers, **_headers(rng, mark)} if kind == "wrong" else headers)
            )

    return run


async def _converse(
    agent: Agent, rng: Random, count: int, headers: dict[str, str], send: Send
) -> None:
    turns = sent = 0
    while sent < count:
        if not turns:
            turns = rng.randint(1, 5)
            agent.ask(turns)
        answer = await send(_post(agent.path, agent.body(), headers))
        sent, turns = sent + 1, max(turns - 1, 0)
        if not agent.read(answer.document, answer.events):
            turns = 0
        if agent.previous and sent < count and rng.random() < 0.2:
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
    raw = (
        body
        if isinstance(body, bytes)
        else json.dumps(body, ensure_ascii=False).encode("utf-8", "surrogatepass")
    )
    return Request("POST", path, {"content-type": "application/json", **headers}, raw)


def _history(rng: Random, mark: str, headers: dict[str, str]) -> Request:
    path, body = freely(rng, mark)
    return _post(path, body, headers)


def _completions(rng: Random, mark: str, headers: dict[str, str]) -> Request:
    prompt = rng.choice(
        [
            f"{mark} {words(rng, 1, 30)}",
            [words(rng, 1, 5), words(rng, 1, 5)],
            [5, 6, 7, 300],
            [[1, 2], [3]],
            "",
        ]
    )
    body = {
        "model": MODEL,
        "prompt": prompt,
        "max_tokens": rng.choice([1, 5, 30]),
        "cache_salt": mark,
    }
    body |= chosen(rng, 0.2, options()["completions"])
    return _post("/v1/completions", body, headers)


def _tokens(rng: Random, mark: str, headers: dict[str, str]) -> Request:
    if rng.random() < 0.4:
        return _post(
            "/detokenize",
            {"model": MODEL, "tokens": [rng.randint(0, 4000) for _ in range(rng.randint(0, 30))]},
            headers,
        )
    body: Json = {
        "model": MODEL,
        "prompt": f"{mark} {words(rng, 0, 40)}",
        **chosen(rng, 0.3, {"add_special_tokens": [True, False], "return_token_strs": [True]}),
    }
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
    items = (
        list(node.items())
        if isinstance(node, dict)
        else list(enumerate(node))
        if isinstance(node, list)
        else []
    )
    for key, value in items:
        yield node, key
        yield from _places(value)


def _captured(files: list[Path]) -> Callable[[Send], Awaitable[None]]:
    async def run(send: Send) -> None:
        for file in files:
            found = json.loads(file.read_bytes())
            headers = {
                name.lower(): value
                for name, value in found["headers"]
                if name.lower() not in _SKIPPED_HEADERS
            }
            headers["authorization"] = f"Bearer {KEYS['alice']}"
            body, path = (
                found.get("body"),
                found["path"] + (f"?{found['query']}" if found.get("query") else ""),
            )
            if isinstance(body, dict) and "model" in body:
                body = {**body, "model": MODEL}
            raw = (
                b""
                if body is None
                else json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode()
            )
            headers.pop("content-encoding", None)
            await send(Request(found["method"], path, headers, raw))

    return run
