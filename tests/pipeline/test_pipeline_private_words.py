"""Words of prompts are in no log and no metric, at the default level: neither when they change
within a session, nor when their request is refused."""

import copy
from collections import Counter
from typing import Any

import aiohttp

from tests.kit import bodies
from tests.kit.stack import MODEL, Stack

SECRET = "s3cr3t"
SCHEMA = {"type": "object", "properties": {"path": {"type": "string", "description": ""}}}
MESSAGES = bodies.messages(
    bodies.user(bodies.text("Hi.")),
    bodies.assistant(bodies.text(""), bodies.tool_use(input={"path": ""})),
    bodies.user(bodies.tool_result(content="")),
    model=MODEL,
    max_tokens=8,
    metadata={"user_id": "user_1_account__session_2"},
    system=[bodies.text("")],
    stop_sequences=["never"],
    tools=[bodies.tool(description="", input_schema=SCHEMA)],
)
RESPONSES = bodies.responses(
    bodies.message("developer", ""),
    bodies.user("Hi."),
    bodies.function_call(),
    bodies.function_output(output=""),
    model=MODEL,
    max_output_tokens=16,
    instructions="",
    prompt_cache_key="session",
    tools=[bodies.function(description="", parameters=SCHEMA)],
)
APIS = {
    "/v1/messages": (MESSAGES, {"max_tokens": -1}),
    "/v1/responses": (RESPONSES, {"temperature": 99}),
}
KEPT = {
    *("type", "role", "id", "call_id", "tool_use_id", "model", "name"),
    *("metadata", "user", "prompt_cache_key"),
}
"""Members whose texts a request needs as they are, or that identify a session, which logs name."""


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The paths of all texts in which a client writes what it wants."""
    if isinstance(value, str):
        return [path]
    if isinstance(value, dict):
        members = [(key, item) for key, item in value.items() if key not in KEPT]
    elif isinstance(value, list):
        members = [*enumerate(value)]
    else:
        return []
    return [place for key, item in members for place in places(item, (*path, key))]


def with_word(body: Any, path: tuple[Any, ...], word: str) -> Any:
    """The body with a word at the end of one of its texts."""
    changed = copy.deepcopy(body)
    holder = changed
    for key in path[:-1]:
        holder = holder[key]
    text = holder[path[-1]]
    holder[path[-1]] = f'{{"path": "{word}"}}' if text == "{}" else f"{text} {word}"
    return changed


async def test_words_of_prompts_are_in_no_log_and_no_metric(stack: Stack) -> None:
    statuses: Counter[int] = Counter()
    async with aiohttp.ClientSession(stack.url) as http:
        for api, (body, refused) in APIS.items():
            found = places(body)
            assert len(found) > 5
            for number, path in enumerate(found):
                for word in (f"{SECRET}{number}a", f"{SECRET}{number}b"):
                    changed = with_word(body, path, word)
                    for request in (changed, {**changed, **refused}):
                        async with http.post(api, json=request) as response:
                            await response.read()
                            statuses[response.status] += 1
        assert set(statuses) == {200, 400}
        assert statuses[200] >= statuses[400]
        async with http.get("/metrics") as response:
            assert SECRET not in await response.text()
    for child in stack.children:
        assert SECRET not in child.text(), child.name
    preprocessors = "".join(child.text() for child in stack.of("preprocessor"))
    assert "preprocessor.prompt_varies" in preprocessors
