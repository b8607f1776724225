"""The sums of the start page."""

import pytest

from schemas.conversation import Call, Client, Text, ToolSpec
from schemas.errors import Overloaded
from schemas.events import Failed
from tests.kit.conversations import user
from tests.tools.inspector.by_hand import TOOLS, Bus, answer, asked, result
from turnwire_tools.inspector.overview import LOST, Overview, overview

LS = Call("toolu_1", "Bash", '{"command": "ls"}')
PROMPT = list(range(1000, 1400))


def summed(bus: Bus) -> Overview:
    return overview(bus.fold.turns.values(), bus.now - 3600, bus.now)


def test_tokens_times_and_failures_are_summed(bus: Bus) -> None:
    bus.turn(asked(user("Q")), PROMPT, [1, 2, 3], Text("x"), cached=100)
    bus.turn(asked(user("R"), session="r"), PROMPT, [4], Text("x"), cached=300)
    failed = bus.begin(asked(user("S"), session="t"), PROMPT)
    bus.events(failed, Failed(Overloaded("full").info))
    found = summed(bus)
    total = found.total
    assert (found.sessions, total.turns, total.failed) == (3, 3, 1)
    assert (total.prompt, total.cached, total.output) == (800, 400, 6)
    assert total.p50_ms is not None
    assert total.p95_ms is not None
    assert 0 < total.p50_ms <= total.p95_ms
    assert sum(bar.turns for bar in found.bars) == 3
    assert len(found.bars) == 61  # the first and the last one are parts of minutes
    assert found.slowest[0] in bus.fold.turns


def test_only_turns_of_the_span_count(bus: Bus) -> None:
    bus.turn(asked(user("Q")), PROMPT, [1], Text("x"))
    since = bus.now
    bus.turn(asked(user("R"), session="r"), PROMPT, [1], Text("x"))
    found = overview(bus.fold.turns.values(), since, bus.now)
    assert found.total.turns == 1
    assert overview([], 5.0, 5.0).total.turns == 0


def test_a_bar_has_the_same_turns_whenever_it_is_drawn(bus: Bus) -> None:
    for number in range(12):  # a turn each 7 s
        bus.turn(asked(user("Q"), session=f"s{number}"), PROMPT, [1], Text("x"))
    turns = bus.fold.turns.values()
    drawn = [
        {bar.start: bar.turns for bar in overview(turns, now - 900, now).bars if bar.turns}
        for now in (bus.now, bus.now + 25, bus.now + 59, bus.now + 600)
    ]
    assert len(drawn[0]) > 1
    assert drawn == drawn[:1] * 4
    assert all(start % 60 == 0 for start in drawn[0])


def test_the_time_before_the_first_turn_was_seen_does_not_count(bus: Bus) -> None:
    turns = bus.fold.turns.values()
    for observed, expected in ((0.0, 500.0), (900.0, 900.0), (2000.0, 1000.0)):
        assert overview(turns, 500.0, 1000.0, observed).observed == expected


def test_what_was_computed_again_is_listed_by_cause_and_client(bus: Bus) -> None:
    bus.turn(asked(user("Q")), PROMPT, [1, 2], LS)
    history = (user("Q"), answer(LS), result(LS, "a.txt"))
    edited = [*PROMPT[:50], *range(5000, 5400)]
    worst = bus.turn(asked(*history, system=[Text("New.")]), edited, [3], Text("x"), cached=48)
    more = (*history, answer(Text("x")), user("More"))
    bus.turn(asked(*more, system=[Text("New.")]), [*edited, 3, 9, 9], [4], Text("y"), cached=0)
    rows = {row.cause: row for row in summed(bus).again}
    assert set(rows) == {"system", LOST}
    assert (rows["system"].client, rows["system"].worst) == ("claude-cli/2.1", worst.id)
    assert rows["system"].reason == "system text 1 changed"
    assert rows[LOST].tokens == pytest.approx(451, abs=2)


def test_tools_are_weighed_by_definition_and_results(bus: Bus) -> None:
    bus.turn(asked(user("Q")), PROMPT, [1, 2], LS)
    bus.turn(asked(user("Q"), answer(LS), result(LS, "a.txt " * 50)), PROMPT * 2, [3], Text("x"))
    bash, read = summed(bus).tools
    assert (bash.name, bash.prompts, bash.calls, bash.results, bash.errors) == ("Bash", 2, 1, 1, 0)
    assert bash.result_tokens > bash.definition > 0
    assert (read.name, read.calls, read.results) == ("Read", 0, 0)


def test_a_deferred_tool_weighs_nothing_in_a_prompt(bus: Bus) -> None:
    tools = [ToolSpec(f"mcp{at}", "x" * 1400, deferred=True) for at in range(9)]
    bus.turn(asked(user("Q"), tools=[*TOOLS, *tools]), PROMPT, [1], Text("x"), tool_tokens=300)
    found = summed(bus).tools
    assert {tool.name for tool in found} == {"Bash", "Read"}
    assert sum(tool.definition for tool in found) == pytest.approx(300, abs=2)


def test_keys_and_clients_have_sums_of_their_own(bus: Bus) -> None:
    for key in ("alice", "bob", "alice"):
        client = Client(None, "curl/8", key)
        bus.turn(asked(user(f"Q{bus.count}"), client=client), PROMPT, [1], Text("x"), cached=200)
    found = summed(bus)
    assert [(one.name, one.turns, one.prompt, one.cached) for one in found.keys] == [
        ("alice", 2, 800, 400),
        ("bob", 1, 400, 200),
    ]
    assert [(one.name, one.turns) for one in found.clients] == [("curl/8", 3)]
