"""Searches of deferred tools: what the model writes, and what the client gets."""

import json
from typing import Any

from schemas.conversation import Call, Message, Part, Reasoning, Result
from schemas.events import TurnEvent
from tests.kit.bodies import Json
from tests.kit.events import call, finish, reasoning
from tests.kit.frontend import FakeGateway, Served

IDS = [f"toolu_{letter * 24}" for letter in "ABCDEFGH"]


def searching(
    *arguments: Json | str, name: str = "tool_search_tool_regex", ids: int = 0
) -> list[TurnEvent]:
    """A turn that ends in searches. `ids`: the first of their ids among `IDS`."""
    turn: list[TurnEvent] = reasoning(0, "I search.")
    for number, argument in enumerate(arguments, 1):
        written = argument if isinstance(argument, str) else json.dumps(argument)
        turn += call(number, name, written, call_id=IDS[ids + number - 1])
    return [*turn, finish(len(arguments) + 1)]


def calling(name: str, id: str = IDS[7]) -> list[TurnEvent]:
    """A turn that calls a tool of the client."""
    return [*call(0, name, "{}", call_id=id), finish(1)]


def kinds(answer: Any) -> list[str]:
    return [part["type"] for part in answer.get("content") or answer["output"]]


async def answered(served: Served, request: Json, path: str = "/v1/messages") -> Any:
    reply = await served.post(path, request)
    assert reply.status == 200, reply.text
    assert "x-turnwire-dropped" not in reply.headers
    return reply.json


def last(gateway: FakeGateway) -> list[Message]:
    """The messages that the model got last."""
    return gateway.conversations[-1].messages


def comparable(turns: list[Message]) -> list[Message]:
    """Without what does not reach a prompt: ids, seals and the spelling of arguments."""
    numbers: dict[str, str] = {}
    bare: list[Message] = []
    for turn in turns:
        parts: list[Part] = []
        for part in turn.parts:
            if isinstance(part, Reasoning):
                part = Reasoning(part.text)
            elif isinstance(part, Call):
                numbers[part.call_id] = str(len(numbers))
                arguments = json.dumps(json.loads(part.arguments))
                part = Call(numbers[part.call_id], part.name, arguments)
            elif isinstance(part, Result):
                part = Result(numbers[part.call_id], part.parts, part.is_error, part.name)
            parts.append(part)
        bare.append(Message(turn.role, parts))
    return bare
