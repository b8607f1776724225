"""Why a prompt was not in the cache, and how much of it was, through real processes and two
preprocessors. The engine's prompts are the judge of each number."""

from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest

from tests.clients.bus_turns import BusTurns
from tests.kit.messages_client import TOOLS, say
from tests.kit.stack import MODEL, Stack
from tests.kit.waiting import LIMIT_S

HEADER = "x-anthropic-billing-header: cc_version=2.1.328.{}; cc_entrypoint=cli;"
ANSWERS = say(*(f"Hm.\n</think>\n\nYes, {number}." for number in range(30)))


class Api:
    """Posts requests, and keeps the ids of each prompt by the answer's id."""

    def __init__(self, http: aiohttp.ClientSession) -> None:
        self.ids: dict[str, list[int]] = {}
        self._http = http

    async def post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        body = {"model": MODEL, **body, "return_token_ids": True}
        async with self._http.post(path, json=body) as response:
            found: dict[str, Any] = await response.json()
            assert response.status == 200, found
        self.ids[found["id"]] = found["prompt_token_ids"]
        return found

    def missed(self, before: str, now: str) -> int:
        """Tokens of an earlier prompt that a later one does not begin with."""
        old, new = self.ids[before], self.ids[now]
        pairs = enumerate(zip(old, new, strict=False))
        return len(old) - next((at for at, (one, other) in pairs if one != other), len(new))


@pytest.fixture
async def api(stack: Stack) -> AsyncIterator[Api]:
    timeout = aiohttp.ClientTimeout(total=4 * LIMIT_S)
    async with aiohttp.ClientSession(stack.url, timeout=timeout) as session:
        yield Api(session)


def talk(turns: int, first: str = "Hi.") -> list[dict[str, Any]]:
    """A session after some answers."""
    found = [{"role": "user", "content": f"{ANSWERS}{first}"}]
    for number in range(turns):
        found.append({"role": "assistant", "content": f"Yes, {number}."})
        found.append({"role": "user", "content": f"And {number}?"})
    return found


async def test_messages_names_what_changed(api: Api) -> None:
    async def ask(previous: str | None, header: str, **request: Any) -> dict[str, Any]:
        texts = (HEADER.format(header), "Be good.")
        system = [{"type": "text", "text": text} for text in texts]
        tools = [{**TOOLS[0], "description": request.pop("tool", "Runs a command.")}]
        body = {"max_tokens": 50, "system": system, "tools": tools, **request}
        body["diagnostics"] = {"previous_message_id": previous}
        return await api.post("/v1/messages", body)

    first = await ask(None, "b7f", messages=talk(0))
    grown = await ask(first["id"], "c8a", messages=talk(1))
    assert first["diagnostics"] is grown["diagnostics"] is None
    changes: list[tuple[str, dict[str, Any]]] = [
        ("tools_changed", {"tool": "Runs it."}),
        ("messages_changed", {"messages": talk(2, "Ho.")}),
    ]
    for reason, change in changes:
        other = await ask(grown["id"], "b7f", **{"messages": talk(2), **change})
        missed = api.missed(grown["id"], other["id"])
        expected = {"type": reason, "cache_missed_input_tokens": missed}
        assert other["diagnostics"] == {"cache_miss_reason": expected}
    lost = await ask("msg_unknown", "b7f", messages=talk(0))
    assert lost["diagnostics"] == {"cache_miss_reason": {"type": "previous_message_not_found"}}


async def test_responses_names_what_changed(api: Api) -> None:
    async def ask(compared: str | None, **request: Any) -> dict[str, Any]:
        options = {"comparison_response_id": compared} if compared else {}
        body = {"instructions": "Be good.", **request, "prompt_cache_options": options}
        return await api.post("/v1/responses", body)

    first = await ask(None, input=talk(0))
    assert "prompt_cache_diagnostics" not in first
    grown = await ask(first["id"], input=talk(1))
    assert grown["prompt_cache_diagnostics"] == {"type": "cache_hit"}
    other = await ask(grown["id"], input=talk(2, "Ho."), text={"verbosity": "low"})
    assert other["prompt_cache_diagnostics"] == {
        "type": "cache_miss",
        "reason": "verbosity_changed",
        "cache_missed_tokens": api.missed(grown["id"], other["id"]),
        "comparison_reusable_tokens": len(api.ids[grown["id"]]),
    }
    lost = await ask("resp_unknown", input=talk(0))
    assert lost["prompt_cache_diagnostics"] == {"type": "comparison_response_not_found"}


async def test_every_api_reports_the_cached_tokens_of_the_engine(stack: Stack, api: Api) -> None:
    chat = [{"role": "user", "content": f"{ANSWERS}{'Much to read. ' * 200}"}]
    bodies: dict[str, dict[str, Any]] = {
        "/v1/messages": {"max_tokens": 50, "messages": chat},
        "/v1/responses": {"input": chat},
        "/v1/chat/completions": {"messages": chat},
    }
    async with BusTurns(stack.nats.url) as bus:
        for path, body in bodies.items():
            for _ in range(3):  # with two workers, one of them has seen it by the third time
                found = await api.post(path, body)
                turn = await bus.ended(found["id"].replace("-", "_").partition("_")[2])
                cached = turn.cached or 0
                assert prompt_tokens(found["usage"]) == (len(turn.prompt), cached), path
            assert cached > 500, path


def prompt_tokens(usage: Any) -> tuple[int, int]:
    """Tokens of the prompt, and of its cached part."""
    if "cache_read_input_tokens" in usage:
        cached = usage["cache_read_input_tokens"]
        return usage["input_tokens"] + cached, cached
    if "input_tokens" in usage:
        return usage["input_tokens"], usage["input_tokens_details"]["cached_tokens"]
    return usage["prompt_tokens"], usage["prompt_tokens_details"]["cached_tokens"]
