"""Tests `/v1/responses` over HTTP: continuing, counting, truncating, and large requests."""

import threading
from pathlib import Path
from typing import Any

import pytest

from schemas.conversation import Reasoning, Result
from schemas.errors import ContextOverflow
from services.frontend.apis.responses.request import Responses, ResponsesRequest
from services.runtime.config.frontend import FrontendConfig
from tests.frontend.responses.responses_client import ANSWER, Client, agent, keyed, said, types
from tests.kit.bodies import MODEL, block, function_call, function_output, message, user
from tests.kit.every import Cases
from tests.kit.frontend import FakeGateway, FakeTurn, Served, serving

PNG = "data:image/png;base64,iVBORw0KGgo="


@pytest.fixture
def gateway() -> FakeGateway:
    return FakeGateway(agent)


async def test_chain_gives_the_whole_conversation(served: Served, client: Client) -> None:
    first = await client.create(input="one", instructions="be brief")
    output = function_output()
    second = await client.create(previous_response_id=first["id"], input=[output])
    await client.create(previous_response_id=second["id"], input="three", instructions="be long")
    chained = served.gateway.conversations[-1]
    everything = [user("one"), *first["output"], output, *second["output"], user("three")]
    await client.create(input=everything, instructions="be long", store=False)
    sent_whole = served.gateway.conversations[-1]
    assert chained.messages == sent_whole.messages
    assert said(chained)[0] == ("user", ["one"])
    assert [segment.text for segment in chained.system] == ["be long"]
    assert isinstance(chained.messages[1].parts[0], Reasoning)
    assert isinstance(chained.messages[2].parts[0], Result)


async def test_output_that_names_no_call_is_accepted_in_a_chain_too(client: Client) -> None:
    call = block("local_shell_call", id="l", call_id="c", action=block("exec", command=["ls"]))
    made = await client.create(input=[call, block("local_shell_call_output", output="x")])
    await client.create(previous_response_id=made["id"], input="two")


async def test_chain_is_no_larger_than_a_body_may_be() -> None:
    async with serving(config=FrontendConfig(max_body_bytes=4096)) as served:
        client = Client(served)
        made = await client.create(input="x" * 3000)
        longer = await client.create(input="x" * 3000, previous_response_id=made["id"])
        for path in ("", "/input_tokens", "/compact"):
            error = await client.refuse(path, 413, previous_response_id=longer["id"])
            assert (error["code"], error["param"]) == ("request_too_large", "previous_response_id")


OF_ONE = [("GET", ""), ("DELETE", ""), ("GET", "/input_items"), ("POST", "/cancel")]
"""The requests about one response."""


async def test_deleted_response_is_not_found(client: Client) -> None:
    first = await client.create()
    second = await client.create(previous_response_id=first["id"])
    deleted = {"id": first["id"], "object": "response", "deleted": True}
    assert await client.ask("DELETE", f"/{first['id']}") == deleted
    for method, path in OF_ONE:
        await client.refused(method, f"/{first['id']}{path}", 404)
    error = await client.refuse(previous_response_id=second["id"])
    assert error["code"] == "previous_response_not_found"
    items = await client.get(second["id"], "/input_items")
    assert len(items["data"]) == 1


async def test_input_items_are_listed_with_the_chain_before_them(client: Client) -> None:
    first = await client.create(input="one")
    image = {"type": "input_image", "image_url": PNG, "detail": "auto"}
    parts = [{"type": "input_text", "text": "two"}, image]
    question = [{"role": "user", "content": parts}]
    second = await client.create(previous_response_id=first["id"], input=question)
    listed = (await client.get(second["id"], "/input_items?order=asc"))["data"]
    assert types(listed) == ["message", *ANSWER, "message"]
    assert listed[0]["content"] == [{"type": "input_text", "text": "one"}]
    assert listed[1:4] == first["output"]
    assert listed[4]["content"] == parts
    ids = [item["id"] for item in listed]
    assert len(set(ids)) == 5
    page = await client.get(second["id"], f"/input_items?limit=2&after={ids[4]}")
    assert [item["id"] for item in page["data"]] == ids[3:1:-1]
    assert (page["first_id"], page["last_id"], page["has_more"]) == (ids[3], ids[2], True)
    page = await client.get(second["id"], f"/input_items?order=asc&after={ids[3]}")
    assert ([item["id"] for item in page["data"]], page["has_more"]) == (ids[4:], False)
    for query, param in (("limit=101", "limit"), ("after=nothing", "after")):
        error = await client.refused("GET", f"/{second['id']}/input_items?{query}")
        assert error["param"] == param, query


async def test_each_key_has_its_own_store(tmp_path: Path) -> None:
    async with serving(FakeGateway(agent), keyed(tmp_path, "ada", "bob")) as served:
        ada, bob = (Client(served, name) for name in ("ada", "bob"))
        made = await ada.create()
        assert (await ada.get(made["id"]))["id"] == made["id"]
        for method, path in OF_ONE:
            await bob.refused(method, f"/{made['id']}{path}", 404)
        error = await bob.refuse(previous_response_id=made["id"])
        assert error["code"] == "previous_response_not_found"
        reference = {"type": "item_reference", "id": made["output"][1]["id"]}
        await bob.refuse(status=404, input=[reference])
        await ada.create(input=[reference, user("go")])
        read = said(served.gateway.conversations[-1])
        assert read == [("assistant", ["Let me see."]), ("user", ["go"])]
        error = await ada.refuse(status=404, input=[{"id": "msg_nothing"}])
        assert error["message"] == "Item with id 'msg_nothing' not found."


FOREIGN = {"type": "compaction", "encrypted_content": "bm90IG91cnM"}
UNSUPPORTED: dict[str, dict[str, Any]] = {
    "conversation": {"conversation": "conv_1"},
    "prompt": {"prompt": {"id": "pmpt_1"}},
    "previous_response_id": {"previous_response_id": "resp_none"},
    "input[0].encrypted_content": {"input": [FOREIGN]},
}


@pytest.mark.parametrize("path", ["", "/input_tokens", "/compact"])
async def test_unsupported_request_is_refused(client: Client, path: str, cases: Cases) -> None:
    for param, body in UNSUPPORTED.items():
        with cases.case(param):
            error = await client.refuse(path, **body)
            assert (error["type"], error["param"]) == ("invalid_request_error", param)


async def test_counted_tokens_equal_the_prompts_tokens(
    gateway: FakeGateway, client: Client
) -> None:
    first = await client.create(input="one")
    body = {"model": MODEL, "input": "two", "previous_response_id": first["id"]}
    counted = await client.ask("POST", "/input_tokens", json=body)
    assert counted == {"object": "response.input_tokens", "input_tokens": 4321}
    await client.create(**body)
    assert gateway.counted[-1].messages == gateway.conversations[-1].messages


def window(room: int) -> FakeGateway:
    """Its model has a context window for `room` messages."""

    async def check_size(turn: FakeTurn) -> None:
        size = len(turn.conversation.messages)
        if size > room:
            details = {"prompt_tokens": size, "max_prompt_tokens": room}
            code = "context_length_exceeded"
            raise ContextOverflow("prompt is too long", code=code, details=details)

    return FakeGateway(agent, on_turn=check_size, size=lambda asked: len(asked.messages))


def long_session(exchanges: int) -> list[dict[str, Any]]:
    items = [message("developer", "rules"), user("question")]
    for number in range(exchanges):
        items += [function_call(f"call_{number}"), function_output(f"call_{number}")]
    return items


async def test_truncation_drops_the_oldest_messages_and_keeps_the_question() -> None:
    async with serving(window(room=4)) as served:
        client = Client(served)
        made = await client.create(input=long_session(20), truncation="auto")
        assert made["status"] == "completed"
        read = served.gateway.conversations[-1]
        kept = [
            ("developer", "rules"),
            ("user", "question"),
            ("assistant", "look"),
            ("tool", "look"),
        ]
        assert said(read) == [(role, [text]) for role, text in kept]
        assert len(served.gateway.counted) < 8
        result = read.messages[-1].parts[0]
        assert isinstance(result, Result)
        assert result.call_id == "call_19"
        # The stored input is as the client sent it.
        assert len((await client.get(made["id"], "/input_items?limit=100"))["data"]) == 42


async def test_overflow_that_truncation_cannot_help_is_an_error() -> None:
    async with serving(window(room=2)) as served:
        client = Client(served)
        for fields in (
            {"input": long_session(3)},
            {"input": long_session(1), "truncation": "auto"},
        ):
            assert (await client.refuse(**fields))["code"] == "context_length_exceeded"


async def test_large_request_and_long_chain_are_converted_in_a_thread(
    served: Served, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A request with 100,000 items does not delay other streams."""
    on_loop: list[bool] = []
    convert = Responses.convert

    def watched(*args: Any, **options: Any) -> ResponsesRequest:
        on_loop.append(threading.current_thread() is threading.main_thread())
        return convert(*args, **options)

    monkeypatch.setattr(Responses, "convert", watched)
    await client.create()
    long = await client.create(input=[{"role": "user", "content": "x" * 100}] * 6000)
    await client.create(previous_response_id=long["id"])
    body = {"model": MODEL, "previous_response_id": long["id"]}
    await client.ask("POST", "/input_tokens", json=body)
    assert on_loop == [True, False, False, False]


async def test_missing_name_is_replaced_by_the_served_model(served: Served, client: Client) -> None:
    served.gateway.any_model = True
    made = await client.ask("POST", json={"input": "hi"})
    assert made["model"] == MODEL
