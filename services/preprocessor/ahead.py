"""What the next turn's prompt will begin with, whatever its user or its tools are going to say. Pure.

As soon as a turn has ended, the next prompt is known up to there, in the form in which the template renders the turn as
history. Mostly these are tokens which the engine has just decoded. Where the template changes what is history (it drops
the reasoning of an answered question, say) they are others, and a worker that is idle can prefill them before they are
asked for (`nvext.agent_hints.speculative_prefill`).
"""

from array import array
from collections.abc import Callable, Sequence

from msgspec.structs import replace

from schemas.conversation import Call, Conversation, Part, Result, Text, Turn
from services.preprocessor.common_prefix import common_prefix

_PROBES = ("Next", "7 steps")
"""Two answers that have nothing in common: what both prompts begin with does not depend on the answer."""

Encode = Callable[[Conversation], Sequence[int]]


def certain_prefix(conversation: Conversation, said: Sequence[Part], encode: Encode) -> "array[int]":
    """The ids with which every prompt begins that goes on from `conversation` and the turn `said` behind it.

    `encode` makes a conversation's prompt. Raises what it raises.
    """
    one, other = (array("I", encode(_followed(conversation, said, probe))) for probe in _PROBES)
    return common_prefix(one, other)


def _followed(conversation: Conversation, said: Sequence[Part], answer: str) -> Conversation:
    """The conversation with the turn and an answer to it: of its tools where it called any, else of its user."""
    calls = [part for part in said if isinstance(part, Call)]
    next_turn = (
        Turn("tool", [Result(call.call_id, [Text(answer)], name=call.name) for call in calls])
        if calls
        else Turn("user", [Text(answer)])
    )
    return replace(conversation, turns=[*conversation.turns, Turn("assistant", list(said)), next_turn])
