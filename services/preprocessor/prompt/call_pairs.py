"""Joins the calls of one turn that a client sent back one by one, each with its result.

A client may take a turn's items one after another, and add each call's result after the call. So a
turn with several calls comes back as several, between results. The ids of the calls show the turn,
without the ledger too.
"""

from collections.abc import Iterable, Sequence
from itertools import groupby
from operator import attrgetter, itemgetter

from msgspec import Struct

from schemas.conversation import Call, Message, Part, Reasoning, Result
from services.ledger.turns.chain import parts_of
from services.ledger.turns.evidence import call_order, item_tags


def join_pairs(messages: list[Message]) -> list[Message]:
    """The messages with each turn that was sent back in pairs as one message, in the order of its
    calls, and with the results after it in the same order. The same list if there are none.

    Messages of the model are of one turn if only results are between them, and all calls have ids
    of that turn. In messages without calls, the ids of Responses items count. A repeated call
    begins another turn.
    """
    if not _may_have_pairs(messages):
        return messages
    groups: list[_Group] = []
    for role, run in groupby(messages, key=attrgetter("role")):
        group = _Group(list(run))
        if role == "assistant":
            group.tag, group.calls = _turn_and_calls(group.messages)
        if groups and groups[-1].is_continued_by(group, role):
            groups[-1].add(group)
        else:
            groups.append(group)

    if not any(group.is_in_pairs for group in groups):
        return messages
    joined: list[Message] = []
    for group in groups:
        joined += group.joined()
    return joined


def _may_have_pairs(messages: Iterable[Message]) -> bool:
    """Whether several runs of the model's messages have ids of one turn: nearly no conversation has
    such runs, and this takes a third of the time that the groups take."""
    earlier: set[str] = set()
    run: set[str] = set()
    for message in messages:
        if message.role != "assistant":
            earlier |= run
            run.clear()
            continue
        run |= _some_tags(message)
        if not earlier.isdisjoint(run):
            return True
    return False


def _some_tags(message: Message) -> set[str]:
    """The tag of a message's first call; of its items, if it has no calls."""
    items = message.ids
    for part in message.parts:
        if isinstance(part, Call):
            tag, _ = call_order(part.call_id)
            return {tag} if tag else set()
        if isinstance(part, Reasoning) and part.id:
            items = [*items, part.id]
    return item_tags(items) if items else set()


class _Group(Struct):
    """Messages of one turn and their results, or of another role."""

    messages: list[Message]
    tag: str = ""
    """The turn's; "": its messages cannot be continued."""
    calls: set[str] = set()
    """The order of the turn's calls (`call_order`)."""
    runs: int = 1
    """Runs of messages with one role: messages of the model and results in alternation."""

    @property
    def is_in_pairs(self) -> bool:
        """Whether results are between the turn's messages."""
        return self.runs > 2

    def is_continued_by(self, other: "_Group", role: str) -> bool:
        """Whether messages of this role, which follow, are the same turn's or results of it."""
        if not self.tag:
            return False
        if role == "tool":
            return True
        return other.tag == self.tag and self.calls.isdisjoint(other.calls)

    def joined(self) -> list[Message]:
        """The messages, without pairs."""
        if self.is_in_pairs:
            return _joined(self.messages)
        return self.messages

    def add(self, other: "_Group") -> None:
        """Adds the messages that follow."""
        self.messages += other.messages
        self.calls |= other.calls
        self.runs += 1


def _turn_and_calls(messages: Iterable[Message]) -> tuple[str, set[str]]:
    """The tag of the one turn of this server that all calls, or else all items, are of, "" if there
    is none; and the calls' order in it."""
    tags: set[str] = set()
    orders: set[str] = set()
    items: list[str] = []
    for message in messages:
        items += message.ids
        for part in message.parts:
            if isinstance(part, Call):
                tag, order = call_order(part.call_id)
                tags.add(tag)
                orders.add(order)
            elif isinstance(part, Reasoning) and part.id:
                items.append(part.id)
    tags = tags or item_tags(items)
    if len(tags) != 1:
        return "", orders
    return tags.pop(), orders


def _joined(messages: Sequence[Message]) -> list[Message]:
    """One message of the model, then one with the results, first those of other calls."""
    answers = [message for message in messages if message.role == "assistant"]
    results = parts_of(message for message in messages if message.role != "assistant")
    parts = _without_repeated_reasoning(_in_order_of_calls(parts_of(answers)))
    ids: list[str] = []
    for message in answers:
        ids += message.ids

    order = {part.call_id: index for index, part in enumerate(parts) if isinstance(part, Call)}
    results.sort(key=lambda part: order.get(part.call_id, -1) if isinstance(part, Result) else -1)
    return [Message("assistant", parts, answers[0].name, ids), Message("tool", results)]


def _without_repeated_reasoning(parts: Iterable[Part]) -> list[Part]:
    """The parts with equal reasoning once, where it comes first: if an API requires it before a
    call, clients repeat it."""
    kept: list[Part] = []
    thoughts: set[tuple[str | None, str | None]] = set()
    for part in parts:
        if isinstance(part, Reasoning):
            if (part.text, part.seal) in thoughts:
                continue
            thoughts.add((part.text, part.seal))
        kept.append(part)
    return kept


def _in_order_of_calls(parts: Iterable[Part]) -> list[Part]:
    """The parts in the order of their turn's calls, each call with the parts before it."""
    segments: list[tuple[str, list[Part]]] = []
    segment: list[Part] = []
    for part in parts:
        segment.append(part)
        if isinstance(part, Call):
            _, order = call_order(part.call_id)
            segments.append((order, segment))
            segment = []
    segments.sort(key=itemgetter(0))

    ordered: list[Part] = []
    for _, ending_with_call in segments:
        ordered += ending_with_call
    return ordered + segment
