"""What a search finds, and where."""

import pytest

from schemas.conversation import Call, Client, Reasoning, Text
from tests.kit.conversations import user
from tests.tools.inspector.by_hand import Bus, answer, asked, result
from turnwire_tools.inspector.fold import Fold
from turnwire_tools.inspector.search import Hit, SearchQuery, hits

LS = Call("toolu_77", "Bash", '{"command": "ls -la"}')


@pytest.fixture
def played(bus: Bus) -> Fold:
    client = Client("s", "claude-cli/2.1 (x)", "alice")
    bus.turn(asked(user("Where is the map?"), client=client), range(9), [1], Reasoning("Hm"), LS)
    history = (user("Where is the map?"), answer(Reasoning("Hm"), LS), result(LS, "map.txt"))
    bus.turn(asked(*history, client=client), range(20), [2], Text("In map.txt."))
    bus.turn(asked(user("Other"), session="t"), range(9), [3], Text("Done."))
    return bus.fold


def found(fold: Fold, text: str, **more: bool) -> list[Hit]:
    return [hit for hit in hits(fold, SearchQuery(text, **more)) if hit is not None]


@pytest.mark.parametrize(
    ("query", "turns", "where"),
    [
        ("WHERE IS", ["turn0001"], "question"),
        ('"is the map"', ["turn0001"], "question"),
        ("ls -la", ["turn0001"], "call of Bash"),
        ("map.txt", ["turn0002"], "result of Bash"),
        ("in map.txt", ["turn0002"], "text"),
        ("hm", ["turn0001"], "reasoning"),
        ("toolu_77", ["turn0002", "turn0001"], "result"),
        ("req_turn0002", ["turn0002"], ""),
        ("alice", ["turn0002", "turn0001"], ""),
        ("key:ALICE map", ["turn0002", "turn0001"], "result of Bash"),
        ("tool:bash", ["turn0002", "turn0001"], "result"),
        ("tool:bash key:alice", ["turn0002", "turn0001"], "result"),
        ("tool:bash tool:read", [], ""),
        ("client:claude state:finished other", ["turn0003"], "question"),
        ("agent", ["turn0003", "turn0001"], "instructions"),
        ("finished", ["turn0003", "turn0002", "turn0001"], ""),
        ("nowhere", [], ""),
    ],
)
def test_words_and_fields_are_found(played: Fold, query: str, turns: list[str], where: str) -> None:
    result = found(played, query)
    assert [hit.turn for hit in result] == turns
    if result:
        assert result[0].where == where


def test_a_hit_has_the_text_around_it(played: Fold) -> None:
    (hit,) = found(played, "IS")[-1:]
    assert (hit.before, hit.match, hit.after) == ("Where ", "is", " the map?")


def test_a_tool_is_found_with_what_it_was_called_with(played: Fold) -> None:
    hit = found(played, "tool:as")[-1]
    assert (hit.where, hit.before, hit.match) == ("call", "B", "as")
    assert hit.after.startswith('h {"command"')
    (hidden,) = found(played, "tool:bash", texts=False)[-1:]
    assert (hidden.match, hidden.after) == ("Bash", "")


def test_without_texts_only_names_and_ids_are_found(played: Fold) -> None:
    assert found(played, "map", texts=False) == []
    assert [hit.turn for hit in found(played, "toolu_77", texts=False)] == ["turn0002", "turn0001"]


def test_an_empty_query_finds_nothing() -> None:
    assert not SearchQuery("  ")
