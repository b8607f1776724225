"""Adds results of calls to the messages of a conversation."""

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from schemas.conversation import Call, Message, Part, Result


def add_results(messages: Sequence[Message], results: Iterable[Result]) -> list[Message]:
    """Returns the messages with further results: after the last message with their calls, in the
    order of the calls."""
    return insert_results(messages, [(result, len(messages)) for result in results])


def insert_results(
    messages: Sequence[Message], arrivals: Iterable[tuple[Result, int]]
) -> list[Message]:
    """Returns the messages as if each result had been added when it came (`add_results`).

    `arrivals`: each result with the number of messages that came before it.
    """
    added = _by_message(messages, arrivals)
    out: list[Message] = []
    merged: Message | None = None
    for index, message in enumerate(messages):
        if message is merged:
            continue
        out.append(message)
        if index not in added:
            continue
        results = added[index].results
        if index + 1 < added[index].messages_before and messages[index + 1].role == "tool":
            merged = messages[index + 1]
            results = [part for part in merged.parts if isinstance(part, Result)] + results
        out.append(Message("tool", _in_order_of_calls(results, message)))
    return out


@dataclass(slots=True)
class _NewResults:
    """Results for the calls of one message."""

    messages_before: int
    """The number of messages that came before the first of them."""
    results: list[Result]


def _by_message(
    messages: Sequence[Message], arrivals: Iterable[tuple[Result, int]]
) -> dict[int, _NewResults]:
    """Returns the results by the index of the last message with their call that came before them.
    One without a call is left out."""
    call_indices: dict[str, list[int]] = {}
    for index, message in enumerate(messages):
        for call in _calls_of(message):
            call_indices.setdefault(call.call_id, []).append(index)
    added: dict[int, _NewResults] = {}
    for result, end in arrivals:
        indices = call_indices.get(result.call_id, [])
        before = bisect_left(indices, end)
        if before:
            new = added.setdefault(indices[before - 1], _NewResults(end, []))
            new.results.append(result)
    return added


def _in_order_of_calls(results: list[Result], message: Message) -> list[Part]:
    order = {call.call_id: index for index, call in enumerate(_calls_of(message))}
    return [*sorted(results, key=lambda result: order.get(result.call_id, len(order)))]


def _calls_of(message: Message) -> list[Call]:
    return [part for part in message.parts if isinstance(part, Call)]
