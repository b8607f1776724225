"""Why a prompt was not in the cache, in the words of both APIs, through real processes: two
preprocessors, and in slow tests two frontends, two models and two tenants. The engine's prompts are
the judge of each number."""

import hashlib
import itertools
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

HEADER = "x-anthropic-billing-header: cc_version=2.1.328.{}; cc_entrypoint=cli;"
OTHER_MODEL = "turnwire-other"
FUNCTION = {
    "type": "function",
    "name": "run_shell",
    "parameters": TOOLS[0]["input_schema"],
}
ANSWERS = say(*(f"Hm.\n</think>\n\nYes, {number}." for number in range(30)))


class Api:
    """Posts requests of one API, and keeps the ids of each prompt by the answer's id."""

    path = ""

    def __init__(self, http: aiohttp.ClientSession, *urls: str) -> None:
        self.ids: dict[str, list[int]] = {}
        self._http = http
        self._urls = itertools.cycle(urls)

    async def post(self, body: dict[str, Any], key: str = "any") -> dict[str, Any]:
        body = {"model": MODEL, **body, "return_token_ids": True}
        headers = {"authorization": f"Bearer {key}"}
        async with self._http.post(next(self._urls) + self.path, json=body, headers=headers) as one:
            found: dict[str, Any] = await one.json()
            assert one.status == 200, found
        self.ids[found["id"]] = found["prompt_token_ids"]
        return found

    def missed(self, before: str, now: str) -> int:
        """Tokens of an earlier prompt that a later one does not begin with."""
        old, new = self.ids[before], self.ids[now]
        pairs = enumerate(zip(old, new, strict=False))
        return len(old) - next((at for at, (one, other) in pairs if one != other), len(new))


class Messages(Api):
    path = "/v1/messages"

    async def ask(self, body: dict[str, Any], previous: str | None, **more: Any) -> dict[str, Any]:
        return await self.post(
            {"max_tokens": 50, **body, "diagnostics": {"previous_message_id": previous}}, **more
        )


class Responses(Api):
    path = "/v1/responses"

    async def ask(self, body: dict[str, Any], compared: str | None, **more: Any) -> dict[str, Any]:
        options = {"prompt_cache_options": {"comparison_response_id": compared}} if compared else {}
        return await self.post({**body, **options}, **more)


@pytest.fixture
async def http() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=4 * LIMIT_S)) as session:
        yield session


def talk(turns: int, first: str) -> list[dict[str, Any]]:
    """A session after some answers."""
    found = [{"role": "user", "content": f"{ANSWERS}{first}"}]
    for number in range(turns):
        found.append({"role": "assistant", "content": f"Yes, {number}."})
        found.append({"role": "user", "content": f"And {number}?"})
    return found


def request(
    turns: int, *, header: str = "b7f", system: str = "Be good.", first: str = "Hi.", tool: str = ""
) -> dict[str, Any]:
    texts = (HEADER.format(header), system)
    return {
        "system": [{"type": "text", "text": text} for text in texts],
        "messages": talk(turns, first),
        "tools": [{**TOOLS[0], "description": tool or "Runs a command."}],
    }


def responses_request(
    turns: int, *, system: str = "Be good.", first: str = "Hi.", tool: str = "", **more: Any
) -> dict[str, Any]:
    function = {**FUNCTION, "description": tool or "Runs a command."}
    return {"instructions": system, "input": talk(turns, first), "tools": [function], **more}


async def test_messages_names_what_changed(stack: Stack, http: aiohttp.ClientSession) -> None:
    api = Messages(http, stack.url)
    changes = [
        ({"header": "c8a"}, ""),
        ({"tool": "Runs it."}, "tools_changed"),
        ({"system": "Be.", "tool": "Runs.", "first": "Hu."}, "system_changed"),
        ({"first": "Ho."}, "messages_changed"),
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
    lost = await api.ask(request(0), "msg_unknown")
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
        ({"first": "Ho.", "text": {"verbosity": "low"}}, "verbosity_changed"),
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
    lost = await api.ask(responses_request(0), "resp_unknown")
    assert lost["prompt_cache_diagnostics"] == {"type": "comparison_response_not_found"}


async def test_every_api_reports_the_cached_tokens_of_the_engine(
    stack: Stack, http: aiohttp.ClientSession
) -> None:
    chat = [{"role": "user", "content": f"{ANSWERS}{'Much to read. ' * 200}"}]
    apis: list[tuple[Api, dict[str, Any], Callable[[Any], tuple[int, int]]]] = [
        (Messages(http, stack.url), {"max_tokens": 50, "messages": chat}, messages_tokens),
        (Responses(http, stack.url), {"input": chat}, responses_tokens),
        (Chat(http, stack.url), {"messages": chat}, chat_tokens),
    ]
    async with BusTurns(stack.nats.url) as bus:
        for api, body, tokens in apis:
            for _ in range(3):  # with two workers, one of them has seen it by the third time
                found = await api.post(body)
                turn = await bus.ended(found["id"].replace("-", "_").partition("_")[2])
                cached = turn.cached or 0
                assert tokens(found["usage"]) == (len(turn.prompt), cached), api.path
            assert cached > 500, api.path


class Chat(Api):
    path = "/v1/chat/completions"


def messages_tokens(usage: Any) -> tuple[int, int]:
    """Tokens of the prompt, and of its cached part."""
    cached = usage["cache_read_input_tokens"]
    return usage["input_tokens"] + cached, cached


def responses_tokens(usage: Any) -> tuple[int, int]:
    return usage["input_tokens"], usage["input_tokens_details"]["cached_tokens"]


def chat_tokens(usage: Any) -> tuple[int, int]:
    return usage["prompt_tokens"], usage["prompt_tokens_details"]["cached_tokens"]


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
