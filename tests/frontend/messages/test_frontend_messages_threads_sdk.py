"""Tests that the thread helpers of Anthropic's SDK work as its own tests expect of the native API: what
they send, what the model gets, and how they recover."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from schemas.conversation import Call, Conversation, Message, Result, Text
from schemas.events import TurnEvent
from tests.kit.bodies import MODEL, Json, block, tool, user
from tests.kit.events import Step, call, finish, hello, reasoning, text
from tests.kit.frontend import FakeGateway, Served, in_turn, serving
from tests.kit.waiting import LIMIT_S

DONE: list[TurnEvent] = [*reasoning(0, "So."), *text(1, "It is there."), finish(2)]
SUMMARY: list[TurnEvent] = [*text(0, "It was sunny."), finish(1)]
THREADS = "message-threads-2026-08-12"


def calls(name: str, id: str, **arguments: str) -> list[TurnEvent]:
    return [*reasoning(0, "Hm."), *call(1, name, json.dumps(arguments), call_id=id), finish(2)]


def weather(id: str) -> list[TurnEvent]:
    return calls("get_weather", id, location="Oslo")


@asynccontextmanager
async def sdk(gateway: FakeGateway) -> AsyncIterator[tuple[Any, Served]]:
    """The SDK's client of a server."""
    from anthropic import AsyncAnthropic

    async with serving(gateway) as served:
        options: Any = {"max_retries": 0, "_strict_response_validation": True}
        async with AsyncAnthropic(base_url=served.url, api_key="k", **options) as client:
            yield client, served


def weather_tool() -> Any:
    from anthropic import beta_async_tool

    async def get_weather(location: str) -> str:
        """The weather of a city."""
        return f"Sunny in {location}"

    return beta_async_tool(get_weather)


def people_tool() -> Any:
    from anthropic import beta_async_tool

    async def get_people(location: str) -> str:
        """The population of a city."""
        return f"Many in {location}"

    return beta_async_tool(get_people)


def threads_of(bodies: list[Json]) -> list[str]:
    return [body["thread"]["type"] for body in bodies]


@pytest.fixture
def bodies(monkeypatch: pytest.MonkeyPatch) -> list[Json]:
    """The bodies that the SDK sends."""
    from anthropic.resources.beta.messages import AsyncMessages

    sent: list[Json] = []
    create = AsyncMessages.create

    async def recorded(self: Any, **arguments: Any) -> Any:
        sent.append(arguments)
        return await create(self, **arguments)

    monkeypatch.setattr(AsyncMessages, "create", recorded)
    return sent


def roles(conversation: Conversation) -> list[str]:
    return [message.role for message in conversation.messages]


async def test_thread_sends_only_new_messages(bodies: list[Json]) -> None:
    gateway = in_turn(*[DONE] * 3)
    async with sdk(gateway) as (client, _):
        thread = client.beta.messages.thread(
            model=MODEL,
            max_tokens=99,
            system="Be kind.",
            tools=[tool()],
        )
        await thread.send(user("One."))
        async with thread.stream(user("Two.")) as stream:
            await stream.get_final_message()
        await thread.send(user("Three."))
    assert threads_of(bodies) == ["create", "continue", "continue"]
    assert [len(body["messages"]) for body in bodies] == [1, 1, 1]
    assert "system" not in bodies[1]
    assert roles(gateway.conversations[-1]) == ["user", "assistant"] * 2 + ["user"]
    assert len({len(turn.tools) for turn in gateway.conversations}) == 1


@pytest.mark.parametrize("stream", [False, True])
async def test_tool_runner_threads_by_default(bodies: list[Json], stream: bool) -> None:
    gateway = in_turn(weather("toolu_1"), weather("toolu_2"), DONE)
    async with sdk(gateway) as (client, _):
        runner = client.beta.messages.tool_runner(
            model=MODEL,
            max_tokens=99,
            tools=[weather_tool()],
            messages=[user("How is it?")],
            stream=stream,
        )
        last = await runner.until_done()
    assert last.content[-1].to_dict()["text"] == "It is there."
    assert threads_of(bodies) == ["create", "continue", "continue"]
    results = [message.parts for message in gateway.conversations[-1].messages[2::2]]
    assert results == [
        [Result(id, [Text("Sunny in Oslo")], name="get_weather")] for id in ("toolu_1", "toolu_2")
    ]


async def run_with(runner: Any, changes: list[Callable[[Any], None]]) -> None:
    """Runs to the end, with a change while each message is handled."""
    following = iter(changes)
    async for _ in runner:
        next(following)(runner)


async def test_runner_adds_and_removes_tools_in_the_thread(bodies: list[Json]) -> None:
    gateway = in_turn(
        weather("toolu_1"),
        calls("get_people", "toolu_2", location="Oslo"),
        weather("toolu_3"),
        DONE,
    )
    changes: list[Callable[[Any], None]] = [
        lambda runner: runner.add_tools(people_tool()),
        lambda runner: runner.remove_tools("get_weather"),
        lambda _: None,
        lambda _: None,
    ]
    async with sdk(gateway) as (client, _):
        runner = client.beta.messages.tool_runner(
            model=MODEL,
            max_tokens=99,
            tools=[weather_tool()],
            messages=[user("How is it?")],
            betas=["inline-tools-2026-09-15"],
        )
        with pytest.warns(UserWarning, match="get_weather"):
            await run_with(runner, changes)
    assert threads_of(bodies) == ["create"] + ["continue"] * 3
    last = gateway.conversations[-1]
    added, removed = [str(message.parts) for message in last.messages if message.role == "system"]
    assert "get_people" in added
    assert "get_weather" in removed
    assert [spec.name for spec in last.tools] == ["get_weather", "get_people"]
    (result,) = last.messages[-1].parts
    assert isinstance(result, Result)
    assert result.is_error


async def test_thread_that_is_lost_is_sent_again_as_a_new_one(bodies: list[Json]) -> None:
    gateway = in_turn(*[DONE] * 3)
    async with sdk(gateway) as (client, served):
        thread = client.beta.messages.thread(model=MODEL, max_tokens=99, system="Be kind.")
        first = await thread.send(user("One."))
        served.responses.store.forget(first.id)
        await thread.send(user("Two."))
        await thread.send(user("Three."))
    assert threads_of(bodies) == ["create", "continue", "create", "continue"]
    assert roles(gateway.conversations[1]) == ["user", "assistant", "user"]
    assert gateway.conversations[1].system == [Text("Be kind.")]


async def test_thread_that_another_client_continued_is_sent_again(bodies: list[Json]) -> None:
    gateway = in_turn(*[DONE] * 3)
    async with sdk(gateway) as (client, _):
        thread = client.beta.messages.thread(model=MODEL, max_tokens=99)
        first = await thread.send(user("One."))
        continued = block("continue", previous_message_id=first.id)
        await client.beta.messages.create(
            model=MODEL,
            max_tokens=99,
            messages=[user("Two.")],
            thread=continued,
        )
        await thread.send(user("Other."))
    assert threads_of(bodies) == ["create", "continue", "continue", "create"]
    assert gateway.conversations[-1].messages[-1] == Message("user", [Text("Other.")])


async def test_stream_that_is_left_early_begins_a_new_thread(bodies: list[Json]) -> None:
    turns: list[list[Step]] = [hello(), [[*text(0, "So far")], asyncio.Event()], hello()]
    gateway = FakeGateway(lambda: turns.pop(0))
    async with sdk(gateway) as (client, _):
        thread = client.beta.messages.thread(model=MODEL, max_tokens=99)
        await thread.send(user("One."))
        async with thread.stream(user("Two.")) as stream:
            async for event in stream:
                if event.type == "text":
                    break
        await asyncio.wait_for(gateway.turns[1].cancel_seen.wait(), LIMIT_S)
        await thread.send()  # the turn again
    assert threads_of(bodies) == ["create", "continue", "create"]
    assert roles(gateway.conversations[-1]) == ["user", "assistant", "user"]


async def test_other_values_of_the_head_raise_the_sdks_error() -> None:
    from anthropic import NotFoundError
    from anthropic.types import ThreadFingerprintMismatchError, ThreadNotFoundError

    async with sdk(in_turn(*[DONE] * 2)) as (client, _):
        thread = client.beta.messages.thread(model=MODEL, max_tokens=99)
        await thread.send(user("One."))
        with pytest.raises(ThreadFingerprintMismatchError, match=r"differing field\(s\): model"):
            await thread.send(user("Two."), model="claude-alias")
        lost = block("continue", previous_message_id="msg_0")
        with pytest.raises(ThreadNotFoundError) as caught:
            await client.beta.messages.create(
                model=MODEL,
                max_tokens=99,
                messages=[user("x")],
                thread=lost,
            )
        assert isinstance(caught.value, NotFoundError)
        await thread.send(user("Two."))


@pytest.mark.parametrize("threaded", [True, False])
@pytest.mark.parametrize("stream", [False, True])
async def test_runner_compacts_before_its_next_turn(
    bodies: list[Json], stream: bool, threaded: bool
) -> None:
    gateway = in_turn(weather("toolu_1"), SUMMARY, weather("toolu_2"), DONE)
    async with sdk(gateway) as (client, _):
        runner: Any = client.beta.messages.tool_runner(
            model=MODEL,
            max_tokens=99,
            tools=[weather_tool()],
            messages=[user("How is it?")],
            betas=["compact-2026-09-04"],
            stream=stream,
            **({} if threaded else {"thread": False}),
        )
        reasons = []
        async for item in runner:
            message = await item.get_final_message() if stream else item
            reasons.append(message.stop_reason)
            if len(reasons) == 1:
                runner.compact_before_next_turn({"type": "summarize", "instructions": "Be short."})
    assert reasons == ["tool_use", "compaction", "tool_use", "end_turn"]
    if threaded:
        assert threads_of(bodies) == ["create", "create", "create", "continue"]
    asked, after, last = gateway.conversations[1:]
    assert asked.messages[-1] == Message("user", [Text("Be short.")])
    assert after.messages == [Message("user", [Text("It was sunny.")])]
    assert roles(last) == ["user", "assistant", "tool"]


async def test_sync_runner_works_as_the_async_one() -> None:
    from anthropic import Anthropic, beta_tool

    def get_weather(location: str) -> str:
        """The weather of a city."""
        return f"Sunny in {location}"

    gateway = in_turn(weather("toolu_1"), weather("toolu_2"), DONE)

    def run(url: str) -> Any:
        options: Any = {"max_retries": 0, "_strict_response_validation": True}
        with Anthropic(base_url=url, api_key="k", **options) as made:
            client: Any = made
            runner = client.beta.messages.tool_runner(
                model=MODEL,
                max_tokens=99,
                tools=[beta_tool(get_weather)],
                messages=[user("How is it?")],
            )
            return runner.until_done()

    async with serving(gateway) as served:
        last = await asyncio.to_thread(run, served.url)
    assert last.stop_reason == "end_turn"
    made = [part for message in gateway.conversations[-1].messages for part in message.parts]
    assert [part.call_id for part in made if isinstance(part, Call)] == ["toolu_1", "toolu_2"]
