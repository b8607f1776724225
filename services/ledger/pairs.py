"""Joins the calls of one turn that a client sent back one by one, each with its result.

A client may take a turn's items one after another, and add each call's result after the call. So a
turn with several calls comes back as several, between results. The ids of the calls show the turn,
without the ledger too.
"""

from collections.abc import Iterable, Sequence
from itertools import chain, groupby
from operator import attrgetter, itemgetter

from schemas.conversation import Call, Message, Part, Reasoning, Result
from services.ledger.evidence import call_place, item_tags


def join_pairs(messages: list[Message]) -> list[Message]:
    """The messages with each turn that was sent back in pairs as one message, in the order of its
    calls, and with the results after it in the same order. The same list if there are none.

    Messages of the model are of one turn if only results are between them, and all calls have ids
    of that turn. In messages without calls, the ids of Responses items count. A repeated call
    begins another turn.
    """
    turns: list[list[list[Message]]] = []
    """Runs of messages with one role: of a turn, messages of the model and results in alternation."""
    tag, calls = "", set[str]()
    for role, group in groupby(messages, key=attrgetter("role")):
        run = list(group)
        if role == "assistant":
            before, (tag, more) = tag, _place_of(run)
            if tag and tag == before and calls.isdisjoint(more):
                turns[-1].append(run)
                calls |= more
            else:
                turns.append([run])
                calls = more
        elif role == "tool" and tag:
            turns[-1].append(run)
        else:
            tag = ""
            turns.append([run])
    if max(map(len, turns), default=0) < 3:
        return messages
    return [
        message for turn in turns for message in (_joined(turn) if len(turn) > 2 else chain(*turn))
    ]


def _place_of(messages: Iterable[Message]) -> tuple[str, set[str]]:
    """The tag of the one turn of this server that all calls, or else all items, are of, "" if there
    is none; and the calls' places in it."""
    tags: set[str] = set()
    places: set[str] = set()
    items: list[str] = []
    for message in messages:
        items += message.ids
        for part in message.parts:
            if isinstance(part, Call):
                tag, place = call_place(part.call_id)
                tags.add(tag)
                places.add(place)
            elif isinstance(part, Reasoning) and part.id:
                items.append(part.id)
    tags = tags or item_tags(items)
    return tags.pop() if len(tags) == 1 else "", places


def _joined(turn: Sequence[Sequence[Message]]) -> Iterable[Message]:
    """One message of the model, then one with the results, first those of other calls. Equal
    reasoning counts once: where an API requires it before a call, clients repeat it."""
    said, answers = list(chain(*turn[::2])), chain(*turn[1::2])
    calls: list[tuple[str, list[Part]]] = []
    """Each call with the parts before it, by its place."""
    rest: list[Part] = []
    thoughts = set[tuple[str | None, str | None]]()
    for part in (part for message in said for part in message.parts):
        if isinstance(part, Reasoning):
            if (part.text, part.seal) in thoughts:
                continue
            thoughts.add((part.text, part.seal))
        rest.append(part)
        if isinstance(part, Call):
            calls.append((call_place(part.call_id)[1], rest))
            rest = []
    parts = [part for _, segment in sorted(calls, key=itemgetter(0)) for part in segment] + rest
    order = {part.call_id: at for at, part in enumerate(parts) if isinstance(part, Call)}
    results: list[Part] = [part for message in answers for part in message.parts]
    results.sort(key=lambda part: order.get(part.call_id, -1) if isinstance(part, Result) else -1)
    yield Message("assistant", parts, said[0].name, [id for message in said for id in message.ids])
    yield Message("tool", results)
