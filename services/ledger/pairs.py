"""Joins the calls of one turn that a client sent back one by one, each with its result.

A client may take a turn's items one after another, and add each call's result after the call. So a turn with several
calls comes back as several, between results. The ids of the calls show the turn, without the ledger too.
"""

from collections.abc import Iterable, Sequence
from itertools import chain, groupby
from operator import attrgetter

from schemas.conversation import Call, Message, Part, Reasoning, Result
from services.ledger.evidence import call_place, item_tags

_role = attrgetter("role")


def join_pairs(messages: list[Message]) -> list[Message]:
    """The messages with each turn that was sent back in pairs as one message, in the order of its calls, and with the
    results after it in the same order. The same list if there are none.

    Messages of the model are of one turn if only results are between them, and all calls have ids of that turn. In
    messages without calls, the ids of Responses items count. A repeated call begins another turn.
    """
    runs: list[list[Message]] = []
    tag, joined = "", False
    for role, group in groupby(messages, key=_role):
        run = list(group)
        if role == "assistant":
            before, tag = tag, _tag_of(run)
            if tag and tag == before and (turn := _joined(runs[-2], run)) is not None:
                runs[-2], joined = [turn], True
                continue
        elif role != "tool":
            tag = ""
        elif runs and runs[-1][0].role == "tool":
            runs[-1] = [_ordered([*runs[-1], *run], runs[-2])]
            continue
        runs.append(run)
    return list(chain.from_iterable(runs)) if joined else messages


def _tag_of(messages: Iterable[Message]) -> str:
    """The tag of the one turn of this server that all calls, or else all items, are of; empty if there is none."""
    tags: set[str] = set()
    items: list[str] = []
    for message in messages:
        items += message.ids
        for part in message.parts:
            if isinstance(part, Call):
                tags.add(call_place(part.call_id)[0])
            elif isinstance(part, Reasoning) and part.id:
                items.append(part.id)
    tags = tags or item_tags(items)
    return tags.pop() if len(tags) == 1 else ""


def _joined(earlier: Sequence[Message], later: Sequence[Message]) -> Message | None:
    """One message of both; None where a call occurs twice. Equal reasoning counts once: where an API requires it before
    a call, clients repeat it."""
    parts = [part for message in earlier for part in message.parts]
    thoughts = [(part.text, part.seal) for part in parts if isinstance(part, Reasoning)]
    for part in (part for message in later for part in message.parts):
        if not (isinstance(part, Reasoning) and (part.text, part.seal) in thoughts):
            parts.append(part)
    segments: dict[str, list[Part]] = {}
    """Each call with the parts before it, by a key that sorts the calls."""
    rest: list[Part] = []
    for part in parts:
        rest.append(part)
        if isinstance(part, Call):
            place = call_place(part.call_id)[1]
            if place in segments:
                return None
            segments[place], rest = rest, []
    ordered = [part for place in sorted(segments) for part in segments[place]]
    return Message("assistant", ordered + rest, earlier[0].name, [id for one in (*earlier, *later) for id in one.ids])


def _ordered(messages: Iterable[Message], turn: Iterable[Message]) -> Message:
    """The results in the order of the turn's calls, after those of other calls."""
    calls = [part.call_id for message in turn for part in message.parts if isinstance(part, Call)]

    def place(part: Part) -> int:
        return calls.index(part.call_id) if isinstance(part, Result) and part.call_id in calls else -1

    return Message("tool", sorted((part for message in messages for part in message.parts), key=place))
