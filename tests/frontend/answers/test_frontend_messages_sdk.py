"""Tests the Messages API with the Anthropic SDK, with strict parsing, over a real socket."""

import json
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from schemas.conversation import Call, Reasoning, Result
from schemas.errors import EngineFailed, Overloaded
from schemas.events import FinishReason
from tests.kit.events import Step, call, finish, one_by_one, reasoning, text
from tests.kit.every import Cases
from tests.kit.frontend import MODEL, FakeGateway, Served, serving

if TYPE_CHECKING:
    from anthropic import AsyncAnthropic
    from anthropic.types import Message

HI: Any = [{"role": "user", "content": "hi"}]
ASK: Any = {"model": MODEL, "max_tokens": 99, "messages": HI}


def client(served: Served, *, strict: bool = True) -> "AsyncAnthropic":
    from anthropic import AsyncAnthropic

    return AsyncAnthropic(
        base_url=served.url, api_key="k", max_retries=0, _strict_response_validation=strict
    )


def calls(message: "Message") -> list[dict[str, Any]]:
    return [block.to_dict() for block in message.content if block.type == "tool_use"]


CUT: list[tuple[str, dict[str, Any]]] = [
    ("", {}),
    ('{"path": "/a", "old": "x, \\"y', {"path": "/a"}),
    ('{"at": {"x": 1}, "of": [1, {"y": 2}, 3', {"at": {"x": 1}}),
    ('{"lines": 12', {}),
    ('{"path": "/a", "old"', {"path": "/a"}),
    ('{"path": "/a"}', {"path": "/a"}),
]
"""Arguments of a call that was cut, and the part that a document has of them."""


async def test_sdk_receives_a_cut_call_equally_from_stream_and_document(cases: Cases) -> None:
    gateway = FakeGateway()
    async with serving(gateway) as served, client(served, strict=False) as sdk:
        for arguments, kept in CUT:
            cut = call(1, "edit", arguments, call_id="toolu_1", complete=False)
            turn = [*text(0, "Now."), *cut, finish(2, FinishReason.LENGTH)]
            gateway.steps = partial(one_by_one, turn)
            with cases.case(arguments):
                async with sdk.messages.stream(**ASK) as stream:
                    streamed = await stream.get_final_message()
                whole = await sdk.messages.create(**ASK)
                for message in (whole, streamed):
                    assert message.stop_reason == "max_tokens"
                    assert [block.type for block in message.content] == ["text", "tool_use"]
                block, other = (calls(message)[0] for message in (whole, streamed))
                assert block["input"] == kept
                assert (block["id"], block["name"]) == (other["id"], other["name"])
                assert kept.items() <= other["input"].items()


async def test_tool_runner_sends_the_history_after_a_refused_thread() -> None:
    from anthropic import beta_async_tool

    @beta_async_tool
    async def look(at: int) -> str:
        """Looks.

        Args:
            at: where
        """
        return f"seen {at}"

    scripts: list[list[Step]] = [
        [[*reasoning(0, "so"), *call(1, "look", '{"at": 3}', call_id="call_1"), finish(2)]],
        [[*text(0, "All seen."), finish(1)]],
    ]
    gateway = FakeGateway(lambda: scripts.pop(0))
    async with serving(gateway) as served, client(served) as sdk:
        last = await sdk.beta.messages.tool_runner(**ASK, tools=[look]).until_done()
    assert last.content[0].to_dict()["text"] == "All seen."
    messages = gateway.turns[1].conversation.messages
    assert [message.role for message in messages] == ["user", "assistant", "tool"]
    thought, asked = messages[1].parts
    assert thought == Reasoning("so", "c2VhbA")
    assert isinstance(asked, Call)
    assert json.loads(asked.arguments) == {"at": 3}
    assert isinstance(messages[2].parts[0], Result)


async def test_errors_are_raised_as_the_sdks_classes() -> None:
    import anthropic

    gateway = FakeGateway()
    async with serving(gateway) as served, client(served) as sdk:
        with pytest.raises(anthropic.NotFoundError) as unknown:
            await sdk.messages.create(**ASK | {"model": "nobody"})
        assert unknown.value.body == {
            "type": "error",
            "error": {"type": "not_found_error", "message": "model: nobody"},
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
