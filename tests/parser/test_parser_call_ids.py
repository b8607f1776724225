"""Ids of calls: unique whatever the model repeats, and accepted when they come back, by every
API."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from schemas.conversation import Call, Conversation, Result, ToolSpec
from schemas.events import FinishReason, Prepared, TurnEvent
from schemas.frames import ParseContext, TokenFinish
from services.families import family as find_family
from services.frontend.apis.chat.request import Chat
from services.frontend.apis.messages.request import Messages
from services.frontend.apis.responses.dialect import Responses
from services.frontend.turns.interfaces import AnswerInfo, ParsedRequest
from services.parser.turn_parse import TurnParse
from services.parser.turn_stream import TurnStream
from services.runtime.storage.seal import Sealer
from services.runtime.streams.turn_log import Cursor
from services.tokenization.detokenizer import Vocabulary
from tests.kit.byte_tokenizers import byte_level

TOKENIZER = byte_level()
VOCABULARY = Vocabulary(TOKENIZER)
LOOK = ToolSpec("look", schema={"type": "object", "properties": {"where": {"type": "string"}}})
KIMI = (
    "<|tool_calls_section_begin|>"
    + '<|tool_call_begin|>functions.look:0<|tool_call_argument_begin|>{"where": "a"}<|tool_call_end|>'
    * 2
    + "<|tool_calls_section_end|>"
)
COHERE = '<|START_ACTION|>[{"tool_call_id": "0", "tool_name": "look", "parameters": {"where": "a"}}, {"tool_call_id": "0", "tool_name": "look", "parameters": {"where": "a"}}]<|END_ACTION|>'
MISTRAL = '[TOOL_CALLS][{"name": "look", "arguments": {"where": "a"}, "id": "abcdefghi"}, {"name": "look", "arguments": {"where": "a"}, "id": "abcdefghi"}]'
OUTPUTS = {"kimi_k2": KIMI, "cohere_command": COHERE, "mistral": MISTRAL}


def decoded(family: str, text: str, turn: str) -> list[TurnEvent]:
    context = ParseContext("m", family, "f", 3, tools=[LOOK])
    stream = TurnStream(turn, 1, context, "w")
    parse = TurnParse.open(stream, find_family(family), VOCABULARY, Sealer(b"test"))
    parse.feed(TOKENIZER.encode(text, add_special_tokens=False).ids)
    parse.finish(TokenFinish(FinishReason.STOP, None))
    return [*parse.stream.log.read(Cursor())[0]]


def answer(ask: ParsedRequest, turn: str, events: list[TurnEvent]) -> dict[str, Any]:
    collector = ask.collector(AnswerInfo(turn, "r", "m", 0))
    collector.start([Prepared(3, 100)])
    collector.events(events)
    found: dict[str, Any] = json.loads(collector.body())
    return found


def messages(history: list[dict[str, Any]]) -> ParsedRequest:
    tools = [{"name": "look", "input_schema": LOOK.schema}]
    body = {
        "model": "m",
        "max_tokens": 9,
        "tools": tools,
        "messages": [{"role": "user", "content": "hi"}, *history],
    }
    return Messages().parse(json.dumps(body).encode(), {})


def messages_history(answer: dict[str, Any]) -> list[dict[str, Any]]:
    ids = [block["id"] for block in answer["content"] if block["type"] == "tool_use"]
    results = [
        {"type": "tool_result", "tool_use_id": id, "content": f"{n}"} for n, id in enumerate(ids)
    ]
    return [
        {"role": "assistant", "content": answer["content"]},
        {"role": "user", "content": results},
    ]


def chat(history: list[dict[str, Any]]) -> ParsedRequest:
    tools = [{"type": "function", "function": {"name": "look", "parameters": LOOK.schema}}]
    body = {"model": "m", "tools": tools, "messages": [{"role": "user", "content": "hi"}, *history]}
    return Chat().parse(json.dumps(body).encode(), {})


def chat_history(answer: dict[str, Any]) -> list[dict[str, Any]]:
    message = answer["choices"][0]["message"]
    ids = [call["id"] for call in message["tool_calls"]]
    return [
        message,
        *({"role": "tool", "tool_call_id": id, "content": f"{n}"} for n, id in enumerate(ids)),
    ]


def responses(history: list[dict[str, Any]]) -> ParsedRequest:
    tools = [{"type": "function", "name": "look", "parameters": LOOK.schema}]
    body = {
        "model": "m",
        "tools": tools,
        "input": [{"role": "user", "content": "hi"}, *history],
        "store": False,
    }
    return Responses().parse(json.dumps(body).encode(), {})


def responses_history(answer: dict[str, Any]) -> list[dict[str, Any]]:
    ids = [item["call_id"] for item in answer["output"] if item["type"] == "function_call"]
    results = [
        {"type": "function_call_output", "call_id": id, "output": f"{n}"}
        for n, id in enumerate(ids)
    ]
    return [*answer["output"], *results]


APIS = {
    "messages": (messages, messages_history),
    "chat": (chat, chat_history),
    "responses": (responses, responses_history),
}


@pytest.mark.parametrize("family", OUTPUTS)
@pytest.mark.parametrize("api", APIS)
def test_ids_are_unique_although_the_model_repeats_its_own(api: str, family: str) -> None:
    """Twice in a turn, and again in the next one."""
    ask: Callable[[list[dict[str, Any]]], ParsedRequest]
    back: Callable[[dict[str, Any]], list[dict[str, Any]]]
    ask, back = APIS[api]
    history: list[dict[str, Any]] = []
    for turn in ("a" * 24, "b" * 24):
        history += back(answer(ask(history), turn, decoded(family, OUTPUTS[family], turn)))
    conversation: Conversation = ask(history).conversations[0]
    parts = [part for message in conversation.messages for part in message.parts]
    calls = [part.call_id for part in parts if isinstance(part, Call)]
    results = [part for part in parts if isinstance(part, Result)]
    assert len(calls) == len(set(calls)) == 4
    assert [result.call_id for result in results] == calls
    assert [result.parts[0].text for result in results] == ["0", "1", "0", "1"]  # type: ignore[union-attr]
