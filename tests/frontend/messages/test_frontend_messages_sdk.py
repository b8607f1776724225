"""Tests the Messages API with the Anthropic SDK, with strict parsing, over a real socket."""

import json
from pathlib import Path
from typing import Any

import aiohttp
import anthropic
import pytest
from anthropic import AsyncAnthropic, beta_async_tool
from anthropic.types import Message

from schemas.conversation import Call, Reasoning, Result
from schemas.errors import EngineFailed, ErrorInfo, ErrorKind, Overloaded
from schemas.events import Failed, failure_of
from tests.frontend.messages.test_frontend_messages_stream import CASES, load
from tests.kit.events import Step, call, finish, reasoning, text
from tests.kit.frontend import MODEL, FakeGateway, Served, serving

HI: Any = [{"role": "user", "content": "hi"}]
PATHS = [path for path in CASES if failure_of(load(path).events[-1]) is None]


def client(served: Served, *, strict: bool = True) -> AsyncAnthropic:
    return AsyncAnthropic(
        base_url=served.url, api_key="k", max_retries=0, _strict_response_validation=strict
    )


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
async def test_sdk_parses_every_transcript_strictly(path: Path) -> None:
    case = load(path)
    wanted = json.loads(path.with_suffix(".message.json").read_text())
    headers = {"x-turnwire-tool-dispatch": "1"} if case.options.get("dispatch") else {}
    thinking: Any = (
        {"type": "adaptive", "display": "omitted"}
        if case.options.get("omit_thinking")
        else {"type": "adaptive"}
    )
    extra: Any = (
        {"context_management": {"edits": []}} if case.options.get("context_management") else {}
    )
    asked: Any = {
        "model": MODEL, "max_tokens": 99, "messages": HI, "thinking": thinking, "extra_headers": headers,
        "extra_body": extra,
    }  # fmt: skip
    # An event of our own cannot be of a type that the SDK knows; with dispatch on, only the
    # strictness differs.
    strict = not case.options.get("dispatch")
    gateway = FakeGateway(lambda: [[event] for event in case.events])
    async with serving(gateway) as served, client(served, strict=strict) as sdk:
        whole = await sdk.messages.create(**asked)
        raw = [event async for event in await sdk.messages.create(**asked, stream=True)]
        async with sdk.messages.stream(**asked) as stream:
            streamed = await stream.get_final_message()
    assert [event.type for event in raw][:1] == ["message_start"]
    assert _content(whole) == wanted["content"]
    runnable = [
        block
        for block in _content(streamed)
        if block in wanted["content"] or block["type"] != "tool_use"
    ]
    assert runnable == wanted["content"]
    for message in (whole, streamed):
        assert message.stop_reason == wanted["stop_reason"]
        assert message.stop_sequence == wanted["stop_sequence"]
        assert message.usage.input_tokens == wanted["usage"]["input_tokens"]
        assert message.usage.cache_read_input_tokens == wanted["usage"]["cache_read_input_tokens"]
        assert message.usage.output_tokens == wanted["usage"]["output_tokens"]


def _content(message: Message) -> list[dict[str, Any]]:
    members = {"text": ("type", "text"), "thinking": ("type", "thinking", "signature")}
    tool = ("type", "id", "name", "input", "caller")
    return [
        {key: block.to_dict()[key] for key in members.get(block.type, tool)}
        for block in message.content
    ]


@beta_async_tool
async def look(at: int) -> str:
    """Looks.

    Args:
        at: where
    """
    return f"seen {at}"


async def test_tool_runner_sends_the_history_after_a_refused_thread() -> None:
    scripts: list[list[Step]] = [
        [[*reasoning(0, "so"), *call(1, "look", '{"at": 3}', call_id="call_1"), finish(2)]],
        [[*text(0, "All seen."), finish(1)]],
    ]
    gateway = FakeGateway(lambda: scripts.pop(0))
    async with serving(gateway) as served, client(served) as sdk:
        runner = sdk.beta.messages.tool_runner(
            model=MODEL, max_tokens=99, messages=HI, tools=[look]
        )
        last = await runner.until_done()
    assert last.content[0].to_dict()["text"] == "All seen."
    assert [message.role for message in gateway.turns[1].conversation.messages] == [
        "user",
        "assistant",
        "tool",
    ]
    (_, assistant, tool) = gateway.turns[1].conversation.messages
    assert isinstance(assistant.parts[0], Reasoning)
    assert assistant.parts[0] == Reasoning("so", "c2VhbA")
    assert isinstance(assistant.parts[1], Call)
    assert json.loads(assistant.parts[1].arguments) == {"at": 3}
    assert isinstance(tool.parts[0], Result)


async def test_errors_are_raised_as_the_sdks_classes() -> None:
    gateway = FakeGateway()
    async with serving(gateway) as served, client(served) as sdk:
        with pytest.raises(anthropic.NotFoundError) as unknown:
            await sdk.messages.create(model="nobody", max_tokens=1, messages=HI)
        assert unknown.value.body == {
            "type": "error",
            "error": {"type": "not_found_error", "message": "model: nobody"},
            "request_id": unknown.value.request_id,
        }
        assert str(unknown.value.request_id).startswith("req_")
        with pytest.raises(anthropic.BadRequestError, match="at least one message"):
            await sdk.messages.create(model=MODEL, max_tokens=1, messages=[])
        gateway.refusal = Overloaded("every worker is busy", retry_after_s=2.0)
        with pytest.raises(anthropic.InternalServerError) as busy:
            await sdk.messages.create(model=MODEL, max_tokens=1, messages=HI)
        assert busy.value.status_code == 529
        assert busy.value.response.headers["retry-after"] == "2"
        gateway.refusal = EngineFailed("out of memory")
        with pytest.raises(anthropic.InternalServerError, match="out of memory"):
            await sdk.messages.create(model=MODEL, max_tokens=1, messages=HI, stream=True)


async def test_error_in_mid_stream_is_raised() -> None:
    steps: list[Step] = [
        [*text(0, "half")],
        [Failed(ErrorInfo(ErrorKind.ENGINE, "the engine failed"))],
    ]
    events: list[str] = []

    async def read() -> None:
        async for event in await sdk.messages.create(
            model=MODEL, max_tokens=9, messages=HI, stream=True
        ):
            events.append(event.type)

    async with serving(FakeGateway(lambda: steps)) as served, client(served) as sdk:
        with pytest.raises(anthropic.APIStatusError, match="the engine failed"):
            await read()
    assert events[0] == "message_start"
    assert "message_delta" not in events


async def test_sdk_counts_tokens_and_lists_models() -> None:
    gateway = FakeGateway()
    async with serving(gateway) as served, client(served) as sdk:
        counted = await sdk.messages.count_tokens(
            model="claude-alias", messages=HI, system="be brief"
        )
        assert counted.input_tokens == 4321
        assert gateway.counted[0].model == MODEL
        assert gateway.counted[0].system[0].text == "be brief"
        listed = [model async for model in sdk.models.list()]
        assert [model.id for model in listed] == [MODEL, "claude-alias"]
        assert listed[0].max_input_tokens == 131072
        assert (await sdk.models.retrieve(MODEL)).id == MODEL
        assert (await sdk.models.retrieve("claude-alias")).id == "claude-alias"
        with pytest.raises(anthropic.NotFoundError):
            await sdk.models.retrieve("nobody")


async def test_openai_sdk_lists_models() -> None:
    async with serving() as served, aiohttp.ClientSession(served.url) as http:
        document = await (await http.get("/v1/models")).json()
    assert document["object"] == "list"
    for model in document["data"]:
        assert model["object"] == "model"
        assert isinstance(model["created"], int)
        assert isinstance(model["owned_by"], str)
