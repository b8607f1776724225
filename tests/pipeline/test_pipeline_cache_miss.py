"""Why a prompt was not in the cache, in the words of both APIs, through real processes: two
preprocessors, and in slow tests two frontends, two models and two tenants. The engine's prompts are
the judge of each number."""

import hashlib
import json
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.clients.bus_turns import BusTurns
from tests.kit.messages_client import TOOLS, say
from tests.kit.nats import NatsServer
from tests.kit.stack import MODEL, Stack
from tests.kit.waiting import LIMIT_S
from turnwire_tools.clients.shared import SseParser

HEADER = "x-anthropic-billing-header: cc_version=2.1.328.{}; cc_entrypoint=cli;"
OTHER_MODEL = "turnwire-other"
FUNCTION = {
    "type": "function",
    "name": "run_shell",
    "description": "Runs a command.",
    "parameters": TOOLS[0]["input_schema"],
}
ANSWERS = say(*(f"Hm.\n</think>\n\nYes, {number}." for number in range(30)))


class Api:
    """Posts requests of one API, in turn whole and as a stream, and keeps the ids of each prompt by
    the answer's id."""

    path = ""

    def __init__(self, http: aiohttp.ClientSession, *urls: str) -> None:
        self.ids: dict[str, list[int]] = {}
        self._http = http
        self._urls = urls
        self._count = 0

    async def post(self, body: dict[str, Any], key: str = "any") -> dict[str, Any]:
        self._count += 1
        stream, url = self._count % 2 == 0, self._urls[self._count % len(self._urls)]
        body = {"model": MODEL, **body, "stream": stream, "return_token_ids": True}
        async with self._http.post(
            url + self.path, json=body, headers={"authorization": f"Bearer {key}"}
        ) as answer:
            data = await answer.read()
            assert answer.status == 200, data
            found = self.of_stream(SseParser().feed(data)) if stream else json.loads(data)
        self.ids[found["id"]] = found["prompt_token_ids"]
        return found

    def of_stream(self, events: Any) -> dict[str, Any]:
        raise NotImplementedError

    def missed(self, before: str, now: str) -> int:
        """Tokens of an earlier prompt that a later one does not begin with."""
        old, new = self.ids[before], self.ids[now]
        return len(old) - next(
            (at for at, pair in enumerate(zip(old, new, strict=False)) if pair[0] != pair[1]),
            len(new),
        )


class Messages(Api):
    path = "/v1/messages"

    def of_stream(self, events: Any) -> dict[str, Any]:
        (message,) = [data["message"] for name, data in events if name == "message_start"]
        return dict(message)

    async def ask(self, body: dict[str, Any], previous: str | None, **more: Any) -> dict[str, Any]:
        return await self.post(
            {"max_tokens": 50, **body, "diagnostics": {"previous_message_id": previous}}, **more
        )


class Responses(Api):
    path = "/v1/responses"

    def of_stream(self, events: Any) -> dict[str, Any]:
        (response,) = [data["response"] for name, data in events if name == "response.completed"]
        return dict(response)

    async def ask(self, body: dict[str, Any], compared: str | None, **more: Any) -> dict[str, Any]:
        options = (
            {"prompt_cache_options": {"comparison_response_id": compared}}
            if compared is not None
            else {}
        )
        return await self.post({**body, **options}, **more)


@pytest.fixture
async def http() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=4 * LIMIT_S)) as session:
        yield session


def request(
    turns: int, *, header: str = "b7f", system: str = "Be good.", first: str = "Hi.", tool: str = ""
) -> dict[str, Any]:
    """A session after some answers, of the Messages API."""
    messages: list[dict[str, Any]] = [{"role": "user", "content": f"{ANSWERS}{first}"}]
    for number in range(turns):
        messages += [
            {"role": "assistant", "content": f"Yes, {number}."},
            {"role": "user", "content": f"And {number}?"},
        ]
    tools = [{**TOOLS[0], **({"description": tool} if tool else {})}]
    return {
        "system": [
            {"type": "text", "text": HEADER.format(header)},
            {"type": "text", "text": system},
        ],
        "messages": messages,
        "tools": tools,
    }


def responses_request(
    turns: int, *, system: str = "Be good.", first: str = "Hi.", tool: str = "", **more: Any
) -> dict[str, Any]:
    """A session of the Responses API, with the changes of the one of Messages."""
    items: list[dict[str, Any]] = [{"role": "user", "content": f"{ANSWERS}{first}"}]
    for number in range(turns):
        items += [
            {"role": "assistant", "content": f"Yes, {number}."},
            {"role": "user", "content": f"And {number}?"},
        ]
    return {
        "instructions": system,
        "input": items,
        "tools": [{**FUNCTION, **({"description": tool} if tool else {})}],
        **more,
    }


async def test_messages_names_what_changed(stack: Stack, http: aiohttp.ClientSession) -> None:
    api = Messages(http, stack.url)
    changes = [
        ({"header": "c8a"}, ""),
        ({"tool": "Runs it."}, "tools_changed"),
        ({"system": "Be bad."}, "system_changed"),
    ]
    changes += [
        ({"first": "Ho."}, "messages_changed"),
        ({"system": "Be.", "tool": "Runs.", "first": "Hu."}, "system_changed"),
    ]
    for turns, (change, reason) in enumerate(changes):
        first = await api.ask(request(turns), None)
        assert first["diagnostics"] is None
        grown = await api.ask(request(turns + 1), first["id"])
        assert grown["diagnostics"] is None
        other = await api.ask(request(turns + 2, **change), grown["id"])
        missed = api.missed(grown["id"], other["id"])
        expected = {"cache_miss_reason": {"type": reason, "cache_missed_input_tokens": missed}}
        assert other["diagnostics"] == (expected if reason else None)
    for unknown in ("msg_unknown", "msg_", ""):
        lost = await api.ask(request(0), unknown)
        assert lost["diagnostics"] == {"cache_miss_reason": {"type": "previous_message_not_found"}}
    without = await api.post({"max_tokens": 50, **request(0)})
    assert "diagnostics" not in without
    unkept = await api.ask(request(0), without["id"])
    assert unkept["diagnostics"] == lost["diagnostics"]


async def test_responses_names_what_changed(stack: Stack, http: aiohttp.ClientSession) -> None:
    api = Responses(http, stack.url)
    changes: list[tuple[dict[str, Any], str]] = [
        ({"tool": "Runs it."}, "tools_changed"),
        ({"system": "Be bad."}, "input_changed"),
        ({"first": "Ho."}, "input_changed"),
        ({"first": "Ho.", "text": {"verbosity": "low"}}, "verbosity_changed"),
        ({"first": "Ho.", "reasoning": {"effort": "low"}}, "reasoning_effort_changed"),
        ({"system": "Be.", "reasoning": {"effort": "low"}}, "reasoning_effort_changed"),
        ({"first": "Ho.", "text": {"format": {"type": "json_object"}}}, "text_format_changed"),
    ]
    for turns, (change, reason) in enumerate(changes):
        first = await api.ask(responses_request(turns), None)
        assert "prompt_cache_diagnostics" not in first
        grown = await api.ask(responses_request(turns + 1), first["id"])
        assert grown["prompt_cache_diagnostics"] == {"type": "cache_hit"}
        assert grown["prompt_cache_options"] == {"comparison_response_id": first["id"]}
        other = await api.ask(responses_request(turns + 2, **change), grown["id"])
        assert other["prompt_cache_diagnostics"] == {
            "type": "cache_miss",
            "reason": reason,
            "cache_missed_tokens": api.missed(grown["id"], other["id"]),
            "comparison_reusable_tokens": len(api.ids[grown["id"]]),
        }
    for unknown in ("resp_unknown", "resp_", ""):
        lost = await api.ask(responses_request(0), unknown)
        assert lost["prompt_cache_diagnostics"] == {"type": "comparison_response_not_found"}


async def test_every_api_reports_the_cached_tokens_of_the_engine(
    stack: Stack, http: aiohttp.ClientSession
) -> None:
    """At the end, whole and streamed. Before it, `message_start` has an estimate, with the same
    sum."""
    chat = {"messages": [{"role": "user", "content": f"{ANSWERS}{'Much to read. ' * 200}"}]}
    requests: list[tuple[str, dict[str, Any]]] = [
        ("/v1/messages", {"max_tokens": 50, **chat}),
        ("/v1/responses", {"input": chat["messages"]}),
        ("/v1/chat/completions", {**chat, "stream_options": {"include_usage": True}}),
    ]
    async with BusTurns(stack.nats.url) as bus:
        for path, body in requests:
            for stream in (False, True, False, True):
                request = {"model": MODEL, **body, "stream": stream}
                if not stream:
                    request.pop("stream_options", None)
                async with http.post(stack.url + path, json=request) as answer:
                    data = await answer.read()
                found = (
                    [json.loads(data)]
                    if not stream
                    else [one for _, one in SseParser().feed(data) if one]
                )
                turn, prompt, cached = usage_of(path, found)
                decoded = await bus.ended(turn)
                assert (prompt, cached) == (len(decoded.prompt), decoded.cached or 0), (
                    path,
                    stream,
                )
            assert cached > 500, path


def usage_of(path: str, found: list[dict[str, Any]]) -> tuple[str, int, int]:
    """The turn's id, and the tokens of its prompt and of the cached part."""
    if path == "/v1/messages":
        usage = next(one["usage"] for one in reversed(found) if "usage" in one)
        message = next((one["message"] for one in found if "message" in one), found[0])
        first = message["usage"]
        assert usage["cache_creation_input_tokens"] == first["cache_creation_input_tokens"] == 0
        first_sum, last_sum = (
            part["input_tokens"] + part["cache_read_input_tokens"] for part in (first, usage)
        )
        assert first_sum == last_sum
        return message["id"].removeprefix("msg_"), last_sum, usage["cache_read_input_tokens"]
    if path == "/v1/responses":
        response = found[-1].get("response", found[-1])
        usage = response["usage"]
        details = usage["input_tokens_details"]
        assert details["cache_write_tokens"] == 0
        return response["id"].removeprefix("resp_"), usage["input_tokens"], details["cached_tokens"]
    usage = next(one["usage"] for one in reversed(found) if one.get("usage"))
    id = found[0]["id"].removeprefix("chatcmpl-")
    return id, usage["prompt_tokens"], usage["prompt_tokens_details"]["cached_tokens"]


@pytest.fixture(scope="module")
def two_models(
    make_nats: Callable[[], NatsServer], demo_model: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Stack]:
    """Two frontends with keys, two preprocessors, and another model."""
    directory = tmp_path_factory.mktemp("cache-miss")
    keys = directory / "keys"
    keys.write_text(
        "".join(f"{name}:{hashlib.sha256(name.encode()).hexdigest()}\n" for name in ("red", "blue"))
    )
    running = Stack(make_nats(), demo_model, directory)
    try:
        for stage in ("worker", "parser", "preprocessor"):
            running.start(stage, served_model_name=OTHER_MODEL)
        running.start("frontend", api_keys_file=keys)
        yield running.start_all({"preprocessor": 2}, frontend={"api_keys_file": keys})
    finally:
        running.stop()


@pytest.mark.slow
async def test_another_model_and_frontend_are_known(
    two_models: Stack, http: aiohttp.ClientSession
) -> None:
    urls = [child.url for child in two_models.of("frontend")]
    messages, responses = Messages(http, *urls), Responses(http, *urls)
    before = await messages.ask(request(0), None, key="red")
    for turns in range(1, 8):  # both preprocessors and both frontends have turns of the session
        now = await messages.ask(request(turns), before["id"], key="red")
        assert now["diagnostics"] is None
        before = now
    other = await messages.ask(request(8) | {"model": OTHER_MODEL}, before["id"], key="red")
    tokens = len(messages.ids[before["id"]])
    assert other["diagnostics"] == {
        "cache_miss_reason": {"type": "model_changed", "cache_missed_input_tokens": tokens}
    }
    foreign = await messages.ask(request(8), before["id"], key="blue")
    assert foreign["diagnostics"] == {"cache_miss_reason": {"type": "previous_message_not_found"}}
    first = await responses.ask(responses_request(0), None, key="red")
    second = await responses.ask(
        responses_request(1) | {"model": OTHER_MODEL}, first["id"], key="red"
    )
    found = second["prompt_cache_diagnostics"]
    assert (found["reason"], found["cache_missed_tokens"]) == (
        "model_changed",
        len(responses.ids[first["id"]]),
    )


@pytest.mark.slow
async def test_lost_fingerprints_make_a_comparison_unavailable(
    two_models: Stack, http: aiohttp.ClientSession
) -> None:
    messages, responses = Messages(http, two_models.url), Responses(http, two_models.url)
    one, other = (
        await messages.ask(request(0), None, key="red"),
        await responses.ask(responses_request(0), None, key="red"),
    )
    for child in [
        child for child in two_models.of("preprocessor") if OTHER_MODEL not in child._argv
    ]:
        child.kill()
        child.start()
    found = await messages.ask(request(1), one["id"], key="red")
    assert found["diagnostics"] == {"cache_miss_reason": {"type": "unavailable"}}
    answer = await responses.ask(responses_request(1), other["id"], key="red")
    assert answer["prompt_cache_diagnostics"] == {"type": "unavailable"}
