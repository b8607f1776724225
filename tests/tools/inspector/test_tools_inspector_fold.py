"""Messages of a bus become turns, also where they are lost, repeated or of several attempts."""

from msgspec import Raw
from msgspec.structs import replace

from schemas.control import Cancel, Replay, StreamPosition
from schemas.conversation import Call, Reasoning, Sampling, Text
from schemas.errors import EngineFailed, Overloaded
from schemas.events import Delta, Failed, Interrupted, Prepared
from schemas.requests import GenerateRequest, TurnRequest
from schemas.token_ids import pack_ids
from tests.tools.inspector.by_hand import Bus, answer, asked, block_events, user
from turnwire_tools.inspector.fold import Fold

LS = Call("toolu_1", "Bash", '{"command": "ls"}')


def test_a_turn_has_its_times_counts_and_blocks(bus: Bus) -> None:
    turn = bus.turn(
        asked(user("Q")), range(100), [7, 8, 9], Reasoning("I look."), Text("Now:"), LS, cached=64
    )
    assert (turn.state, turn.finish) == ("finished", "stop")
    assert (turn.client, turn.model) == ("claude-cli/2.1", "m")
    assert (turn.prompt, turn.cached, turn.output, turn.calls) == (100, 64, 4, 1)
    assert (turn.worker, turn.parser) == ("worker-1", "parser-1")
    assert [block.kind for block in turn.blocks] == ["reasoning", "text", "tool_use"]
    assert [block.text for block in turn.blocks] == ["I look.", "Now:", '{"command": "ls"}']
    assert [mark.kind for mark in turn.marks] == [
        *("received", "placed", "opened", "first", "block", "block", "dispatch", "block")
    ]
    assert [mark.kind for mark in turn.marks if mark.trouble] == []
    assert 0 < turn.placed_ms < turn.ttft_ms < turn.ms  # type: ignore[operator]
    assert turn.ids.tolist() == [7, 8, 9]


def test_a_turn_has_what_its_worker_expected_in_the_cache(bus: Bus) -> None:
    turn = bus.begin(asked(user("Q")), range(100))
    bus.write(turn, [], expected=64)
    row = bus.fold.turns[turn]
    assert (row.expected, row.cached) == (64, 64)  # until the engine reports it
    bus.write(turn, [7], Text("Yes."), cached=32)
    assert (row.expected, row.cached) == (64, 32)


def test_a_turn_has_the_tokens_of_its_tools(bus: Bus) -> None:
    turn = bus.turn(asked(user("Q")), range(100), [7], Text("A"), tool_tokens=60)
    assert turn.tools == 60
    assert "100 tokens, 60 of tools, on worker-1" in [mark.text for mark in turn.marks]


def test_attempts_takeovers_and_replays_are_trouble(bus: Bus) -> None:
    turn = bus.begin(asked(user("Q")), range(9))
    for _ in range(2):  # a repeat is dropped
        bus.write(turn, [1, 2])
        bus.events(turn, *block_events(0, Text("Hel"))[:2])
    assert bus.fold.turns[turn].ids.tolist() == [1, 2]
    bus.send(Replay("frontend-1", [StreamPosition(turn, 1, 3)]))
    bus.events(turn, Prepared(9, 99, "worker-1", "parser-2"))
    bus.events(
        turn,
        Interrupted("worker-1", pack_ids([1, 2]), EngineFailed("gone").info, block=0, offset=3),
    )
    again = TurnRequest(turn, "frontend-1", asked(user("Q")), 2, resume=pack_ids([1, 2]))
    bus.send(replace(again, avoid=["worker-1"]))
    names = (turn, 2, "m", pack_ids(range(9)), "parser-3", "frontend-1")
    bus.send(GenerateRequest(*names, Sampling(), [], Raw(b"null")), "worker-2")
    bus.events(turn, Prepared(9, 99, "worker-1", "parser-1"), attempt=1)  # late
    bus.events(turn, Prepared(9, 99, "worker-2", "parser-3"), attempt=2)
    bus.events(turn, Delta(0, 3, "lo"), block_events(0, Text("Hello"))[2], attempt=2)
    bus.finish(turn, 1, output=4)
    found = bus.fold.turns[turn]
    trouble = [mark.kind for mark in found.marks if mark.trouble]
    assert trouble == ["replay", "takeover", "interrupted", "attempt"]
    assert [mark.kind for mark in found.marks[-4:]] == ["attempt", "placed", "opened", "block"]
    assert (found.attempt, found.blocks[0].text, found.state) == (2, "Hello", "finished")


def test_failures_and_cancellations_end_a_turn(bus: Bus) -> None:
    failed, left, cut = (bus.begin(asked(user(name)), range(9)) for name in ("a", "b", "c"))
    bus.events(failed, Failed(Overloaded("full").info))
    bus.send(Cancel(left, 1, "hangup"))
    bus.send(Cancel(cut, 1, "stop_string"))
    turns = bus.fold.turns
    assert (turns[failed].state, turns[failed].finish) == ("failed", "overloaded: full")
    assert (turns[left].state, turns[left].finish) == ("cancelled", "hangup")
    assert turns[cut].state == "placed"


def test_output_of_a_turn_that_ends_early_is_what_the_frontend_got(bus: Bus) -> None:
    """The frontend's log, metrics and usage count the same."""
    left, failed = bus.begin(asked(user("a")), range(9)), bus.begin(asked(user("b")), range(9))
    for turn in (left, failed):
        bus.write(turn, [1, 2, 3])
        bus.events(turn, *block_events(0, Text("Hello"))[:1], Delta(0, 0, "Hel"), tokens=2)
    bus.send(Cancel(left, 1, "hangup"))
    bus.events(failed, Failed(EngineFailed("gone").info), tokens=2)
    bus.write(left, [1, 2, 3, 4])  # what was on its way
    bus.events(left, Delta(0, 3, "lo"), tokens=4)
    bus.finish(left, 1, output=4)

    turns = bus.fold.turns
    assert [turns[turn].state for turn in (left, failed)] == ["cancelled", "failed"]
    for turn in (left, failed):
        assert (turns[turn].output, turns[turn].ids.tolist()) == (2, [1, 2])
        assert turns[turn].blocks[0].text == "Hel"


def test_kept_turns_and_prompts_are_bounded() -> None:
    fold = Fold(max_turns=4, max_bytes=20_000)
    bus = Bus(fold)
    with fold.watching() as changed:
        turns = [
            bus.turn(asked(user(f"Q{number}"), session=None), range(500), [1], Text("x"))
            for number in range(6)
        ]
    assert list(fold.turns) == [turn.id for turn in turns[2:]]
    assert set(fold.sessions) == set(fold.turns) == set(changed)
    followed = asked(user("Q3"), answer(Text("x")), user("More"), session=None)
    found = bus.turn(followed, [*range(500), 1, 2], [3], Text("y"))
    assert found.previous == turns[3].id
    assert found.difference is not None
    assert found.difference.cause == "unknown"  # its prompt is no longer there
