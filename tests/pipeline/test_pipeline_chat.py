"""Chat Completions through real processes."""

from typing import Any

from tests.kit.messages_client import TOOLS, Client, call, say
from tests.kit.stack import MODEL

PATH = "/v1/chat/completions"
CHAT_TOOLS: Any = [
    {"type": "function", "function": {"name": tool["name"], "parameters": tool["input_schema"]}}
    for tool in TOOLS
]
TWICE = f"First thought.\n</think>\n\n{call('one')}\n<think>\nSecond thought.\n</think>\n\n{call('two')}"


async def test_sealed_reasoning_returns_to_its_place(client: Client) -> None:
    client.http.headers["x-turnwire-reasoning-details"] = "1"
    messages: list[Any] = [{"role": "user", "content": say(TWICE, "So.\n</think>\n\nAll done.")}]
    request = {"model": MODEL, "messages": messages, "tools": CHAT_TOOLS}
    _, first = await client.post(PATH, request)
    message = first["choices"][0]["message"]
    assert message["reasoning_content"] == "First thought.Second thought."
    calls = [made["id"] for made in message["tool_calls"]]
    results = [{"role": "tool", "tool_call_id": id, "content": "ok"} for id in calls]
    messages += [message, *results]
    _, tokenized = await client.post("/v1/tokenize", request)
    tokens = {"model": MODEL, "tokens": tokenized["tokens"]}
    _, text = await client.post("/v1/detokenize", tokens)
    shown = text["prompt"].partition("<|im_start|>assistant")[2]
    places = [shown.find(text) for text in ("First thought.", "one", "Second thought.", "two")]
    assert -1 < places[0] < places[1] < places[2] < places[3]
    assert shown.count("thought.") == 2
    _, last = await client.post(PATH, request)
    assert last["choices"][0]["message"]["content"] == "All done."
