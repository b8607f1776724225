"""Tests message threads over HTTP: what is stored, what a request that continues one sends to the
model, and what is refused."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from msgspec import Raw
from msgspec.structs import replace

from schemas.conversation import Call, Text
from schemas.errors import EngineFailed
from schemas.events import Failed, FinishReason, TurnEvent
from services.frontend.stored.record import StoredReply
from services.runtime.config.frontend import FrontendConfig
from tests.frontend.hosted.hosted_frontend import SEARCH, hosted, search
from tests.kit.answers import events as stream_events
from tests.kit.bodies import (
    MODEL,
    USER,
    Json,
    assistant,
    block,
    message,
    messages,
    tool,
    tool_result,
    user,
)
from tests.kit.bodies import text as words
from tests.kit.events import Step, call, finish, hello, reasoning, text
from tests.kit.frontend import KEY, FakeGateway, Reply, Served, guarded, in_turn, key_line, serving
from tests.kit.waiting import LIMIT_S, eventually

CREATE = block("create")
THOUGHT: list[TurnEvent] = [
    *reasoning(0, "Hm."),
    *text(1, "Let me see."),
    *call(2, "look", '{"a": "x"}', call_id="toolu_1"),
    finish(3),
]
DONE: list[TurnEvent] = [*reasoning(0, "So."), *text(1, "It is there."), finish(2)]
HEAD: Json = {"system": "Be kind.", "tools": [tool(), tool("other")]}


def following(answer: Json) -> Json:
    """The member with which a request continues an answer."""
    return block("continue", previous_message_id=answer["id"])


async def send(served: Served, *history: Any, stream: bool = False, **fields: Any) -> Json:
    """The message of an answer."""
    body = messages(stream=stream, **fields) | {"messages": [*history]}
    reply = await served.post("/v1/messages", body)
    assert reply.status == 200, reply.text
    if not stream:
        answer: Json = reply.json
        return answer
    return started(reply)


def started(reply: Reply) -> Json:
    """The message with which a stream begins."""
    message: Json = stream_events(reply.body)[0]["message"]
    return message


async def refused(served: Served, *history: Any, **fields: Any) -> tuple[int, str, str]:
    """Status, type and code of the error of a request."""
    body = messages(**fields) | {"messages": [*history]}
    reply = await served.post("/v1/messages", body)
    return fault(reply)


def fault(reply: Reply) -> tuple[int, str, str]:
    error = reply.json["error"]
    return reply.status, error["type"], error["details"]["error_code"]


NOT_FOUND = (404, "not_found_error", "thread_not_found")
CONTINUED = (400, "invalid_request_error", "thread_already_continued")
IN_FLIGHT = (400, "invalid_request_error", "thread_continue_in_flight")
MISMATCH = (400, "invalid_request_error", "thread_fingerprint_mismatch")


@pytest.mark.parametrize("stream", [False, True])
async def test_only_new_messages_make_the_conversation_of_the_whole_history(stream: bool) -> None:
    gateway = in_turn(THOUGHT, DONE, DONE, THOUGHT, DONE, DONE)
    added = message("system", block("tool_removal", tool=block("tool_reference", name="other")))
    async with serving(gateway) as served:
        first = await send(served, USER, stream=stream, thread=CREATE, **HEAD)
        result = user(tool_result())
        second = await send(served, result, added, stream=stream, thread=following(first))
        await send(served, user("Thanks."), stream=stream, thread=following(second))

        made = await send(served, USER, **HEAD)
        history = [USER, assistant(*made["content"]), result, added]
        answered = await send(served, *history, **HEAD)
        await send(served, *history, assistant(*answered["content"]), user("Thanks."), **HEAD)
    threaded, whole = gateway.conversations[:3], gateway.conversations[3:]
    assert threaded == whole
    assert [len(conversation.messages) for conversation in threaded] == [1, 4, 6]


async def test_members_other_than_the_head_are_of_each_request() -> None:
    gateway = in_turn(DONE, DONE)
    async with serving(gateway) as served:
        first = await send(served, USER, thread=CREATE, temperature=0.5, **HEAD)
        changed: Json = {
            "max_tokens": 7,
            "tool_choice": block("none"),
            "thinking": block("adaptive"),
        }
        await send(served, user("Go on."), thread=following(first), **changed)
    one, other = gateway.conversations
    assert (one.sampling.temperature, other.sampling.temperature) == (0.5, None)
    assert (other.sampling.max_tokens, other.tool_choice.mode) == (7, "none")
    assert other.thinking.mode == "adaptive"
    assert (other.tools, other.system) == (one.tools, one.system)


async def test_reply_is_continued_once() -> None:
    async with serving(in_turn(DONE, DONE, DONE)) as served:
        first = await send(served, USER, thread=CREATE)
        again = following(first)
        second = await send(served, user("One."), thread=again)
        assert await refused(served, user("Two."), thread=again) == CONTINUED
        await send(served, user("Two."), thread=following(second))
    assert served.none_open()


async def test_second_request_for_a_reply_is_refused_while_the_first_one_runs() -> None:
    go = asyncio.Event()
    turns: list[list[Step]] = [hello(), [[*text(0, "So")], go, [finish(1)]], hello()]
    gateway = FakeGateway(lambda: turns.pop(0))
    async with serving(gateway) as served:
        first = await send(served, USER, thread=CREATE)
        running = asyncio.create_task(send(served, user("One."), thread=following(first)))
        await eventually(lambda: len(gateway.turns) == 2)
        assert await refused(served, user("Two."), thread=following(first)) == IN_FLIGHT
        go.set()
        await running
        assert await refused(served, user("Two."), thread=following(first)) == CONTINUED


@pytest.mark.parametrize("stream", [False, True])
async def test_turn_that_fails_is_not_stored_and_the_reply_can_be_continued(stream: bool) -> None:
    failure = Failed(EngineFailed("gone").info)
    gateway = in_turn(DONE, [*text(0, "So far"), failure], EngineFailed("no"), DONE)
    async with serving(gateway) as served:
        first = await send(served, USER, thread=CREATE)
        body = messages(user("Go."), stream=stream, thread=following(first))
        failed = await served.post("/v1/messages", body)
        assert b"gone" in failed.body
        assert (await served.post("/v1/messages", body)).status == 500
        await send(served, user("Go."), thread=following(first), stream=stream)
        if stream:  # the id of the reply that was cut off
            assert await refused(served, USER, thread=following(started(failed))) == NOT_FOUND
    assert len(gateway.conversations[-1].messages) == 3


async def test_client_that_hangs_up_can_continue_from_the_last_whole_reply() -> None:
    turns: list[list[Step]] = [hello(), [[*text(0, "So")], asyncio.Event()], hello()]
    gateway = FakeGateway(lambda: turns.pop(0))
    async with serving(gateway) as served:
        first = await send(served, USER, thread=CREATE)
        body = messages(user("Go."), stream=True, thread=following(first))
        async with served.http.post("/v1/messages", json=body) as response:
            await response.content.readany()
        await asyncio.wait_for(gateway.turns[1].cancel_seen.wait(), LIMIT_S)
        await eventually(served.none_open)
        await send(served, user("Go."), thread=following(first))


async def test_request_with_another_head_is_refused() -> None:
    gateway = FakeGateway(hello)
    gateway.any_model = True
    async with serving(gateway) as served:
        first = await send(served, USER, thread=CREATE, **HEAD)
        again = following(first)
        for changed in ({"model": "b"}, {"system": "Be quick."}, {"tools": [tool()]}):
            reply = await served.post("/v1/messages", messages(thread=again, **changed))
            assert fault(reply) == MISMATCH
            assert f"differing field(s): {next(iter(changed))}." in reply.json["error"]["message"]
        both = await served.post("/v1/messages", messages(thread=again, system="x", tools=[tool()]))
        assert "differing field(s): system, tools." in both.json["error"]["message"]
        assert len(gateway.turns) == 1
        marked = [tool(cache_control=block("ephemeral")), tool("other")]
        await send(served, USER, thread=again, system=HEAD["system"], tools=marked)


async def test_claude_codes_changing_block_is_not_of_the_head() -> None:
    def head(version: str) -> Json:
        billing = words(f"x-anthropic-billing-header: cc_version={version};")
        return {"system": [billing, words("Be kind.")]}

    async with serving(in_turn(DONE, DONE, DONE)) as served:
        first = await send(served, USER, thread=CREATE, **head("1"))
        second = await send(served, USER, thread=following(first), **head("2"))
        only = {"system": head("3")["system"][:1]}
        await send(served, USER, thread=following(second), **only)


async def test_thread_belongs_to_the_key_that_created_it(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text(key_line("a", "a") + key_line("b", "b"))
    gateway = FakeGateway(hello)
    async with serving(gateway, FrontendConfig(api_keys_file=str(keys))) as served:

        async def ask(key: str, **fields: Any) -> Reply:
            return await served.post("/v1/messages", messages(**fields), headers={"x-api-key": key})

        first = (await ask("a", thread=CREATE)).json
        assert fault(await ask("b", thread=following(first))) == NOT_FOUND
        assert (await ask("a", thread=following(first))).status == 200


async def test_replies_and_responses_are_not_taken_for_each_other() -> None:
    async with serving() as served:
        reply = await send(served, USER, thread=CREATE)
        response = (await served.post("/v1/responses", {"model": MODEL, "input": "Hi."})).json
        assert await refused(served, USER, thread=following(response)) == NOT_FOUND
        for method in ("GET", "DELETE"):
            found = await served.send(method, f"/v1/responses/{reply['id']}")
            assert found.status == 404
        asked = {"model": MODEL, "input": "Hi.", "previous_response_id": reply["id"]}
        assert (await served.post("/v1/responses", asked)).status == 400
        await send(served, USER, thread=following(reply))


@pytest.mark.parametrize("member", ["head", "messages"])
async def test_thread_of_another_release_is_not_found(member: str) -> None:
    unreadable: Json = {"head": Raw(b'{"model": 1}'), "messages": [Raw(b'{"role": "oracle"}')]}
    async with serving() as served:
        first = await send(served, USER, thread=CREATE)
        store = served.responses.store
        record = store.find(StoredReply, first["id"], None)
        assert record is not None
        store.put(replace(record, **{member: unreadable[member]}))
        assert await refused(served, USER, thread=following(first)) == NOT_FOUND


async def test_thread_is_no_larger_than_a_body_may_be() -> None:
    async with serving(config=FrontendConfig(max_body_bytes=4096)) as served:
        first = await send(served, user("x" * 2000), thread=CREATE)
        second = await send(served, user("x" * 2000), thread=following(first))
        for path in ("/v1/messages", "/v1/messages/count_tokens"):
            reply = await served.post(path, messages(thread=following(second)))
            assert (reply.status, reply.json["error"]["type"]) == (413, "request_too_large")
            assert "more than 4096 bytes" in reply.json["error"]["message"]


async def test_limit_of_counting_holds_before_the_thread_is_read(tmp_path: Path) -> None:
    async with serving(config=guarded(tmp_path, "rpm=1")) as served:
        body = messages(thread=following({"id": "msg_0"}))
        for status in (404, 429):
            reply = await served.post("/v1/messages/count_tokens", body, headers=KEY)
            assert reply.status == status


async def test_answers_without_a_thread_are_not_stored() -> None:
    async with serving() as served:
        plain = await send(served, USER)
        assert await refused(served, USER, thread=following(plain)) == NOT_FOUND


async def test_paused_reply_is_continued_without_messages() -> None:
    both: list[TurnEvent] = [*search(0), *call(1, "look", "{}", call_id="toolu_9"), finish(2)]
    paused: list[TurnEvent] = [*search(0), finish(1, FinishReason.STOP)]
    gateway = in_turn(both, paused, DONE)
    async with hosted(gateway, web_max_rounds=1) as (served, _):
        tools = [SEARCH, tool()]
        first = await send(served, USER, thread=CREATE, tools=tools)
        second = await send(served, user(tool_result("toolu_9")), thread=following(first))
        assert second["stop_reason"] == "pause_turn"
        third = await send(served, thread=following(second))
        assert third["stop_reason"] == "end_turn"
    last = gateway.conversations[-1].messages
    assert [part for part in last[-2].parts if isinstance(part, Call)]
    assert last[-1].role == "tool"


async def test_empty_request_needs_a_thread() -> None:
    async with serving() as served:
        for thread in (None, CREATE):
            reply = await served.post("/v1/messages", messages(thread=thread) | {"messages": []})
            assert reply.error[2] == "messages: at least one message is required"


async def test_errors_count_the_messages_of_the_request() -> None:
    async with serving() as served:
        first = await send(served, USER, thread=CREATE)
        reply = await served.post(
            "/v1/messages", messages(user(tool_result("lost")), thread=following(first))
        )
    assert reply.error[2].startswith("messages.0.content.0: unexpected `tool_use_id`")


async def test_count_of_a_continued_thread_is_that_of_the_whole_history() -> None:
    gateway = in_turn(DONE)
    async with serving(gateway) as served:
        first = await send(served, USER, thread=CREATE, **HEAD)
        body = messages(user("Go."), thread=following(first))
        for _ in range(2):  # counting does not continue the reply
            assert (await served.post("/v1/messages/count_tokens", body)).status == 200
        await served.post(
            "/v1/messages/count_tokens",
            messages(USER, assistant(*first["content"]), user("Go."), **HEAD),
        )
    one, again, whole = gateway.counted
    assert one == again == whole


async def test_thread_of_another_type_is_refused() -> None:
    async with serving() as served:
        reply = await served.ask(thread=block("fork"))
        assert reply.error[2].endswith("expected tags: 'create', 'continue'")
        reply = await served.ask(thread=block("continue"))
        assert reply.error[2] == "thread.continue.previous_message_id: Field required"


async def test_diagnostics_name_the_reply_before() -> None:
    gateway = in_turn(DONE, DONE)
    async with serving(gateway) as served:
        first = await send(served, USER, thread=CREATE)
        await send(
            served,
            user("Go."),
            thread=following(first),
            diagnostics={"previous_message_id": first["id"]},
        )
    assert gateway.conversations[1].client.compare == first["id"].removeprefix("msg_")


async def test_unknown_block_is_left_out_of_the_thread_too() -> None:
    gateway = in_turn(DONE, DONE)
    async with serving(gateway) as served:
        first = await send(served, user(block("hologram"), words("Hi.")), thread=CREATE)
        await send(served, user("Go."), thread=following(first))
    assert gateway.conversations[1].messages[0].parts[-1] == Text("Hi.")
    assert json.dumps(first)  # the answer names the block in a header


async def test_image_of_an_earlier_turn_stays_in_the_thread() -> None:
    source = block("base64", media_type="image/png", data="iVBORw0KGgo=")
    gateway = in_turn(DONE, DONE)
    async with serving(gateway) as served:
        first = await send(served, user(block("image", source=source), words("?")), thread=CREATE)
        await send(served, user("Go."), thread=following(first))
    one, other = gateway.conversations
    assert other.messages[0] == one.messages[0]
