"""Finds what the next turn's prompt will begin with, whatever its user or its tools answer. Pure.

When a turn has ended, the template fixes the next prompt up to that answer. Most of it are tokens that the engine has
just decoded. Where the template changes history (drops the reasoning of an answered question), an idle worker can
prefill the other tokens before the next request comes (`nvext.agent_hints.speculative_prefill`).
"""

from array import array
from collections.abc import Callable, Sequence

from msgspec.structs import replace

from schemas.conversation import Call, Conversation, Part, Result, Text, Turn
from services.tokenization.segments import TokenIds, common_prefix

_ANSWERS = ("Next", "7 steps")
"""Two answers without a common beginning: what both prompts begin with does not depend on the answer."""

Encode = Callable[[Conversation], Sequence[int]]


def certain_prefix(conversation: Conversation, said: Sequence[Part], encode: Encode) -> TokenIds:
    """The ids with which every prompt begins that continues `conversation` behind the model's turn `said`.

    `encode` makes a conversation's prompt, and its exceptions propagate.
    """
    one, other = (array("I", encode(_with_answer(conversation, said, answer))) for answer in _ANSWERS)
    return common_prefix(one, other)


def _with_answer(conversation: Conversation, said: Sequence[Part], answer: str) -> Conversation:
    """The conversation with the model's turn and an answer to it, from its tools if it called any, else its user."""
    calls = [part for part in said if isinstance(part, Call)]
    next_turn = (
        Turn("tool", [Result(call.call_id, [Text(answer)], name=call.name) for call in calls])
        if calls
        else Turn("user", [Text(answer)])
    )
    return replace(conversation, turns=[*conversation.turns, Turn("assistant", list(said)), next_turn])
