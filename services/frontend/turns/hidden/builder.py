"""Collects the hidden parts of an answer's turns, for each message that its client will send back.
Pure."""

from collections.abc import Iterator, Mapping, Sequence
from typing import TypeGuard

from schemas.conversation import Call, Conversation, HostedTool, Message, Part, Reasoning, Text
from schemas.events import HostedResult
from services.frontend.content.added_results import add_results
from services.frontend.content.hosted_tools import result_part
from services.frontend.turns.hidden.history import HiddenCall, HiddenTurns
from services.ledger.turns.keys import squeeze


class HiddenTurnsBuilder:
    """The turns of an answer that their client sends back as one message."""

    def __init__(self, hosted: Mapping[str, HostedTool], before: Conversation) -> None:
        """`hosted`: the hosted tools of the answer by name. `before`: the conversation up to this
        message."""
        self.before = before
        self.shown: list[Part] = []
        """The parts that the client sees."""
        self.hidden = HiddenTurns()
        self._hosted = hosted

    def __bool__(self) -> bool:
        """Whether the message is to be remembered: something of it is hidden, or it has no call, so
        that it may look like one with a hidden part."""
        if self.hidden.messages or self.hidden.beside:
            return True
        return not self.ends and any(tool.hidden for tool in self._hosted.values())

    @property
    def ends(self) -> bool:
        """Whether the client sees a call, which ends its message."""
        return any(isinstance(part, Call) for part in self.shown)

    def add(self, turn: str, parts: Sequence[Part], results: Sequence[HostedResult]) -> None:
        """Adds what the model wrote in a turn with calls of hosted tools, and the results of all of
        them. `turn`: its id."""
        self.end(parts)
        hidden = [result_part(result) for result in results if self._hosted[result.name].hidden]
        if self.ends:
            self.hidden.beside = list(self._places(parts))
            self.hidden.results = hidden
        else:
            self.hidden.turns.append(turn)
            self.hidden.messages += add_results([Message("assistant", [*parts])], hidden)

    def end(self, parts: Sequence[Part]) -> None:
        """Adds what the model wrote in the last turn of the answer."""
        self.shown += [part for part in parts if not self._is_hidden(part)]

    def _places(self, parts: Sequence[Part]) -> Iterator[HiddenCall]:
        """Yields the hidden calls of a turn with their places."""
        calls = characters = thoughts = 0
        for part in parts:
            if self._is_hidden(part):
                yield HiddenCall(part, calls, characters, thoughts)
            elif isinstance(part, Reasoning):
                thoughts += 1
            else:
                thoughts = 0
                calls += isinstance(part, Call)
                characters += len(squeeze(part.text)) if isinstance(part, Text) else 0

    def _is_hidden(self, part: Part) -> TypeGuard[Call]:
        if not isinstance(part, Call) or part.name not in self._hosted:
            return False
        return self._hosted[part.name].hidden
