"""Records what a checkout answers: sessions over HTTP on loopback, and the bus messages of the first ones."""

import asyncio
import base64
import json
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import nats
from nats.aio.msg import Msg

from tests.compare.agents import AGENTS
from tests.compare.checkout import running
from tests.compare.exchange import Answer, BusSession, BusTurn, Exchange, Request, save
from tests.compare.sessions import Send, drawn

SESSIONS_AT_ONCE = 12
_MARK = re.compile(rb"case-\d{5}")
_SETTLE_S = 2.0


@dataclass
class _Bus:
    """The turns of the sessions with these marks, by session."""

    marks: set[str]
    sessions: dict[str, dict[str, BusTurn]] = field(default_factory=dict)
    owners: dict[str, BusTurn] = field(default_factory=dict)
    contexts: dict[str, BusTurn] = field(default_factory=dict)
    early: list[dict[str, Any]] = field(default_factory=list)

    async def turn(self, message: Msg) -> None:
        found = _MARK.search(message.data)
        if found and (mark := found[0].decode()) in self.marks:
            id = json.loads(message.data)["turn"]
            turn = self.sessions.setdefault(mark, {}).setdefault(id, BusTurn())
            self.owners[id] = turn
            turn.turn.append(message.data.decode())

    async def generate(self, message: Msg) -> None:
        text, _, prompt = message.data.partition(b"\0")
        request = json.loads(text)
        if turn := self.owners.get(request["turn"]):
            turn.generate.append((text.decode(), base64.b64encode(prompt).decode()))
            if context := (request.get("context") or {}).get("ledger"):
                self.contexts[_identity(context)] = turn

    async def ledger(self, message: Msg) -> None:
        entry = json.loads(message.data)
        for value in entry.values():
            if isinstance(value, dict) and (turn := self.contexts.get(_identity(value))):
                turn.ledger.append(message.data.decode())


def _identity(context: dict[str, Any]) -> str:
    return json.dumps(context, sort_keys=True)


async def record(tree: Path, folder: Path, *, seed: int, requests: int, bus_sessions: int, captures: Path) -> int:
    """Records into `folder`; returns the number of requests. Raises RuntimeError if the checkout does not start."""
    folder.mkdir(parents=True, exist_ok=True)
    sessions = list(drawn(seed, requests, captures))
    marks = [mark for label, mark, _, _ in sessions if label in AGENTS or label == "history"][:bus_sessions]
    bus, done = _Bus(set(marks)), dict[str, list[Exchange]]()
    async with running(tree) as stack:
        client = await nats.connect(stack.nats_url)
        for kind, handler in (("turn", bus.turn), ("gen", bus.generate), ("ledger", bus.ledger)):
            await client.subscribe(f"tw.*.{kind}.>", cb=handler)
        await client.flush()
        async with aiohttp.ClientSession(
            base_url=stack.url,
            skip_auto_headers=["accept-encoding", "user-agent", "content-type"],
            timeout=aiohttp.ClientTimeout(total=120),
        ) as http:
            todo = iter(sessions)

            async def lane() -> None:
                for label, mark, _, run in todo:
                    done[mark] = []
                    await run(_sender(http, label, mark, done[mark]))

            async with asyncio.TaskGroup() as tasks:
                for _ in range(SESSIONS_AT_ONCE):
                    tasks.create_task(lane())
        await asyncio.sleep(_SETTLE_S)
        await client.close()
    save(folder / "http.jsonl.gz", (one for _, mark, _, _ in sessions for one in done[mark]))
    save(folder / "bus.jsonl.gz", (BusSession(mark, list(bus.sessions.get(mark, {}).values())) for mark in marks))
    return sum(map(len, done.values()))


def _sender(http: aiohttp.ClientSession, label: str, mark: str, done: list[Exchange]) -> Send:
    async def send(request: Request) -> Answer:
        async with http.request(request.method, request.path, data=request.body or None, headers=request.headers) as got:
            answer = Answer(got.status, [(name, value) for name, value in got.headers.items()], await got.read())
        done.append(
            Exchange(
                f"{mark}.{len(done)}", f"{_api(request.path)} {'agent' if label in AGENTS else label}", request.method, request.path, _text(request.body),
                answer.status, answer.headers, _text(answer.body),
            )  # fmt: skip
        )
        return answer

    return send


def _api(path: str) -> str:
    """The API that a path belongs to, for the summary."""
    names = ("count_tokens", "input_tokens", "messages", "chat", "responses", "completions", "tokenize", "models")
    return next((name for name in names if name in path), "other")


def _text(data: bytes) -> str:
    return data.decode("utf-8", "surrogateescape")
