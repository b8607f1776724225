"""Decides how an answer of several turns continues: which calls of hosted tools are run, whether
another turn follows, and which tools it may choose. Pure."""

from collections.abc import Mapping

from msgspec.structs import replace

from schemas.conversation import Conversation, HostedTool, ToolChoice
from schemas.events import Finish, FinishReason, Usage
from services.frontend.turns.hidden.deferred_tools import last_choice
from services.frontend.turns.hosted.ended_turn import EndedTurn


class HostedRules:
    """The rules of one answer. `ended`: the number of its turns that have ended."""

    def __init__(self, hosted: Mapping[str, HostedTool], max_rounds: int) -> None:
        """
        Args:
            hosted: the hosted tools of the answer by name.
            max_rounds: the number of turns with calls that are run.
        """
        self._hosted = hosted
        self._max_rounds = max_rounds

    def runs_calls(self, turn: EndedTurn, ended: int) -> bool:
        """Returns whether the calls of hosted tools in a turn are run now."""
        if turn.finish.reason is not FinishReason.STOP or not turn.calls:
            return False
        if ended > self._max_rounds:
            return False
        return not (turn.has_client_calls and self._has_deferred(turn))

    def reason_to_end(
        self, turn: EndedTurn, ended: int, conversation: Conversation
    ) -> FinishReason | None:
        """Returns why the answer ends after the results of a turn's calls; None if another turn
        follows."""
        if turn.has_client_calls:
            return turn.finish.reason
        if ended >= self._max_rounds and self._has_deferred(turn):
            return FinishReason.PAUSE
        max_tokens = conversation.sampling.max_tokens
        if max_tokens is not None and max_tokens <= turn.finish.usage.output:
            return FinishReason.LENGTH
        return None

    def next_choice(self, turn: EndedTurn, ended: int, conversation: Conversation) -> ToolChoice:
        """Returns the choice of tools in the turn after a turn's calls."""
        choice = conversation.tool_choice
        if ended >= self._max_rounds:
            return last_choice(choice, conversation.tools)
        is_hidden_search = all(self._is_hidden_search(call.name) for call in turn.calls)
        if choice.mode in ("any", "tool") and not is_hidden_search:
            # the first turn has made the required call
            return ToolChoice(parallel=choice.parallel, allowed=choice.allowed)
        return choice

    def answer_end(
        self, finish: Finish, reason: FinishReason, *, blocks: int, usage: Usage
    ) -> Finish:
        """Returns the end of the answer. If all tools are hidden, the client gets the size of one
        prompt: it may take that for the length of its conversation.

        Args:
            finish: the end of its last turn.
            blocks: the number of blocks of the answer.
            usage: the usage of all its turns.
        """
        end = replace(finish, reason=reason, blocks=blocks, usage=usage)
        if not all(tool.hidden for tool in self._hosted.values()):
            return end
        last = finish.usage
        return replace(
            end,
            usage=replace(usage, prompt=last.prompt, cached=last.cached),
            hidden_usage=Usage(usage.prompt - last.prompt, usage.cached - last.cached),
        )

    def _has_deferred(self, turn: EndedTurn) -> bool:
        """Returns whether the client may send the answer back with calls that are not run yet."""
        return any(self._hosted[call.name].deferred for call in turn.calls)

    def _is_hidden_search(self, name: str) -> bool:
        tool = self._hosted[name]
        return tool.hidden and tool.searches_tools
