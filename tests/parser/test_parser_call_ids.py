"""Ids of calls: unique whatever the model repeats, and accepted when they come back, by every
API."""

import json
from collections.abc import Callable

from schemas.conversation import Call, Result, ToolSpec
from schemas.events import FinishReason, Prepared, TurnEvent
from schemas.frames import ParseContext, TokenFinish
from services.families import family as find_family
from services.frontend.turns.interfaces import AnswerInfo, ParsedRequest
from services.parser.turn_parse import TurnParse
from services.parser.turn_stream import TurnStream
from services.runtime.storage.seal import Sealer
from services.runtime.streams.turn_log import Cursor
from services.tokenization.detokenizer import Vocabulary
from tests.kit.bodies import (
    CHAT,
    MESSAGES,
    RESPONSES,
    USER,
    Api,
    Json,
    assistant,
    chat_result,
    function_output,
    tool_result,
    user,
)
from tests.kit.byte_tokenizers import byte_level
from tests.kit.every import for_rows

TOKENIZER = byte_level()
VOCABULARY = Vocabulary(TOKENIZER)
LOOK = ToolSpec("look", schema={"type": "object", "properties": {"where": {"type": "string"}}})
KIMI = (
    "<|tool_calls_section_begin|>"
    + '<|tool_call_begin|>functions.look:0<|tool_call_argument_begin|>{"where": "a"}<|tool_call_end|>'
    * 2
    + "<|tool_calls_section_end|>"
)
MISTRAL = '[TOOL_CALLS][{"name": "look", "arguments": {"where": "a"}, "id": "abcdefghi"}, {"name": "look", "arguments": {"where": "a"}, "id": "abcdefghi"}]'
OUTPUTS = {"kimi_k2": KIMI, "mistral": MISTRAL}


def decoded(family: str, text: str, turn: str) -> list[TurnEvent]:
    context = ParseContext("m", family, "f", 3, tools=[LOOK])
    stream = TurnStream(turn, 1, context, "w")
    parse = TurnParse.open(stream, find_family(family), VOCABULARY, Sealer(b"test"))
    parse.feed(TOKENIZER.encode(text, add_special_tokens=False).ids)
    parse.finish(TokenFinish(FinishReason.STOP, None))
    return [*parse.stream.log.read(Cursor())[0]]


def answer(ask: ParsedRequest, turn: str, events: list[TurnEvent]) -> Json:
    collector = ask.collector(AnswerInfo(turn, "r", "m", 0))
    collector.start([Prepared(3, 100)])
    collector.events(events)
    found: Json = json.loads(collector.body())
    return found


def of_messages(answer: Json) -> list[Json]:
    ids = [block["id"] for block in answer["content"] if block["type"] == "tool_use"]
    results = [tool_result(id, f"{number}") for number, id in enumerate(ids)]
    return [assistant(*answer["content"]), user(*results)]


def of_chat(answer: Json) -> list[Json]:
    message = answer["choices"][0]["message"]
    ids = [call["id"] for call in message["tool_calls"]]
    return [message, *(chat_result(id, f"{number}") for number, id in enumerate(ids))]


def of_responses(answer: Json) -> list[Json]:
    ids = [item["call_id"] for item in answer["output"] if item["type"] == "function_call"]
    results = [function_output(id, f"{number}") for number, id in enumerate(ids)]
    return [*answer["output"], *results]


HISTORIES = ((MESSAGES, of_messages), (CHAT, of_chat), (RESPONSES, of_responses))
"""Each API, and what a client sends back of an answer, with results of its calls."""


@for_rows([(*api, family) for api in HISTORIES for family in OUTPUTS])
def test_ids_are_unique_although_the_model_repeats_its_own(
    api: Api, back: Callable[[Json], list[Json]], family: str
) -> None:
    """Twice in a turn, and again in the next one."""
    history: list[Json] = []
    for turn in ("a" * 24, "b" * 24):
        asked = api.ask(USER, *history, tools=[api.tool()])
        history += back(answer(asked, turn, decoded(family, OUTPUTS[family], turn)))
    conversation = api.read(USER, *history, tools=[api.tool()])
    parts = [part for message in conversation.messages for part in message.parts]
    calls = [part.call_id for part in parts if isinstance(part, Call)]
    results = [part for part in parts if isinstance(part, Result)]
    assert len(calls) == len(set(calls)) == 4
    assert [result.call_id for result in results] == calls
    assert [result.parts[0].text for result in results] == ["0", "1", "0", "1"]  # type: ignore[union-attr]
