"""Calls of one turn that come back one by one are joined, and nothing else is."""

import time
from collections.abc import Callable

from schemas.conversation import Call, Message, Reasoning, Result, Text
from services.ledger.turns.evidence import call_id
from services.preprocessor.prompt.call_pairs import join_pairs
from tests.kit.conversations import assistant, user
from tests.kit.every import for_each, for_rows

ONE, OTHER = "0123456789abcdef01234567", "f" * 24
C1, C2, C3 = (call_id(ONE, block) for block in (1, 2, 4))
D1, D2 = (call_id(OTHER, block) for block in (0, 1))


def call(call_id: str, name: str = "look") -> Call:
    return Call(call_id, name, "{}")


def results(*ids: str) -> Message:
    return Message("tool", [Result(id, [Text(f"of {id}")]) for id in ids])


def pairs(*ids: str) -> list[Message]:
    """Each call with its result."""
    return [message for id in ids for message in (assistant(call(id)), results(id))]


@for_each([str, lambda id: id.replace("_", ""), lambda id: f"call_{id}|fc_1"])
def test_pairs_of_one_turn_are_one_message_in_the_order_of_its_calls(
    respell: Callable[[str], str],
) -> None:
    ids = [respell(id) for id in (C1, C2, C3)]
    joined = [user("hi"), assistant(*map(call, ids)), results(*ids), user("go on")]
    for order in ((0, 1, 2), (2, 1, 0), (1, 2, 0)):
        sent = pairs(*(ids[at] for at in order))
        assert join_pairs([user("hi"), *sent, user("go on")]) == joined


SO, SEALED, A, B, C = Reasoning("so"), Reasoning(None, "seal"), Text("a"), Text("b"), Text("c")
DONE = Message("assistant", [Text("done")], ids=[f"msg_{ONE}005"])


@for_rows(
    [
        (  # parts stay before their call
            [
                *(assistant(SO, A, call(C1)), results(C1)),
                *(assistant(B), assistant(call(C2), call(C3), C), results(C3, C2)),
            ],
            [assistant(SO, A, call(C1), B, call(C2), call(C3), C), results(C1, C2, C3)],
        ),
        (  # reasoning that is repeated before each call counts once
            [assistant(SEALED, call(C1)), results(C1), assistant(SEALED, call(C2)), results(C2)],
            [assistant(SEALED, call(C1), call(C2)), results(C1, C2)],
        ),
        (  # and stays before the first call of reversed pairs
            [assistant(SO, B, call(C2)), results(C2), assistant(SO, call(C1)), results(C1)],
            [assistant(SO, call(C1), B, call(C2)), results(C1, C2)],
        ),
        (  # items of a turn join it by their ids
            [*pairs(C1), DONE],
            [Message("assistant", [call(C1), *DONE.parts], ids=DONE.ids), results(C1)],
        ),
        (  # each turn has its own pairs
            pairs(C1, C2, D1, D2),
            [
                *(assistant(call(C1), call(C2)), results(C1, C2)),
                *(assistant(call(D1), call(D2)), results(D1, D2)),
            ],
        ),
        (  # missing results do not matter
            [*pairs(C1), assistant(call(C2)), user("stop")],
            [assistant(call(C1), call(C2)), results(C1), user("stop")],
        ),
    ]
)
def test_parts_of_a_turn_are_joined(sent: list[Message], joined: list[Message]) -> None:
    assert join_pairs(sent) == joined


@for_each(
    [
        pairs(C1, D1),
        [*pairs(C1), user("no"), *pairs(C2)],
        [*pairs(C1), Message("system", [Text("no")]), *pairs(C2)],
        pairs(C1, C1),
        [*pairs(C1), assistant(call(C2), call(D2)), results(C2, D2)],
        [*pairs(C1), assistant(call(C2), call("call_2")), results(C2, "call_2")],
        pairs("call_1", "call_2"),
        [*pairs(C1), assistant(Text("done"))],
        [*pairs(C1), assistant(), results(C2)],
        [results(C1), assistant(call(C1)), results(C2)],
        [],
    ]
)
def test_other_messages_stay_as_they_are(messages: list[Message]) -> None:
    assert join_pairs(messages) is messages


def test_long_turns_are_joined_in_linear_time() -> None:
    sent: list[Message] = []
    for block in range(2_000):
        id = call_id(ONE, block)
        sent += [assistant(Reasoning(id), call(id)), results(id)]
    begun = time.thread_time()
    assert len(join_pairs(sent)) == 2
    assert time.thread_time() - begun < 5
