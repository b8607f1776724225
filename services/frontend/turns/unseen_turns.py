"""Collects what the client of an answer does not see of its turns, for each message that it will
send back. Pure."""

from collections.abc import Iterator, Mapping, Sequence
from typing import TypeGuard

from msgspec.structs import replace

from schemas.conversation import Call, HostedTool, Message, Part
from schemas.events import HostedResult
from services.frontend.content.hosted_tools import add_results, result_part
from services.frontend.turns.ended_turn import EndedTurn
from services.frontend.turns.hidden_turns import HiddenTurns


class UnseenTurns:
    """The turns of an answer that their client sends back as one message."""

    def __init__(self, hosted: Mapping[str, HostedTool]) -> None:
        """`hosted`: the hosted tools of the answer by name."""
        self.shown: list[Part] = []
        """What the client sees of them."""
        self.hidden = HiddenTurns()
        """What it does not see."""
        self.ends = False
        """Whether the client sees a call, which ends its message."""
        self._hosted = hosted

    def __bool__(self) -> bool:
        """Whether there is anything that the client does not see."""
        return bool(self.hidden.messages or self.hidden.beside)

    def add(self, id: str, turn: EndedTurn, results: Sequence[HostedResult]) -> None:
        """Adds a turn with calls of hosted tools, and the results of all of them."""
        self._show(turn.parts)
        self.ends = any(isinstance(part, Call) for part in self.shown)
        unseen = [result_part(result) for result in results if self._hosted[result.name].hidden]
        hidden = self.hidden
        if self.ends:
            places = [*self._places(turn.parts)]
            self.hidden = replace(hidden, beside=places, results=unseen)
        else:
            messages = add_results([Message("assistant", turn.parts)], unseen)
            self.hidden = replace(
                hidden, turns=[*hidden.turns, id], messages=[*hidden.messages, *messages]
            )

    def end(self, turn: EndedTurn) -> None:
        """Adds the last turn of the answer."""
        self._show(turn.parts)

    def _show(self, parts: Sequence[Part]) -> None:
        self.shown += [part for part in parts if not self._is_hidden(part)]

    def _places(self, parts: Sequence[Part]) -> Iterator[tuple[int, Call]]:
        """Yields the hidden calls among the parts of a turn, each with the number of calls before
        it that the client sees."""
        visible = 0
        for part in parts:
            if self._is_hidden(part):
                yield visible, part
            elif isinstance(part, Call):
                visible += 1

    def _is_hidden(self, part: Part) -> TypeGuard[Call]:
        if not isinstance(part, Call) or part.name not in self._hosted:
            return False
        return self._hosted[part.name].hidden
