"""Tests the APIs with the vendors' SDKs, with strict parsing, over a real socket."""

from typing import TYPE_CHECKING, Any

import pytest

from schemas.errors import ContextOverflow, EngineFailed, Overloaded
from services.preprocessor.output_settings import limit_output
from tests.kit.bodies import MODEL, chat_tool
from tests.kit.events import call, finish, reasoning, text
from tests.kit.frontend import FakeGateway, Served, in_turn, serving

if TYPE_CHECKING:
    from anthropic import AsyncAnthropic
    from openai import AsyncOpenAI

HI: Any = [{"role": "user", "content": "hi"}]
ASK: Any = {"model": MODEL, "max_tokens": 99, "messages": HI}


def anthropic_client(served: Served) -> "AsyncAnthropic":
    from anthropic import AsyncAnthropic

    return AsyncAnthropic(
        base_url=served.url, api_key="k", max_retries=0, _strict_response_validation=True
    )


async def test_errors_are_raised_as_anthropics_classes() -> None:
    import anthropic

    gateway = FakeGateway()
    async with serving(gateway) as served, anthropic_client(served) as sdk:
        with pytest.raises(anthropic.NotFoundError) as unknown:
            await sdk.messages.create(**ASK | {"model": "nobody"})
        assert unknown.value.body == {
            "type": "error",
            "error": {
                "type": "not_found_error",
                "message": f"model: nobody. Served models: {MODEL}",
            },
            "request_id": unknown.value.request_id,
        }
        assert str(unknown.value.request_id).startswith("req_")
        with pytest.raises(anthropic.BadRequestError, match="at least one message"):
            await sdk.messages.create(**ASK | {"messages": []})
        gateway.refusal = Overloaded("every worker is busy", retry_after_s=2.0)
        with pytest.raises(anthropic.InternalServerError) as busy:
            await sdk.messages.create(**ASK)
        assert busy.value.status_code == 529
        assert busy.value.response.headers["retry-after"] == "2"
        gateway.refusal = EngineFailed("out of memory")
        with pytest.raises(anthropic.InternalServerError, match="out of memory"):
            await sdk.messages.create(**ASK, stream=True)


ASK_CHAT: Any = {"model": MODEL, "messages": HI}


def openai_client(served: Served) -> "AsyncOpenAI":
    from openai import AsyncOpenAI

    return AsyncOpenAI(
        base_url=f"{served.url}/v1", api_key="k", max_retries=0, _strict_response_validation=True
    )


async def test_stream_helper_completes_a_tool_loop() -> None:
    looks = [*call(1, "look", '{"at": 3}', call_id="a"), *call(2, "look", "{}", call_id="b")]
    said = [*text(0, "All "), *text(1, "seen."), finish(2)]
    gateway = in_turn([*reasoning(0, "so"), *looks, finish(3)], said)
    messages = list(HI)
    asked: Any = {"model": MODEL, "messages": messages, "tools": [chat_tool("look")]}
    headers = {"x-turnwire-tool-dispatch": "1", "x-turnwire-reasoning-dispatch": "1"}
    async with serving(gateway) as served, openai_client(served) as sdk:
        async with sdk.chat.completions.stream(**asked, extra_headers=headers) as stream:
            kinds = [event.type async for event in stream]
            message = (await stream.get_final_completion()).choices[0].message
        assert kinds.count("tool_calls.function.arguments.done") == 2
        messages.append(message.to_dict())
        messages += [
            {"role": "tool", "tool_call_id": each.id, "content": "seen"}
            for each in message.tool_calls or []
        ]
        async with sdk.chat.completions.stream(**asked) as stream:
            final = await stream.get_final_completion()
    assert final.choices[0].message.content == "All seen."
    result = gateway.conversations[1].messages
    assert [turn.role for turn in result] == ["user", "assistant", "tool"]
    assert [type(part).__name__ for part in result[1].parts] == ["Reasoning", "Call", "Call"]


async def test_errors_are_raised_as_openais_classes() -> None:
    import openai

    gateway = FakeGateway()
    async with serving(gateway) as served, openai_client(served) as sdk:
        with pytest.raises(openai.NotFoundError) as unknown:
            await sdk.chat.completions.create(**ASK_CHAT | {"model": "nobody"})
        assert (unknown.value.code, unknown.value.param) == ("model_not_found", "model")
        assert str(unknown.value.request_id).startswith("req_")
        gateway.refusal = Overloaded("every worker is busy", retry_after_s=2.0)
        with pytest.raises(openai.InternalServerError) as busy:
            await sdk.chat.completions.create(**ASK_CHAT)
        assert busy.value.response.headers["retry-after"] == "2"
        gateway.refusal = EngineFailed("out of memory")
        with pytest.raises(openai.InternalServerError, match="out of memory"):
            await sdk.completions.create(model=MODEL, prompt="a", stream=True)


@pytest.mark.parametrize(
    ("requested", "total", "completion"), [(4096, 134_396, 4096), (None, 131_324, 1024)]
)
async def test_context_overflow_has_the_wording_that_agents_parse(
    requested: int | None, total: int, completion: int
) -> None:
    with pytest.raises(ContextOverflow) as caught:
        limit_output(130_300, requested, 131_072)
    gateway = FakeGateway()
    gateway.refusal = caught.value
    async with serving(gateway) as served:
        reply = await served.post("/v1/chat/completions", ASK_CHAT)
    assert (reply.status, reply.json["error"]["code"]) == (400, "context_length_exceeded")
    assert reply.json["error"]["message"] == (
        f"This model's maximum context length is 131072 tokens. However, you requested {total} tokens "
        f"(130300 in the messages, {completion} in the completion). Please reduce the length of the messages or completion."
    )
