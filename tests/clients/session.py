"""Checks that hold for a session of any client over any API: each request succeeds at the first
try, all token counts agree, and each prompt begins with the tokens of the one before and of its
output, whatever the client has made of them."""

import asyncio
import json
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import aiohttp

from tests.clients.wire import Exchange, Recorder, turn_id, usage
from tests.kit.bus_turns import BusTurns, DecodedTurn, prefix_break
from tests.kit.stack import Stack
from tests.kit.waiting import LIMIT_S

COUNTERS = {
    "/v1/messages": ("/v1/messages/count_tokens", "input_tokens"),
    "/v1/responses": ("/v1/responses/input_tokens", "input_tokens"),
    "/v1/chat/completions": ("/v1/tokenize", "count"),
}
NOT_COUNTED = ("max_tokens", "stream", "metadata", "context_management", "diagnostics")
"""Fields of a Messages request that `count_tokens` does not have."""


class Session:
    """One client's session, observed on the wire and on the bus."""

    def __init__(self, wire: Recorder, bus: BusTurns, stack: Stack) -> None:
        self.wire = wire
        self.bus = bus
        self.stack = stack

    @property
    def main(self) -> list[Exchange]:
        """The requests of the conversation itself: what has tools. Titles and local compactions
        have none."""
        return [one for one in self.wire.turns if one.body.get("tools") and not is_warm_up(one)]

    async def check(self, exchanges: Sequence[Exchange]) -> None:
        """All that holds for these requests of a session, in order."""
        self.check_served()
        await self.check_counts(exchanges)
        assert await self.prefix_breaks(exchanges) == []

    def check_served(self) -> None:
        """Every request succeeded and was made once, every stream is complete and without an
        error."""
        for one in self.wire.exchanges:
            assert one.status in (101, 200), (one.method, one.path, one.status, one.document)
            assert one.whole or one.method == "GET", (one.path, one.events[-1:])
            assert not [data for name, data in one.events if name in ("error", "response.failed")]
            assert one.headers.get("x-stainless-retry-count", "0") == "0"
        bodies = [one.body for one in self.wire.turns]
        assert all(body not in bodies[:n] for n, body in enumerate(bodies)), (
            "a request was made twice"
        )

    async def check_counts(self, exchanges: Sequence[Exchange]) -> None:
        """Usage, counting endpoint, log, and the worker's prompt and tokens agree."""
        async with aiohttp.ClientSession() as http:
            for one in exchanges:
                reported, decoded = usage(one), await self.bus.ended(turn_id(one))
                if one.path == "/v1/messages" and one.events:
                    first = one.events[0][1]["message"]["usage"]
                    cached = first["cache_read_input_tokens"] + first["cache_creation_input_tokens"]
                    assert first["input_tokens"] + cached == reported["prompt"]
                assert reported["prompt"] == len(decoded.prompt)
                assert reported["output"] == decoded.generated
                assert reported["cached"] == (decoded.cached or 0)
                assert await self._counts(http, one) == reported["prompt"]
                (line,) = await self.logged(turn_id(one))
                assert {name: line[f"{name}_tokens"] for name in reported} == reported

    async def _counts(self, http: aiohttp.ClientSession, one: Exchange) -> int:
        path, field = COUNTERS[one.path]
        body = one.body
        if one.path == "/v1/messages":
            body = {name: value for name, value in body.items() if name not in NOT_COUNTED}
        names = ("anthropic-beta", "anthropic-version")
        headers = {name: one.headers[name] for name in names if name in one.headers}
        async with http.post(self.wire.upstream + path, json=body, headers=headers) as answer:
            document: Any = await answer.json()
            assert answer.status == 200, document
            return int(document[field])

    async def prefix_breaks(self, exchanges: Sequence[Exchange]) -> list[str]:
        """Where a prompt does not begin with all tokens of the prompt and output before it."""
        decoded = [await self.bus.ended(turn_id(one)) for one in exchanges]
        assert all(isinstance(one, DecodedTurn) and one.prompt and one.output for one in decoded)
        return [found for pair in pairwise(decoded) if (found := prefix_break(*pair)) is not None]

    async def logged(self, *turns: str) -> list[dict[str, Any]]:
        """The lines of these turns in the frontends' logs, which are written after the answers."""
        requests = {f"req_{turn}" for turn in turns}
        async with asyncio.timeout(LIMIT_S):
            while True:
                found = []
                for child in self.stack.children:
                    if child.stage == "frontend":
                        lines = [line for line in child.text().splitlines() if line[:1] == "{"]
                        found += [
                            line for line in map(json.loads, lines) if "output_tokens" in line
                        ]
                found = [line for line in found if line.get("request") in requests]
                if len(found) == len(requests):
                    return found
                await asyncio.sleep(0.05)


def is_warm_up(exchange: Exchange) -> bool:
    """A request over a WebSocket that generates nothing."""
    return exchange.body.get("generate") is False


def continued(exchanges: Sequence[Exchange]) -> list[Exchange]:
    """Complete requests: `previous_response_id`, which Codex sends over a WebSocket, is replaced by
    its items."""
    known: dict[str, list[Any]] = {}
    found = []
    for one in exchanges:
        body = dict(one.body)
        given = known.get(body.pop("previous_response_id", None) or "", [])
        body["input"] = [*given, *body["input"]]
        body.pop("type", None)
        events = [data for _, data in one.events if data]
        done = [data["item"] for data in events if data["type"] == "response.output_item.done"]
        response = next(data["response"] for data in events if data["type"] == "response.created")
        known[response["id"]] = [*body["input"], *done]
        found.append(replace(one, body=body))
    return found
