"""Any searches, beside any calls of the client, over any number of requests: each prompt begins
with the one before it."""

import asyncio
import json
from itertools import pairwise
from typing import Any, NamedTuple

from hypothesis import given
from hypothesis import strategies as st

from schemas.events import TurnEvent
from services.runtime.config.frontend import FrontendConfig
from tests.frontend.hosted.searches import answered, comparable
from tests.kit.bodies import (
    Json,
    assistant,
    block,
    function,
    function_output,
    messages,
    responses,
    tool,
    tool_result,
    user,
)
from tests.kit.events import call, finish, reasoning, text
from tests.kit.frontend import FakeGateway, serving

WORDS = st.sampled_from(["ship", "parcel", "Order", "list", "mail", "(", ".*", "?", ""])
QUERIES = st.lists(WORDS, max_size=3).map(" ".join)
SEARCHES = {
    "tool_search_tool_regex": "pattern",
    "tool_search_tool_bm25": "query",
    "tool_search": "query",
}
"""The argument of each search."""


class Tool(NamedTuple):
    """A tool of the client."""

    about: str
    deferred: bool
    namespace: str | None


class ModelTurn(NamedTuple):
    """What the model writes in a turn."""

    thought: str
    queries: list[str]
    calls: int
    """How many tools of the client it calls."""


TOOLS = st.lists(
    st.builds(Tool, QUERIES, st.booleans(), st.sampled_from([None, None, "crm", "box"])),
    min_size=1,
    max_size=8,
)
TURNS = st.lists(
    st.builds(
        ModelTurn,
        st.sampled_from(["", "So."]),
        st.lists(QUERIES, max_size=3),
        st.sampled_from([0, 0, 1, 2]),
    ),
    min_size=1,
    max_size=8,
)
API = st.sampled_from([*SEARCHES])


class Model:
    """Writes turns one after another; when none is left, a text."""

    def __init__(self, search: str, turns: list[ModelTurn], names: list[str]) -> None:
        self.search = search
        self.names = names
        self.calls = 0
        self.left = iter(turns)

    def events(self) -> list[TurnEvent]:
        turn = next(self.left, None)
        if turn is None:
            return [*text(0, "Done."), finish(1)]
        events = reasoning(0, turn.thought) if turn.thought else []
        arguments = [json.dumps({SEARCHES[self.search]: query}) for query in turn.queries]
        made = [(self.search, one) for one in arguments]
        made += [(self.names[number % len(self.names)], "{}") for number in range(turn.calls)]
        first = len(events) > 0
        for number, (name, argument) in enumerate(made, int(first)):
            self.calls += 1
            events += call(number, name, argument, call_id=f"toolu_{self.calls:024d}")
        if not made:
            events += text(int(first), "Well.")
        return [*events, finish(len(made) + int(first) + int(not made))]


def gateway_of(model: Model) -> FakeGateway:
    return FakeGateway(lambda: [model.events()])


@given(TOOLS, TURNS, API, st.booleans())
def test_each_prompt_begins_with_the_one_before(
    tools: list[Tool], turns: list[ModelTurn], search: str, stored: bool
) -> None:
    if search == "tool_search":
        asyncio.run(over_responses(tools, turns, stored=stored))
    else:
        asyncio.run(over_messages(tools, turns, search))


def check(gateway: FakeGateway) -> None:
    for before, after in pairwise(gateway.conversations):
        assert before.tools == after.tools
        known = comparable(before.messages)
        assert comparable(after.messages)[: len(known)] == known


async def over_messages(tools: list[Tool], turns: list[ModelTurn], search: str) -> None:
    names = [f"t{number}" for number in range(len(tools))]
    specs = [
        tool(name, description=one.about, defer_loading=one.deferred)
        for name, one in zip(names, tools, strict=True)
    ]
    gateway = gateway_of(Model(search, turns, names))
    history: list[Json] = [user("Hi.")]
    async with serving(gateway, FrontendConfig()) as served:
        for _ in range(len(turns) + 1):
            request = messages(*history, tools=[block(search, name=search), *specs])
            answer = await answered(served, request)
            history.append(assistant(*answer["content"]))
            calls = [part["id"] for part in answer["content"] if part["type"] == "tool_use"]
            if answer["stop_reason"] != "pause_turn":
                history.append(user(*map(tool_result, calls)) if calls else user("More."))
    check(gateway)


async def over_responses(tools: list[Tool], turns: list[ModelTurn], *, stored: bool) -> None:
    specs: list[Json] = []
    names: list[str] = []
    for number, one in enumerate(tools):
        spec = function(f"t{number}", description=one.about, defer_loading=one.deferred)
        names.append(f"{one.namespace}__t{number}" if one.namespace else f"t{number}")
        if one.namespace:
            spec = block("namespace", name=one.namespace, description="It.", tools=[spec])
        specs.append(spec)
    gateway = gateway_of(Model("tool_search", turns, names))
    history: list[Json] = []
    new: list[Json] = [user("Hi.")]
    previous: dict[str, Any] = {}
    async with serving(gateway, FrontendConfig()) as served:
        for _ in range(len(turns) + 1):
            history += new
            items = new if stored else history
            request = responses(
                *items, tools=[block("tool_search"), *specs], store=stored, **previous
            )
            answer = await answered(served, request, "/v1/responses")
            if stored:
                previous = {"previous_response_id": answer["id"]}
            history += answer["output"]
            calls = [one["call_id"] for one in answer["output"] if one["type"] == "function_call"]
            new = [*map(function_output, calls)] or [user("More.")]
    check(gateway)
