"""Tests `/v1/responses` over HTTP: storing, continuing, counting, compacting and truncating."""

import asyncio
import hashlib
import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import ClientSession

from schemas.control import ModelCard
from schemas.conversation import Conversation, Reasoning, Result
from schemas.errors import ContextOverflow, EngineFailed, ErrorInfo, ErrorKind, Overloaded
from schemas.events import Failed, FinishReason
from services.frontend.apis.responses import wire
from services.frontend.turns.interfaces import Admitted, TurnSink
from services.frontend.turns.notice import make_notice
from services.runtime.config import FrontendConfig
from services.runtime.storage.seal import Sealer
from tests.frontend.responses.responses_client import Client, said
from tests.kit.events import Step, call, finish, reasoning, text
from tests.kit.frontend import MODEL, FakeGateway, FakeTurn, Served, serving

PNG = "data:image/png;base64,iVBORw0KGgo="


def agent() -> list[Step]:
    return [
        [
            *reasoning(0, "I look."),
            *text(1, "Let me see."),
            *call(2, "look", '{"at": "it"}', call_id="call_1"),
            finish(3),
        ]
    ]


@pytest.fixture
async def served() -> AsyncIterator[Served]:
    async with serving(FakeGateway(agent)) as running:
        yield running


@pytest.fixture
async def client(served: Served) -> AsyncIterator[Client]:
    async with ClientSession() as http:
        yield Client(http, served)


async def test_response_is_stored_as_it_was_sent(client: Client) -> None:
    made = await client.create(metadata={"a": "b"})
    assert made["status"] == "completed"
    assert [item["type"] for item in made["output"]] == ["reasoning", "message", "function_call"]
    assert await client.ask("GET", f"/{made['id']}") == made


async def test_streamed_response_is_stored_and_replayed_from_any_event(client: Client) -> None:
    events = await client.stream()
    made = events[-1]["response"]
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    assert await client.ask("GET", f"/{made['id']}") == made
    assert await client.stream("GET", f"/{made['id']}?stream=true") == events
    for after in (0, 5, len(events) - 1, len(events) + 7):
        path = f"/{made['id']}?stream=true&starting_after={after}"
        assert await client.stream("GET", path) == events[after + 1 :]
    error = await client.refused("GET", f"/{made['id']}?stream=true&starting_after=-1")
    assert error["param"] == "starting_after"


async def test_response_that_was_not_streamed_has_no_stream(client: Client) -> None:
    made = await client.create()
    assert (await client.refused("GET", f"/{made['id']}?stream=true"))["param"] == "stream"


async def test_store_false_stores_nothing(client: Client) -> None:
    whole = await client.create(store=False)
    streamed = (await client.stream(store=False))[-1]["response"]
    for made in (whole, streamed):
        assert made["store"] is False
        error = await client.refused("GET", f"/{made['id']}", 404)
        assert error["message"] == f"Response with id '{made['id']}' not found."
        error = await client.refused(
            "POST", json={"model": MODEL, "input": "x", "previous_response_id": made["id"]}
        )
        assert (error["code"], error["param"]) == (
            "previous_response_not_found",
            "previous_response_id",
        )


async def test_response_is_stored_before_its_end_is_sent(served: Served) -> None:
    """A client may continue from a response as soon as it receives `response.completed`."""
    found: list[bool] = []

    async with (
        ClientSession() as http,
        http.post(
            served.url + "/v1/responses", json={"model": MODEL, "input": "hi", "stream": True}
        ) as response,
    ):
        async for line in response.content:
            if line.startswith(b"data: {"):
                event = json.loads(line[6:])
                if event["type"] == "response.completed":
                    found.append(
                        await served.responses.store.get(event["response"]["id"], None) is not None
                    )
    assert found == [True]


async def test_chain_gives_the_whole_conversation(served: Served, client: Client) -> None:
    first = await client.create(input="one", instructions="be brief")
    output = {"type": "function_call_output", "call_id": "call_1", "output": "seen"}
    second = await client.create(previous_response_id=first["id"], input=[output])
    await client.create(previous_response_id=second["id"], input="three", instructions="be long")
    chained = served.gateway.turns[-1].conversation
    everything = [
        {"role": "user", "content": "one"},
        *first["output"],
        output,
        *second["output"],
        {"role": "user", "content": "three"},
    ]
    await client.create(input=everything, instructions="be long", store=False)
    sent_whole = served.gateway.turns[-1].conversation
    assert chained.messages == sent_whole.messages
    assert said(chained)[0] == ("user", ["one"])
    assert [segment.text for segment in chained.system] == ["be long"]
    assert isinstance(chained.messages[1].parts[0], Reasoning)
    assert isinstance(chained.messages[2].parts[0], Result)


async def test_deleted_response_is_not_found(client: Client) -> None:
    first = await client.create()
    second = await client.create(previous_response_id=first["id"])
    assert await client.ask("DELETE", f"/{first['id']}") == {
        "id": first["id"],
        "object": "response",
        "deleted": True,
    }
    for method, path in (("GET", ""), ("DELETE", ""), ("GET", "/input_items"), ("POST", "/cancel")):
        await client.refused(method, f"/{first['id']}{path}", 404)
    error = await client.refused(
        "POST", json={"model": MODEL, "input": "x", "previous_response_id": second["id"]}
    )
    assert error["code"] == "previous_response_not_found"
    items = await client.ask("GET", f"/{second['id']}/input_items")
    assert len(items["data"]) == 1


async def test_input_items_are_listed_with_the_chain_before_them(client: Client) -> None:
    first = await client.create(input="one")
    parts = [
        {"type": "input_text", "text": "two"},
        {"type": "input_image", "image_url": PNG, "detail": "auto"},
    ]
    second = await client.create(
        previous_response_id=first["id"], input=[{"role": "user", "content": parts}]
    )
    listed = await client.ask("GET", f"/{second['id']}/input_items?order=asc")
    types = ["message", "reasoning", "message", "function_call", "message"]
    assert [item["type"] for item in listed["data"]] == types
    assert listed["data"][0]["content"] == [{"type": "input_text", "text": "one"}]
    assert listed["data"][1:4] == first["output"]
    assert listed["data"][4]["content"] == parts
    assert len({item["id"] for item in listed["data"]}) == 5
    page = await client.ask(
        "GET", f"/{second['id']}/input_items?limit=2&after={listed['data'][4]['id']}"
    )
    assert [item["id"] for item in page["data"]] == [item["id"] for item in listed["data"][3:1:-1]]
    assert page["has_more"] is True
    assert (await client.refused("GET", f"/{second['id']}/input_items?limit=101"))[
        "param"
    ] == "limit"


async def test_item_references_are_resolved(served: Served, client: Client) -> None:
    first = await client.create(input="one")
    message = first["output"][1]["id"]
    second = await client.create(
        input=[{"type": "item_reference", "id": message}, {"role": "user", "content": "go"}]
    )
    assert said(served.gateway.turns[-1].conversation) == [
        ("assistant", ["Let me see."]),
        ("user", ["go"]),
    ]
    listed = await client.ask("GET", f"/{second['id']}/input_items?order=asc")
    assert listed["data"][0] == first["output"][1]
    error = await client.refused(
        "POST", status=404, json={"model": MODEL, "input": [{"id": "msg_nothing"}]}
    )
    assert error["message"] == "Item with id 'msg_nothing' not found."


async def test_each_key_has_its_own_store(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text(
        "".join(f"{name}:{hashlib.sha256(name.encode()).hexdigest()}\n" for name in ("ada", "bob"))
    )
    config = FrontendConfig(api_keys_file=str(keys))
    async with serving(FakeGateway(agent), config) as served, ClientSession() as http:
        ada, bob = Client(http, served, "ada"), Client(http, served, "bob")
        made = await ada.create()
        assert (await ada.ask("GET", f"/{made['id']}"))["id"] == made["id"]
        for method, path in (
            ("GET", ""),
            ("DELETE", ""),
            ("GET", "/input_items"),
            ("POST", "/cancel"),
        ):
            await bob.refused(method, f"/{made['id']}{path}", 404)
        error = await bob.refused(
            "POST", json={"model": MODEL, "input": "x", "previous_response_id": made["id"]}
        )
        assert error["code"] == "previous_response_not_found"
        reference = [{"type": "item_reference", "id": made["output"][1]["id"]}]
        await bob.refused("POST", status=404, json={"model": MODEL, "input": reference})
        await ada.create(input=[*reference, {"role": "user", "content": "go"}])


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"conversation": "conv_1"}, "conversation"),
        ({"prompt": {"id": "pmpt_1"}}, "prompt"),
        ({"background": True, "store": False}, "background"),
        ({"previous_response_id": "resp_none"}, "previous_response_id"),
        (
            {"input": [{"type": "compaction", "encrypted_content": "bm90IG91cnM"}]},
            "input[0].encrypted_content",
        ),
    ],
)
async def test_unsupported_request_is_refused(
    client: Client, body: dict[str, Any], param: str
) -> None:
    for path in ("", "/input_tokens", "/compact"):
        error = await client.refused("POST", path, json={"model": MODEL, "input": "hi"} | body)
        assert (error["type"], error["param"]) == ("invalid_request_error", param)


VALUES: tuple[Any, ...] = (
    "x",
    "",
    -1,
    0,
    2,
    1e9,
    0.5,
    True,
    False,
    [],
    ["x"],
    [{}],
    {},
    {"id": "x"},
    {"type": "x"},
    [{"type": "x"}],
)


@pytest.mark.parametrize(
    "name",
    [*wire.ResponsesBody.__struct_fields__, "personality", "messages", "n", "response_format"],
)
async def test_field_that_create_refuses_is_refused_wherever_the_body_is_read(
    client: Client, name: str
) -> None:
    for value in VALUES:
        answers = []
        for path in ("", "/input_tokens", "/compact"):
            body = {"model": MODEL, "input": "hi", name: value}
            async with ClientSession() as http, http.post(client.url + path, json=body) as reply:
                answers.append(
                    (reply.status, (await reply.json())["error"] if reply.status != 200 else None)
                )
        assert [answer for answer in answers if answer != answers[0]] == [], value


@pytest.mark.parametrize(
    "body", [b"", b"{", b"[]", b'"x"', b'{"input": 7}', b"\xff\xfe", b"[" * 100_000]
)
async def test_malformed_request_is_refused(client: Client, body: bytes) -> None:
    for path in ("", "/input_tokens", "/compact"):
        assert (await client.refused("POST", path, data=body))["type"] == "invalid_request_error"
    await client.create()


async def test_incomplete_and_failed_responses_are_stored() -> None:
    endings: list[list[Step]] = [
        [[*text(0, "So far"), finish(1, FinishReason.LENGTH)]],
        [[*text(0, "So far")], [Failed(ErrorInfo(ErrorKind.ENGINE, "The engine failed."))]],
    ]
    async with serving(FakeGateway(lambda: endings.pop(0))) as served, ClientSession() as http:
        client = Client(http, served)
        cut = (await client.stream())[-1]
        assert (cut["type"], cut["response"]["status"]) == ("response.incomplete", "incomplete")
        assert await client.ask("GET", f"/{cut['response']['id']}") == cut["response"]
        failed = (await client.stream())[-1]
        assert (failed["type"], failed["response"]["status"]) == ("response.failed", "failed")
        assert await client.ask("GET", f"/{failed['response']['id']}") == failed["response"]


async def test_response_is_not_stored_after_a_hangup() -> None:
    never = asyncio.Event()
    async with serving(FakeGateway(lambda: [[*text(0, "So far")], never])) as served:
        async with (
            ClientSession() as http,
            http.post(
                served.url + "/v1/responses", json={"model": MODEL, "input": "hi", "stream": True}
            ) as response,
        ):
            await response.content.readuntil(b"response.output_text.delta")
        turn = served.gateway.turns[0]
        await asyncio.wait_for(turn.cancel_seen.wait(), 60)
        assert await served.responses.store.get(f"resp_{turn.id}", None) is None


async def test_counted_tokens_equal_the_prompts_tokens(served: Served, client: Client) -> None:
    first = await client.create(input="one")
    counted = await client.ask(
        "POST",
        "/input_tokens",
        json={"model": MODEL, "input": "two", "previous_response_id": first["id"]},
    )
    assert counted == {"object": "response.input_tokens", "input_tokens": 4321}
    await client.create(previous_response_id=first["id"], input="two")
    assert served.gateway.counted[-1].messages == served.gateway.turns[-1].conversation.messages
    error = await client.refused("POST", "/input_tokens", 404, json={"model": "none", "input": "x"})
    assert error["code"] == "model_not_found"


class Window(FakeGateway):
    """Has a context window for `room` messages."""

    room = 4

    async def open(self, admitted: Admitted, sink: TurnSink, *, turn_id: str) -> FakeTurn:
        size = len(admitted.conversation.messages)
        if size > self.room:
            details = {"prompt_tokens": size, "max_prompt_tokens": self.room}
            raise ContextOverflow(
                "prompt is too long", code="context_length_exceeded", details=details
            )
        return await super().open(admitted, sink, turn_id=turn_id)

    async def count(self, admitted: Admitted) -> int:
        self.counted.append(admitted.conversation)
        return len(admitted.conversation.messages)


def long_session(exchanges: int) -> list[dict[str, Any]]:
    items: list[dict[str, Any]] = [
        {"role": "developer", "content": "rules"},
        {"role": "user", "content": "question"},
    ]
    for number in range(exchanges):
        name = f"call_{number}"
        items += [
            {"type": "function_call", "call_id": name, "name": "look", "arguments": "{}"},
            {"type": "function_call_output", "call_id": name, "output": f"result {number}"},
        ]
    return items


@pytest.mark.parametrize("stream", [False, True])
async def test_truncation_drops_the_oldest_messages_and_keeps_the_question(stream: bool) -> None:
    async with serving(Window(agent)) as served, ClientSession() as http:
        client = Client(http, served)
        body: dict[str, Any] = {"input": long_session(20), "truncation": "auto", "stream": stream}
        if stream:
            made = (await client.stream(**body))[-1]["response"]
        else:
            made = await client.create(**body)
        assert made["status"] == "completed"
        assert said(served.gateway.turns[-1].conversation) == [
            ("developer", ["rules"]),
            ("user", ["question"]),
            ("assistant", ["look"]),
            ("tool", ["look"]),
        ]
        assert len(served.gateway.counted) < 8
        result = served.gateway.turns[-1].conversation.messages[-1].parts[0]
        assert isinstance(result, Result)
        assert result.call_id == "call_19"
        # The stored input is as the client sent it.
        listed = await client.ask("GET", f"/{made['id']}/input_items?limit=100")
        assert len(listed["data"]) == 42


async def test_truncated_request_is_one_answer_with_its_notice() -> None:
    gateway = Window(lambda: [[*text(0, "Hello."), finish(1)]])
    async with serving(gateway) as served, ClientSession() as http:
        client = Client(http, served)
        image = {"type": "input_image", "image_url": "data:image/png;base64,AAAA"}
        items = [*long_session(20), {"role": "user", "content": [image]}]
        made = await client.create(input=items, truncation="auto")
        assert made["output"][0]["content"][0]["text"] == "Hello." + make_notice({"image"})
        count = served.registry.get_sample_value
        labels = {"model": MODEL, "dialect": "responses"}
        assert count("turnwire_requests_total", labels | {"outcome": "stop"}) == 1
        assert count("turnwire_requests_total", labels | {"outcome": "context_overflow"}) is None


async def test_overflow_without_truncation_is_an_error() -> None:
    async with serving(Window(agent)) as served, ClientSession() as http:
        client = Client(http, served)
        plain = await client.refused("POST", json={"model": MODEL, "input": long_session(3)})
        assert plain["code"] == "context_length_exceeded"
        Window.room = 2
        try:
            all_needed = {"model": MODEL, "input": long_session(1), "truncation": "auto"}
            assert (await client.refused("POST", json=all_needed))[
                "code"
            ] == "context_length_exceeded"
        finally:
            Window.room = 4


async def test_compacted_conversation_replaces_the_whole(served: Served, client: Client) -> None:
    served.gateway.steps = lambda: [
        [*reasoning(0, "Sum up."), *text(1, "They said one, then two."), finish(2)]
    ]
    session = [
        {"role": "user", "content": "one"},
        {"role": "assistant", "content": "Yes?"},
        {"role": "user", "content": "two"},
    ]
    compacted = await client.ask("POST", "/compact", json={"model": MODEL, "input": session})
    assert compacted["object"] == "response.compaction"
    assert [item["type"] for item in compacted["output"]] == ["message", "message", "compaction"]
    assert [item["content"][0]["text"] for item in compacted["output"][:2]] == ["one", "two"]
    assert "one, then two" not in compacted["output"][2]["encrypted_content"]
    assert compacted["usage"]["total_tokens"] == 730
    asked = served.gateway.turns[-1].conversation
    assert said(asked)[:3] == [("user", ["one"]), ("assistant", ["Yes?"]), ("user", ["two"])]
    assert asked.tool_choice.mode == "none"
    await client.create(input=[*compacted["output"], {"role": "user", "content": "three"}])
    replayed = said(served.gateway.turns[-1].conversation)
    assert [role for role, _ in replayed] == ["user"] * 4
    assert "They said one, then two." in replayed[2][1][0]


@pytest.mark.parametrize("path", ["/compact", "/input_tokens"])
async def test_names_of_chat_are_not_lost_silently(client: Client, path: str) -> None:
    body = {"model": MODEL, "messages": [{"role": "user", "content": "one"}]}
    refused = await client.ask("POST", path, json=body, status=400)
    assert refused["error"]["code"] == "unsupported_parameter"


async def test_compaction_trigger_makes_one_item_and_ends_the_chain(
    served: Served, client: Client
) -> None:
    first = await client.create(input="one")
    served.gateway.steps = lambda: [[*text(0, "All of it."), finish(1)]]
    trigger = [{"type": "compaction_trigger"}]
    events = await client.stream(previous_response_id=first["id"], input=trigger)
    done = [
        event["item"]["type"] for event in events if event["type"] == "response.output_item.done"
    ]
    assert done == ["compaction"]
    made = events[-1]["response"]
    assert [item["type"] for item in made["output"]] == ["compaction"]
    await client.ask("DELETE", f"/{first['id']}")
    await client.create(previous_response_id=made["id"], input="go on")
    (summary, going_on) = said(served.gateway.turns[-1].conversation)
    assert "All of it." in summary[1][0]
    assert going_on == ("user", ["go on"])


MANAGED = {"context_management": [{"type": "compaction", "compact_threshold": 4000}]}


@pytest.mark.parametrize("stream", [False, True])
async def test_context_over_its_threshold_is_compacted_before_the_answer(
    served: Served, client: Client, stream: bool
) -> None:
    first = await client.create(
        input=[{"role": "developer", "content": "rules"}, {"role": "user", "content": "one"}]
    )
    turns: Iterator[list[Step]] = iter(
        [[[*text(0, "They said one."), finish(1)]], agent(), agent()]
    )
    served.gateway.steps = lambda: next(turns)
    body = {"previous_response_id": first["id"], "input": "two", **MANAGED}
    if stream:
        events = await client.stream(**body)
        assert [event["sequence_number"] for event in events] == list(range(len(events)))
        added = [event for event in events if event["type"] == "response.output_item.added"]
        assert [(event["output_index"], event["item"]["type"]) for event in added] == [
            (0, "compaction"),
            (1, "reasoning"),
            (2, "message"),
            (3, "function_call"),
        ]
        made = events[-1]["response"]
    else:
        made = await client.create(**body)
    assert [item["type"] for item in made["output"]] == [
        "compaction",
        "reasoning",
        "message",
        "function_call",
    ]
    assert len({item["id"] for item in made["output"]}) == 4
    assert made["usage"]["total_tokens"] == 2 * 730
    summarizing, answering = (turn.conversation for turn in served.gateway.turns[-2:])
    assert [role for role, _ in said(summarizing)] == [
        "developer",
        "user",
        "assistant",
        "user",
        "user",
    ]
    roles = [role for role, _ in said(answering)]
    assert roles == ["developer", "user", "user"]
    assert "They said one." in said(answering)[1][1][0]
    assert said(answering)[2] == ("user", ["two"])
    # The chain continues from the summary, and so may the client.
    output = {"type": "function_call_output", "call_id": "call_1", "output": "seen"}
    await client.ask("DELETE", f"/{first['id']}")
    await client.create(previous_response_id=made["id"], input=[output])
    chained = served.gateway.turns[-1].conversation
    assert [role for role, _ in said(chained)] == ["developer", "user", "user", "assistant", "tool"]
    assert chained.messages[:3] == answering.messages


async def test_context_below_its_threshold_is_unchanged(served: Served, client: Client) -> None:
    below = {"context_management": [{"type": "compaction", "compact_threshold": 4322}]}
    made = await client.create(**below)
    assert [item["type"] for item in made["output"]] == ["reasoning", "message", "function_call"]
    assert len(served.gateway.turns) == 1
    for managed, param in (
        (7, "context_management[0]"),
        ({"type": "clear_something"}, "context_management[0].type"),
        ({"type": "compaction", "compact_threshold": 0}, "context_management[0].compact_threshold"),
    ):
        error = await client.refused(
            "POST", json={"model": MODEL, "input": "x", "context_management": [managed]}
        )
        assert error["param"] == param


async def test_context_that_cannot_be_compacted_is_an_error(served: Served, client: Client) -> None:
    served.gateway.steps = lambda: [[*reasoning(0, "Nothing."), finish(1)]]
    await client.refused("POST", status=500, json={"model": MODEL, "input": "x", **MANAGED})
    served.gateway.refusal = Overloaded("busy")
    await client.refused(
        "POST", status=503, json={"model": MODEL, "input": "x", "stream": True, **MANAGED}
    )


async def test_blob_of_another_deployment_is_refused(tmp_path: Path) -> None:
    blobs: list[str] = []
    for name in ("a", "b"):
        key = tmp_path / name
        key.write_text(name * 32)
        async with (
            serving(config=FrontendConfig(seal_key_file=str(key))) as served,
            ClientSession() as http,
        ):
            client = Client(http, served)
            for blob in blobs:
                item = {"type": "compaction", "encrypted_content": blob}
                error = await client.refused("POST", json={"model": MODEL, "input": [item]})
                assert error["code"] == "invalid_encrypted_content"
            compacted = await client.ask("POST", "/compact", json={"model": MODEL, "input": "hi"})
            blobs.append(compacted["output"][-1]["encrypted_content"])


async def test_blob_of_another_tenant_is_refused(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text(
        "".join(f"{name}:{hashlib.sha256(name.encode()).hexdigest()}\n" for name in ("red", "blue"))
    )
    async with (
        serving(config=FrontendConfig(api_keys_file=str(keys))) as served,
        ClientSession() as http,
    ):
        red, blue = Client(http, served), Client(http, served)
        red.headers, blue.headers = (
            {"authorization": f"Bearer {name}"} for name in ("red", "blue")
        )
        compacted = await red.ask("POST", "/compact", json={"model": MODEL, "input": "hi"})
        item = {
            "type": "compaction",
            "encrypted_content": compacted["output"][-1]["encrypted_content"],
        }
        body = {"model": MODEL, "input": [item, {"role": "user", "content": "hi"}]}
        error = await blue.refused("POST", json=body)
        assert error["code"] == "invalid_encrypted_content"
        await red.ask("POST", json=body)


async def test_missing_sealing_key_fails_the_start(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="nothing"):
        async with serving(config=FrontendConfig(seal_key_file=str(tmp_path / "nothing"))):
            pass


async def test_only_background_responses_can_be_cancelled(client: Client) -> None:
    made = await client.create()
    error = await client.refused("POST", f"/{made['id']}/cancel")
    assert error["message"] == "Cannot cancel a synchronous response."
    await client.refused("POST", "/resp_none/cancel", 404)


@pytest.mark.parametrize(
    ("error", "status"), [(EngineFailed("bad"), 500), (Overloaded("bad"), 503)]
)
async def test_turn_that_cannot_start_is_an_error_status(
    served: Served, client: Client, error: Any, status: int
) -> None:
    served.gateway.refusal = error
    await client.refused("POST", status=status, json={"model": MODEL, "input": "hi"})
    await client.refused("POST", "/compact", status, json={"model": MODEL, "input": "hi"})


async def test_compaction_without_a_summary_is_an_error(served: Served, client: Client) -> None:
    served.gateway.steps = lambda: [[*reasoning(0, "I have nothing to say."), finish(1)]]
    await client.refused("POST", "/compact", 500, json={"model": MODEL, "input": "hi"})


async def test_every_api_path_names_its_methods(served: Served) -> None:
    async with ClientSession() as http:
        for path, allowed in (
            ("", "GET,POST"),
            ("/resp_x", "DELETE,GET"),
            ("/resp_x/cancel", "POST"),
        ):
            async with http.put(f"{served.url}/v1/responses{path}") as response:
                assert (response.status, response.headers["allow"]) == (405, allowed)


async def test_models_have_different_keys_without_a_key_file() -> None:
    cards = [ModelCard("m1"), ModelCard("m2")]
    async with serving(FakeGateway(cards=cards)) as served, ClientSession() as http:
        client = Client(http, served)
        compacted = await client.ask("POST", "/compact", json={"model": "m1", "input": "hi"})
        await client.create(model="m1", input=compacted["output"])
        error = await client.refused("POST", json={"model": "m2", "input": compacted["output"]})
        assert error["code"] == "invalid_encrypted_content"


class Versions(FakeGateway):
    """Serves models with one alias. All sessions are on one of them; without a session, another one
    is chosen."""

    def __init__(self, session: str, heaviest: str) -> None:
        super().__init__(cards=[ModelCard(name, aliases=["coder"]) for name in ("v1", "v2", "v3")])
        self.session, self.heaviest = session, heaviest

    def resolve(self, model: str, conversation: Conversation | None = None) -> ModelCard:
        name = self.heaviest if conversation is None else self.session
        return next(card for card in self.cards if card.name == name)


VERSIONS = [
    (session, heaviest) for session in ("v1", "v2", "v3") for heaviest in ("v1", "v2", "v3")
]


@pytest.mark.parametrize(("session", "heaviest"), VERSIONS)
async def test_reasoning_of_a_session_is_opened_whichever_version_has_it(
    session: str, heaviest: str
) -> None:
    gateway = Versions(session, heaviest)
    blob = Sealer.load(None, session).of(None).seal("What I thought.", "turn")
    summary = [{"type": "summary_text", "text": "A thought."}]
    items = [
        {"type": "reasoning", "encrypted_content": blob, "summary": summary},
        {"role": "user", "content": "hi"},
    ]
    async with serving(gateway) as served, ClientSession() as http:
        await Client(http, served).create(model="coder", input=items)
    (part,) = gateway.turns[-1].conversation.messages[0].parts
    assert isinstance(part, Reasoning)
    assert part.text == "What I thought."


@pytest.mark.parametrize(("session", "heaviest"), VERSIONS)
async def test_compacted_conversation_is_readable_while_the_version_of_its_session_is_served(
    session: str, heaviest: str
) -> None:
    gateway = Versions(session, heaviest)
    async with serving(gateway) as served, ClientSession() as http:
        client = Client(http, served)
        compacted = (await client.ask("POST", "/compact", json={"model": "coder", "input": "hi"}))[
            "output"
        ]
        managed = (await client.create(model="coder", input="hi", **MANAGED))["output"]
        for gateway.heaviest in ("v1", "v2", "v3"):
            for output in (compacted, managed):
                await client.create(model="coder", input=output)
        gateway.heaviest = session
        gateway.cards = [card for card in gateway.cards if card.name == session]
        for output in (compacted, managed):
            await client.create(model="coder", input=output)
