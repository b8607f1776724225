"""Records what a checkout answers: sessions over HTTP on loopback, and the bus messages of the
first ones."""

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
_CHOICE = re.compile(r"[0-9a-f]{24}c\d+")
_SETTLE_S = 2.0


@dataclass
class _Bus:
    """Collects the turns of the sessions with these marks."""

    marks: set[str]
    sessions: dict[str, list[BusTurn]] = field(default_factory=dict)
    turns: dict[str, BusTurn] = field(default_factory=dict)
    contexts: dict[str, BusTurn] = field(default_factory=dict)

    async def take(self, message: Msg) -> None:
        """Takes a message of any kind. Turns are found by their session's mark, later messages by
        the turn's id, and ledger entries, which have none, by their context."""
        kind, (data, _, prompt) = message.subject.split(".")[2], message.data.partition(b"\0")
        if (
            kind == "turn"
            and (found := _MARK.search(data))
            and (mark := found[0].decode()) in self.marks
        ):
            turn = self.turns.get(id := json.loads(data)["turn"])
            if _CHOICE.fullmatch(
                id
            ):  # choices have the same context, and any of them is the parent of the next turn
                self.marks.remove(mark)
                self.sessions.pop(mark, None)
                return
            if turn is None:
                turn = self.turns[id] = BusTurn()
                self.sessions.setdefault(mark, []).append(turn)
            turn.turn.append(data.decode())
        elif kind == "gen" and (turn := self.turns.get((request := json.loads(data))["turn"])):
            turn.generate.append((data.decode(), base64.b64encode(prompt).decode()))
            if context := (request.get("context") or {}).get("ledger"):
                self.contexts[_identity(context)] = turn
        elif kind == "ledger":
            parts = [value for value in json.loads(data).values() if isinstance(value, dict)]
            if turn := next(filter(None, map(self.contexts.get, map(_identity, parts))), None):
                turn.ledger.append(data.decode())


def _identity(context: dict[str, Any]) -> str:
    return json.dumps(context, sort_keys=True)


async def record(
    tree: Path, folder: Path, seed: int, requests: int, bus_sessions: int, captures: Path
) -> int:
    """Records into `folder`; returns the number of requests. Raises RuntimeError if the checkout
    does not start."""
    folder.mkdir(parents=True, exist_ok=True)
    sessions = list(drawn(seed, requests, captures))
    marks = [mark for label, mark, _, _ in sessions if label in AGENTS or label == "history"][
        :bus_sessions
    ]
    bus, done = _Bus(set(marks)), dict[str, list[Exchange]]()
    async with running(tree) as stack:
        client = await nats.connect(stack.nats_url)
        await client.subscribe("tw.>", cb=bus.take, pending_bytes_limit=-1, pending_msgs_limit=-1)
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
    save(
        folder / "bus.jsonl.gz",
        (BusSession(mark, turns) for mark, turns in sorted(bus.sessions.items())),
    )
    return sum(map(len, done.values()))


def _sender(http: aiohttp.ClientSession, label: str, mark: str, done: list[Exchange]) -> Send:
    async def send(request: Request) -> Answer:
        async with http.request(
            request.method, request.path, data=request.body or None, headers=request.headers
        ) as got:
            answer = Answer(
                got.status, [(name, value) for name, value in got.headers.items()], await got.read()
            )
        id, kind = f"{mark}.{len(done)}", "agent" if label in AGENTS else label
        asked = (
            id,
            f"{_api(request.path)} {kind}",
            request.method,
            request.path,
            _text(request.body),
        )
        done.append(Exchange(*asked, answer.status, answer.headers, _text(answer.body)))
        return answer

    return send


def _api(path: str) -> str:
    """The API that a path belongs to, for the summary."""
    names = (
        "count_tokens",
        "input_tokens",
        "messages",
        "chat",
        "responses",
        "completions",
        "tokenize",
        "models",
    )
    return next((name for name in names if name in path), "other")


def _text(data: bytes) -> str:
    return data.decode("utf-8", "surrogateescape")
