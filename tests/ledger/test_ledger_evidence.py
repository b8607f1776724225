"""The ids and reasoning that identify a turn."""

from schemas.conversation import Message, Reasoning, Text
from services.ledger.turns.evidence import call_id, evidence_of, id_digests, reasoning_digests
from tests.kit.conversations import assistant, call

TURN = "0123456789abcdef01234567"


def test_call_ids_are_found_however_they_are_separated() -> None:
    own = call_id(TURN, 3)
    digests = set(id_digests(TURN, [own], []))
    for spelled in (own, own.replace("_", ""), own.replace("_", "-"), f"call_{own}|fc_1"):
        found = evidence_of([assistant(call("run", "{}", spelled))])
        assert found.ids
        assert found.ids < digests


def test_foreign_ids_are_not_evidence() -> None:
    others = ("", "call_1", "toolu_01A09q90qw90lq917835lq9", "functions.look:0")
    for foreign in (*others, call_id(TURN, 1)[:-1]):
        assert not evidence_of([assistant(call("run", "{}", foreign))]).ids


def test_item_ids_identify_their_turn() -> None:
    digest = frozenset(id_digests(TURN, [], []))
    assert evidence_of([Message("assistant", [Text("x")], ids=[f"msg_{TURN}001"])]).ids == digest
    assert evidence_of([assistant(Reasoning(None, id=f"rs_{TURN}000"))]).ids == digest
    for foreign in (f"msg_{TURN}i001", "msg_1", f"msg_{TURN[:-1]}"):
        assert not evidence_of([Message("assistant", [Text("x")], ids=[foreign])]).ids


def test_white_space_in_reasoning_does_not_count() -> None:
    assert reasoning_digests(["a b", "  ", "c"]) == reasoning_digests([" ab\n", "c "])
    assert reasoning_digests(["ab", "c"])[0] == reasoning_digests(["abc"])[0]
    assert reasoning_digests(["", "\n"]) == []
