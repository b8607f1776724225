"""Compares a prompt with the one before it in its session: where they differ first, what that
costs, and why. Pure.

Each prompt of an agent should begin with the one before it and that one's answer. Where it does
not, the engine computes everything after the first difference again. Conversations show what a
client changed; where the earlier one is not kept, digests of its parts show which of them it
changed, or the rendered texts what varies in them.
"""

from array import array
from collections.abc import Iterable, Mapping, Sequence

import msgspec
from msgspec import Struct
from xxhash import xxh3_128_digest

from schemas.conversation import Conversation, Part, ToolSpec
from services.prompt_diff.change import Change, ChangeKind
from services.prompt_diff.conversations import SETTINGS, conversation_changes, tool_list_changes
from services.prompt_diff.texts import WORD, variation, words_at
from services.tokenization.segments import TokenIds, common_prefix

PARTS: Mapping[str, ChangeKind] = {
    "system": "system",
    "tools": "tools",
    **dict.fromkeys(SETTINGS, "settings"),
    "messages": "message",
    "history": "history",
    "deferred": "tools",
}
"""Parts of a request that are compared by digests, in the order of changes. `messages`: one was
edited; `history`: it is shorter than before; `deferred`: tools that are not in the tool list."""
_NO_IDS: TokenIds = array("I")


class ComparedPrompt(Struct, frozen=True, kw_only=True):
    """A prompt as far as it was recorded. Only what both prompts have is compared."""

    ids: TokenIds = _NO_IDS
    conversation: Conversation | None = None
    text: str = ""
    """The rendered text; of the earlier prompt without its turn opening."""
    head: int = 0
    """Characters of `text` before the first answer."""
    tools: Sequence[str] = ()
    """Names of the tools in `text`."""
    digests: Mapping[str, bytes] = {}
    """Digests of the request's parts (`digests_of`)."""
    states: Sequence[bytes] = ()
    """Digests of the history before each turn of the model and this one (`SentTurn.state`)."""


class Difference(Struct, frozen=True):
    """How a prompt departs from the one before it and that one's answer."""

    at: int | None
    """The first token that differs; None: the tokens are unknown."""
    again: int
    """Earlier tokens after that place, which are computed again."""
    changes: list[Change]
    """In the order of the prompt; of two texts only the first."""


def difference(
    before: ComparedPrompt,
    now: ComparedPrompt,
    answer: Sequence[Part] = (),
    answer_ids: TokenIds = _NO_IDS,
) -> Difference:
    """Compares a prompt with the one before it in its session, and with that one's answer where it
    is known."""
    at: int | None = None
    again = 0
    if before.ids and now.ids:
        expected = before.ids + answer_ids
        at = len(common_prefix(expected, now.ids))
        again = len(expected) - at
    return Difference(at, again, _changes(before, now, answer))


def _changes(before: ComparedPrompt, now: ComparedPrompt, answer: Sequence[Part]) -> list[Change]:
    """Returns the changes by the best that both prompts have: conversations, digests or texts."""
    if before.conversation is not None and now.conversation is not None:
        return conversation_changes(before.conversation, answer, now.conversation)
    if before.digests and now.digests:
        return _digest_changes(before, now)
    if now.text.startswith(before.text):
        return []
    return _text_changes(before, now)


def _digest_changes(before: ComparedPrompt, now: ComparedPrompt) -> list[Change]:
    changed = {name for name, digest in before.digests.items() if digest != now.digests.get(name)}
    if before.states[-1] not in now.states:
        changed.add("history" if len(now.states) < len(before.states) else "messages")
    return [Change(kind, name) for name, kind in PARTS.items() if name in changed]


def _text_changes(before: ComparedPrompt, now: ComparedPrompt) -> list[Change]:
    changes = tool_list_changes(before.tools, now.tools)
    if changes:
        return changes
    old, new = words_at(before.text, now.text)
    before_answer = before.text[: before.head]
    if now.text.startswith(before_answer):
        where = "the text after the first answer begins"
        return [Change("history", where, old[:WORD], new[:WORD])]
    where = "the text before the first answer"
    return [Change("system", where, old[:WORD], new[:WORD], variation(old, new))]


def digests_of(conversation: Conversation, tools: Sequence[ToolSpec]) -> dict[str, bytes]:
    """Returns digests of the request's parts without its messages.

    `tools`: as the model sees them.
    """
    values: dict[str, object] = {name: getattr(conversation, name) for name in SETTINGS}
    values["system"] = "\n".join(part.text for part in conversation.system)
    values["tools"] = _contents(tool for tool in tools if not tool.deferred)
    values["deferred"] = _contents(tool for tool in tools if tool.deferred)
    return {name: xxh3_128_digest(msgspec.json.encode(value)) for name, value in values.items()}


def _contents(tools: Iterable[ToolSpec]) -> list[tuple[object, ...]]:
    return [(tool.name, tool.description, tool.schema) for tool in tools]
