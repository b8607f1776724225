"""Reads what the model wrote in a turn of an answer with hosted tools, and which calls an earlier
answer left open. Pure."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from schemas.conversation import Call, Message, Part, Reasoning, Result, Text
from schemas.events import Finish, TurnEvent, Usage, blocks_of


@dataclass
class EndedTurn:
    """The output of the model in a turn."""

    finish: Finish
    parts: list[Part] = field(default_factory=list)
    """All of its output except incomplete calls."""
    calls: list[Call] = field(default_factory=list)
    """Complete calls of hosted tools."""
    has_client_calls: bool = False
    """Whether there are complete calls of the client's tools."""


class AnswerProgress:
    """The turns of an answer up to now."""

    def __init__(self, hosted: Collection[str], answer_id: str) -> None:
        """`hosted`: the names of the hosted tools. `answer_id`: the ids of calls that have none are
        derived from it."""
        self.events: list[TurnEvent] = []
        """The events of the current turn."""
        self.ended = 0
        """The number of turns that have ended."""
        self.usage = Usage()
        """The tokens of these turns."""
        self._hosted = hosted
        self._answer_id = answer_id

    def end_turn(self, finish: Finish) -> EndedTurn:
        """Returns the current turn, which ends with `finish`."""
        turn = EndedTurn(finish)
        for start, text, stop in blocks_of(self.events):
            if stop is None:
                continue
            if start.kind == "reasoning":
                turn.parts.append(Reasoning(text or None, stop.seal))
            elif start.kind == "text":
                if text:
                    turn.parts.append(Text(text))
            elif stop.complete:
                call_id = start.call_id or f"{self._answer_id}.{start.block}"
                call = Call(call_id, start.name or "", text or "{}")
                turn.parts.append(call)
                if call.name in self._hosted:
                    turn.calls.append(call)
                else:
                    turn.has_client_calls = True
        self.events = []
        self.ended += 1
        self.usage += finish.usage
        return turn


def unanswered_calls(messages: Sequence[Message], hosted: Collection[str]) -> list[Call]:
    """Returns the calls of hosted tools in the model's last message that have no result.

    None, if a message other than a tool's follows it.
    """
    last = _last_of_model(messages)
    if last is None:
        return []
    following = messages[last + 1 :]
    results: Sequence[Part] = ()
    if following and following[0].role == "tool":
        results = following[0].parts
    if following and not results:
        return []
    answered = {part.call_id for part in results if isinstance(part, Result)}
    calls = [part for part in messages[last].parts if isinstance(part, Call)]
    return [call for call in calls if call.name in hosted and call.call_id not in answered]


def _last_of_model(messages: Sequence[Message]) -> int | None:
    """Returns the index of the model's last message."""
    for index in range(len(messages) - 1, -1, -1):
        if messages[index].role == "assistant":
            return index
    return None
